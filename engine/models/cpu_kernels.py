"""What a CPU that runs the decoder eagerly does better than vLLM has it.

Norms and rotary embedding run in vLLM's C++ kernels. vLLM leaves both to plain PyTorch, for Inductor to fuse. Without
Inductor each is half a dozen small operations, and a step of a small decoder takes as long as their number: with these
kernels the embedded checkpoint does 1.4 times the clips one at a time and 1.3 times at eight at once (in turn with and
without, 14 rounds, a busy machine).

Matrix products get few different numbers of rows. oneDNN compiles a kernel for each, which takes 5 ms and keeps half
a MiB, and a step that reads prompts has a number of its own nearly every time. The encoder fills up its batches for the
same reason (`packing.fill_up`): a pass over one clip takes 19 ms in place of 42, one over four 65 in place of 118.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from vllm import _custom_ops as ops
from vllm.config import CompilationMode, VllmConfig
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.rotary_embedding import MRotaryEmbedding, RotaryEmbedding
from vllm.model_executor.layers.utils import check_cpu_sgl_kernel
from vllm.platforms import current_platform

from engine.models.packing import round_up

Linear = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


def use_cpu_kernels(decoder: nn.Module, vllm_config: VllmConfig) -> None:
    """Have the modules of a decoder that only ever sees text and audio run in C++, if that gains.

    Args:
        decoder: of a model without vision, whose tokens have the same position on all three axes.
        vllm_config: says whether Inductor fuses these operations anyway.
    """
    if not _runs_eagerly_on_cpu(vllm_config):
        return
    for module in decoder.modules():
        if type(module) is RMSNorm and module.variance_size_override is None and module.pass_weight:
            module.forward = partial(rms_norm, module)
        elif type(module) is MRotaryEmbedding:
            module.forward = partial(rotate, module)


def use_few_shapes(decoder: nn.Module, vllm_config: VllmConfig) -> None:
    """Have oneDNN see few numbers of rows; once weights are loaded, which is when vLLM chooses who multiplies."""
    if not _runs_eagerly_on_cpu(vllm_config):
        return
    for module in decoder.modules():
        # Small ones are multiplied by a kernel that is not compiled at run time.
        if (
            isinstance(module, LinearBase)
            and hasattr(module, "cpu_linear")
            and not check_cpu_sgl_kernel(module.output_size, module.input_size, module.params_dtype)
        ):
            module.cpu_linear = partial(multiply, module.cpu_linear)


def multiply(linear: Linear, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """As `linear`, by way of more rows where it compiles for their number; shape = (rows, in) to (rows, out)."""
    rows = len(x)
    if (more := round_up(rows)) == rows:
        return linear(x, weight, bias)
    padded = x.new_empty(more, *x.shape[1:])
    padded[:rows] = x
    padded[rows:] = 0
    return linear(padded, weight, bias)[:rows]


def _runs_eagerly_on_cpu(vllm_config: VllmConfig) -> bool:
    return current_platform.is_cpu() and vllm_config.compilation_config.mode == CompilationMode.NONE


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
