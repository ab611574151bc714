"""The processes below an engine, and what is left of it without them."""

import asyncio

import psutil
import pytest

from engine.engine_process import EngineProcess
from engine.interface import EngineDeadError, SpeechEngine, SpeechOutput, SpeechRequest


def engine_core(engine: EngineProcess) -> psutil.Process:
    """vLLM's process with the model, forked from that with AsyncLLM."""
    assert engine._process is not None
    (core,) = psutil.Process(engine._process.pid).children()
    return core


async def assert_dead(engine: SpeechEngine, waiting: "asyncio.Task[list[SpeechOutput]]", late: SpeechRequest) -> None:
    """Nobody waits for a dead engine, neither who did already nor who comes late."""
    async with asyncio.timeout(10):
        with pytest.raises(EngineDeadError):
            await waiting
    with pytest.raises(EngineDeadError):
        await engine.check_health()
    with pytest.raises(EngineDeadError):
        await anext(engine.generate(late))
    assert (await engine.describe()).encoder["status"] is None
