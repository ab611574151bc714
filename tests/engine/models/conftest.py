"""One process as vLLM's parallel state, and small towers on the CPU."""

import os
import warnings
from typing import Any

import pytest

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

with warnings.catch_warnings():
    # What vLLM, torch and Transformers deprecate among themselves when they are imported.
    warnings.simplefilter("ignore")
    import torch
    import torch._inductor.compile_fx
    from vllm.config import DeviceConfig, VllmConfig
    from vllm.model_executor.layers.attention.mm_encoder_attention import MMEncoderAttention

    from benchmarks.towers import NativeTower, StockTower, build_native, build_stock, start_parallel_state

CPU = torch.device("cpu")

TowerPair = tuple[StockTower, NativeTower]


@pytest.fixture(scope="session", name="config")
def _config() -> VllmConfig:
    """vLLM's settings without a model, for towers on their own."""
    config = VllmConfig(device_config=DeviceConfig(device="cpu"))
    start_parallel_state(config)
    return config


@pytest.fixture(scope="session", name="tiny")
def _tiny(config: VllmConfig) -> TowerPair:
    """Windows as in the real model, two layers, float32."""
    return build_stock("tiny", CPU, torch.float32), build_native("tiny", config, CPU, torch.float32)


@pytest.fixture(name="varlen")
def _varlen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give the CPU's attention what variable-length GPU kernels have: rows beyond the last bound, and empty segments.

    Rows beyond hold zeros, as FlashAttention leaves them in a captured graph.
    Returns the numbers of rows seen, as they come.
    """
    original = MMEncoderAttention._forward_sdpa
    seen: list[int] = []

    def forward(
        self: MMEncoderAttention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seqlens: Any = None
    ) -> torch.Tensor:
        rows = int(cu_seqlens[-1])
        bounds = torch.unique_consecutive(cu_seqlens)
        output = torch.zeros_like(query)
        output[:, :rows] = original(self, query[:, :rows], key[:, :rows], value[:, :rows], bounds)
        seen.append(query.shape[1])
        return output

    monkeypatch.setattr(MMEncoderAttention, "_forward_sdpa", forward)
    return seen
