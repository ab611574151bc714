"""Imported by the fork server: vLLM's engine process starts from here with everything imported.

vLLM would spawn its engine process afresh after the parent has imported vLLM (16 s on a small machine, for each of the
two). A fork server imports at the same time as the parent and has run nothing when it forks: no thread, no device.
"""

import ctypes
import gc
import os
import signal

gc.disable()  # collecting over the import's garbage-free growth costs a sixth of its time

import vllm.v1.engine.async_llm  # noqa: E402
import vllm.v1.engine.core  # noqa: E402, F401

import engine.models.thinker  # noqa: E402, F401

gc.freeze()  # what is imported lives as long as the process, and its pages stay shared with the fork
gc.enable()

_PR_SET_PDEATHSIG = 1  # prctl(2)


def _end_with_the_fork_server() -> None:
    """The fork server ends when the service does, however that ended; this makes the engine process follow."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


os.register_at_fork(after_in_child=_end_with_the_fork_server)
