"""Imported by the fork server: the engine's processes start from here with everything imported.

vLLM would spawn its engine core afresh, after the process with AsyncLLM has imported vLLM (16 s on a small machine, for
each of the two). Both are forked from what one has imported, and which has run nothing: no thread, no device.
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


def _end_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends, however that ended.

    A fork server ends by itself only once nobody has the pipe that it watches, and each process that it has forked has.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_end_with_parent()  # the fork server, with the service
os.register_at_fork(after_in_child=_end_with_parent)  # each process, with the one that forked it
