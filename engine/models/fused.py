"""What the audio tower does beside matrix products, in one kernel each where a GPU runs it.

Every function is defined by its `*_reference`, plain PyTorch, which is what runs on a CPU. On a GPU the kernel of
`triton_kernels.py` runs instead, as a custom operator, so that eager layers, compiled layers and CUDA graphs use the
same code: neither PyTorch nor vLLM 0.32 has a fused residual add and LayerNorm with bias for CUDA, Inductor's GELU is
slower than an eager one, and FlashAttention takes three times as long as windows of 100 rows take to read and write.
"""

import math
from itertools import pairwise

import torch
from torch import nn
from torch.library import Library
from torch.nn import functional
from vllm.model_executor.models.utils import cast_overflow_tensors
from vllm.triton_utils import HAS_TRITON
from vllm.utils.torch_utils import direct_register_custom_op

LOG2_E = 1.4426950408889634
MAX_WINDOW = 128
"""Rows of an attention segment that one program holds."""

# By measurement on an H200 at 5, 30 and 240 s of audio.
QUERY_ROWS = 64
ATTENTION_WARPS = 4
NORM_WARPS = 2


def add_layer_norm(
    hidden: torch.Tensor, update: torch.Tensor, norm: nn.LayerNorm, *, clamp: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The residual stream after an update, and its norm.

    Args:
        hidden: residual stream, shape = (rows, width).
        update: of the same shape and dtype.
        norm: over the last dimension, with weight and bias.
        clamp: keep the sum this side of infinity, as Transformers does in float16.

    Returns:
        `hidden + update` and `norm` of it, each of the same shape and dtype.
    """
    if hidden.is_cuda and HAS_TRITON:
        total, normed = torch.ops.omnihear.add_layer_norm(hidden, update, norm.weight, norm.bias, norm.eps, clamp)
        return total, normed
    return add_layer_norm_reference(hidden, update, norm.weight, norm.bias, norm.eps, clamp)


def add_layer_norm_reference(  # noqa: PLR0917 - an operator's signature
    hidden: torch.Tensor, update: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, clamp: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `add_layer_norm`."""
    total = hidden + update
    if clamp:
        total = cast_overflow_tensors(total)
    return total, functional.layer_norm(total, weight.shape, weight, bias, eps)


def gelu(x: torch.Tensor) -> torch.Tensor:
    """The exact GELU, of any shape; on a GPU with an absolute error below 1e-6 before rounding."""
    if x.is_cuda and HAS_TRITON:
        return torch.ops.omnihear.gelu(x)
    return gelu_reference(x)


def gelu_reference(x: torch.Tensor) -> torch.Tensor:
    """See `gelu`."""
    return functional.gelu(x)


def supports_linear_gelu(dtype: torch.dtype) -> bool:
    """Whether `linear_gelu` gains: it needs cuBLASLt, and the tanh form is closer than bfloat16's rounding alone."""
    return dtype == torch.bfloat16 and torch.version.cuda is not None and torch.cuda.is_available()


def linear_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """GELU of a linear layer in one product, on a GPU.

    cuBLASLt applies the tanh form of GELU to the product's float32 sums. That form is within 4.8e-4 of the exact one,
    less than the rounding to bfloat16 between product and activation that it saves: of the two ways this is the one
    closer to float32 (`tests/engine/models/test_fused.py`), and it neither writes nor reads the product.

    Args:
        x: shape = (rows, in).
        weight: shape = (out, in).
        bias: shape = (out,).

    Returns:
        shape = (rows, out).
    """
    return torch.ops.omnihear.linear_gelu(x, weight, bias)


def linear_gelu_reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """See `linear_gelu`; for tests."""
    return functional.gelu(functional.linear(x, weight, bias), approximate="tanh")


def supports_window_attention(window: int, head_size: int, dtype: torch.dtype) -> bool:
    """Whether `window_attention` can serve segments of at most `window` rows; in float32 it would lose precision."""
    return (
        HAS_TRITON
        and torch.cuda.is_available()
        and window <= MAX_WINDOW
        and head_size in (16, 32, 64, 128)
        and dtype in (torch.float16, torch.bfloat16)
    )


def window_attention(qkv: torch.Tensor, bounds: torch.Tensor, heads: int, window: int) -> torch.Tensor:
    """Softmax attention within each segment of a packed batch, on a GPU.

    Args:
        qkv: queries, keys and values of all heads side by side, shape = (rows, 3 * heads * head_size).
        bounds: int32, shape = (segments + 1,), not decreasing; segments may be empty.
        heads: number of heads.
        window: no segment is longer; at most MAX_WINDOW.

    Returns:
        shape = (rows, heads * head_size); rows beyond the last bound are zero.
    """
    return torch.ops.omnihear.window_attention(qkv, bounds, heads, window)


def window_attention_reference(qkv: torch.Tensor, bounds: torch.Tensor, heads: int, window: int) -> torch.Tensor:
    """See `window_attention`; `window` only bounds. It reads the bounds on the host, so it is for tests."""
    result = torch.zeros_like(qkv[:, : qkv.shape[1] // 3])
    for start, end in pairwise(bounds.tolist()):
        query, key, value = (
            part.unflatten(-1, (heads, -1)).transpose(0, 1) for part in qkv[start:end].chunk(3, dim=-1)
        )
        attended = functional.scaled_dot_product_attention(query, key, value)
        result[start:end] = attended.transpose(0, 1).flatten(1)
    return result


def launch_add_layer_norm(  # noqa: PLR0917 - an operator's signature
    hidden: torch.Tensor, update: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, clamp: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the kernel; as `add_layer_norm_reference`."""
    from engine.models import triton_kernels as kernels

    hidden, update = hidden.contiguous(), update.contiguous()
    total, normed = torch.empty_like(hidden), torch.empty_like(hidden)
    width = hidden.shape[-1]
    rows = hidden.numel() // width
    limit = torch.finfo(hidden.dtype).max - 1000 if clamp else 0.0
    if rows:
        kernels.add_layer_norm_kernel[(rows,)](
            hidden,
            update,
            weight,
            bias,
            total,
            normed,
            width,
            eps,
            limit,
            CLAMP=clamp,
            BLOCK=_next_power_of_two(width),
            num_warps=NORM_WARPS,
        )
    return total, normed


def launch_gelu(x: torch.Tensor) -> torch.Tensor:
    """Run the kernel; as `gelu_reference`."""
    from engine.models import triton_kernels as kernels

    x = x.contiguous()
    out = torch.empty_like(x)
    block = 1024
    if x.numel():
        kernels.gelu_kernel[(-(-x.numel() // block),)](x, out, x.numel(), BLOCK=block, num_warps=4)
    return out


def launch_linear_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Run the product; as `linear_gelu_reference`."""
    # PyTorch gives cuBLASLt's epilogue no public name. Behind our operator Inductor leaves it whole; alone it would
    # be taken apart into a product and an activation.
    return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)  # noqa: SLF001


def launch_window_attention(qkv: torch.Tensor, bounds: torch.Tensor, heads: int, window: int) -> torch.Tensor:
    """Run the kernel; as `window_attention_reference`."""
    from engine.models import triton_kernels as kernels

    qkv = qkv.contiguous()
    rows, width = qkv.shape[0], qkv.shape[1] // 3
    out = torch.empty(rows, width, dtype=qkv.dtype, device=qkv.device)
    head_size, segments = width // heads, bounds.shape[0] - 1
    block = max(16, _next_power_of_two(window))
    queries = min(block, QUERY_ROWS)
    if rows:
        kernels.window_attention_kernel[(heads, segments * (block // queries) + -(-rows // block))](
            qkv,
            out,
            bounds,
            segments,
            rows,
            LOG2_E / math.sqrt(head_size),
            HEADS=heads,
            HEAD_SIZE=head_size,
            BLOCK=block,
            QUERIES=queries,
            num_warps=ATTENTION_WARPS,
        )
    return out


def _next_power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _fake_add_layer_norm(  # noqa: PLR0917 - an operator's signature
    hidden: torch.Tensor, update: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, clamp: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(hidden), torch.empty_like(hidden)


def _fake_gelu(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _fake_linear_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


def _fake_window_attention(qkv: torch.Tensor, bounds: torch.Tensor, heads: int, window: int) -> torch.Tensor:
    return qkv.new_empty(qkv.shape[0], qkv.shape[1] // 3)


_library = Library("omnihear", "FRAGMENT")  # operators live as long as it does
for _name, _launch, _fake in (
    ("add_layer_norm", launch_add_layer_norm, _fake_add_layer_norm),
    ("gelu", launch_gelu, _fake_gelu),
    ("linear_gelu", launch_linear_gelu, _fake_linear_gelu),
    ("window_attention", launch_window_attention, _fake_window_attention),
):
    direct_register_custom_op(_name, _launch, fake_impl=_fake, target_lib=_library, dispatch_key="CUDA")
