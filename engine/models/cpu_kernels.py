"""Norms and rotary embedding of the decoder in vLLM's C++ kernels, where a CPU runs it eagerly.

On a CPU vLLM leaves both to plain PyTorch, for Inductor to fuse. Without Inductor each is half a dozen small
operations, and a step of a small decoder takes as long as their number: with these kernels the embedded checkpoint does
1.4 times the clips one at a time and 1.3 times at eight at once (in turn with and without, 14 rounds, a busy machine).
"""

from functools import partial

import torch
from torch import nn
from vllm import _custom_ops as ops
from vllm.config import CompilationMode, VllmConfig
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.rotary_embedding import MRotaryEmbedding, RotaryEmbedding
from vllm.platforms import current_platform


def use_cpu_kernels(decoder: nn.Module, vllm_config: VllmConfig) -> None:
    """Have the modules of a decoder that only ever sees text and audio run in C++, if that gains.

    Args:
        decoder: of a model without vision, whose tokens have the same position on all three axes.
        vllm_config: says whether Inductor fuses these operations anyway.
    """
    if not current_platform.is_cpu() or vllm_config.compilation_config.mode != CompilationMode.NONE:
        return
    for module in decoder.modules():
        if type(module) is RMSNorm and module.variance_size_override is None and module.pass_weight:
            module.forward = partial(rms_norm, module)
        elif type(module) is MRotaryEmbedding:
            module.forward = partial(rotate, module)


def rms_norm(
    module: RMSNorm, x: torch.Tensor, residual: torch.Tensor | None = None
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """As `RMSNorm.forward_native`, but that with a residual both results are written over the arguments."""
    if residual is None:
        out = torch.empty_like(x)
        ops.rms_norm(out, x, module.weight.data, module.variance_epsilon)
        return out
    ops.fused_add_rms_norm(x, residual, module.weight.data, module.variance_epsilon)
    return x, residual


def rotate(
    module: MRotaryEmbedding,
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As `MRotaryEmbedding.forward_native` where the rows of `positions` are equal; in place.

    Shapes: positions (3, tokens) or (tokens,), query and key (tokens, heads * head_size).
    """
    return RotaryEmbedding.forward_cpu(module, positions[0] if positions.ndim == 2 else positions, query, key)
