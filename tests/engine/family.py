"""The processes below an engine."""

import psutil

from engine.engine_process import EngineProcess


def engine_core(engine: EngineProcess) -> psutil.Process:
    """vLLM's process with the model, forked from that with AsyncLLM."""
    assert engine._process is not None
    (core,) = psutil.Process(engine._process.pid).children()
    return core
