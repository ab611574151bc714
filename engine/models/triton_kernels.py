"""The Triton kernels behind `fused.py`, which says what each computes and imports this module where a GPU is used.

All read half or single precision, compute in float32, and round once per stored value. They are written for rows that
fit one program, which audio towers have, and tuned for nothing: at the sizes of Qwen2.5-Omni the first two are bound by
memory, the third by memory and launch.
"""

import triton
import triton.language as tl


@triton.jit
def add_layer_norm_kernel(
    hidden_ptr,
    update_ptr,
    weight_ptr,
    bias_ptr,
    total_ptr,
    normed_ptr,
    width,
    eps,
    limit,
    CLAMP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per row of `width` elements; BLOCK is the next power of two."""
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    offsets = tl.program_id(0).to(tl.int64) * width + columns
    hidden = tl.load(hidden_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    update = tl.load(update_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    total = hidden + update
    if CLAMP:
        total = tl.minimum(tl.maximum(total, -limit), limit)
    # The norm sees what the residual stream keeps, as two separate operations would.
    rounded = total.to(total_ptr.dtype.element_ty)
    tl.store(total_ptr + offsets, rounded, mask=inside)
    total = rounded.to(tl.float32)
    mean = tl.sum(total, axis=0) / width
    centered = tl.where(inside, total - mean, 0.0)
    variance = tl.sum(centered * centered, axis=0) / width
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    normed = centered * (1.0 / tl.sqrt(variance + eps)) * weight + bias
    tl.store(normed_ptr + offsets, normed.to(normed_ptr.dtype.element_ty), mask=inside)


@triton.jit
def gelu_kernel(x_ptr, out_ptr, count, BLOCK: tl.constexpr):
    """x * Phi(x), with erfc by Abramowitz and Stegun's 7.1.26 (absolute error below 1.5e-7).

    gelu(x) = max(x, 0) - |x| * erfc(|x| / sqrt(2)) / 2 holds on both sides, and nothing cancels where the result is
    small. It takes one exponential and one reciprocal, a third of what the standard library's erf takes.
    """
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    x = tl.load(x_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    size = tl.minimum(tl.abs(x), 30.0)  # beyond, the tail is 0; infinity would make it 0 times infinity
    t = 1.0 / (1.0 + 0.231641888 * size)  # 0.3275911 / sqrt(2)
    poly = 1.061405429 * t - 1.453152027
    poly = poly * t + 1.421413741
    poly = poly * t - 0.284496736
    poly = poly * t + 0.254829592
    tail = 0.5 * poly * t * tl.exp2(-0.72134752 * size * size)  # exp(-x^2 / 2)
    # 0 * x keeps NaN.
    result = tl.where(x > 0, x, 0.0 * x) - size * tail
    tl.store(out_ptr + offsets, result.to(out_ptr.dtype.element_ty), mask=inside)


# Without this Triton would compile anew for 1 segment, for multiples of 16, and for both.
@triton.jit(do_not_specialize=["segments", "rows"])
def window_attention_kernel(
    qkv_ptr,
    out_ptr,
    bounds_ptr,
    segments,
    rows,
    scale,
    HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    QUERIES: tl.constexpr,
):
    """One program per head and QUERIES rows of a segment, and per head and BLOCK rows beyond the last segment.

    A segment has at most BLOCK rows, and QUERIES divides BLOCK. Rows beyond the last segment become zeros. `scale`
    includes log2(e).
    """
    parts: tl.constexpr = BLOCK // QUERIES
    head = tl.program_id(0)
    segment = tl.program_id(1) // parts
    place = tl.arange(0, BLOCK)
    columns = head * HEAD_SIZE + tl.arange(0, HEAD_SIZE)
    width = HEADS * HEAD_SIZE
    if segment < segments:
        start = tl.load(bounds_ptr + segment)
        length = tl.load(bounds_ptr + segment + 1) - start
        asking = (tl.program_id(1) % parts) * QUERIES + tl.arange(0, QUERIES)
        if (tl.program_id(1) % parts) * QUERIES < length:
            asks = (asking < length)[:, None]
            asked = (place < length)[:, None]
            asking_row = (start + asking).to(tl.int64)[:, None]
            key_ptr = qkv_ptr + (start + place).to(tl.int64)[:, None] * (3 * width) + width + columns[None, :]
            query = tl.load(qkv_ptr + asking_row * (3 * width) + columns[None, :], mask=asks, other=0.0)
            key = tl.load(key_ptr, mask=asked, other=0.0)
            value = tl.load(key_ptr + width, mask=asked, other=0.0)
            scores = tl.dot(query, tl.trans(key)) * scale
            scores = tl.where((place < length)[None, :], scores, float("-inf"))
            weights = tl.exp2(scores - tl.max(scores, axis=1)[:, None])
            total = tl.sum(weights, axis=1)
            result = tl.dot(weights.to(value.dtype), value) / total[:, None]
            out = result.to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + asking_row * width + columns[None, :], out, mask=asks)
    else:
        first = tl.load(bounds_ptr + segments) + (tl.program_id(1) - segments * parts) * BLOCK
        row = (first + place).to(tl.int64)[:, None]
        zeros = tl.zeros((BLOCK, HEAD_SIZE), dtype=out_ptr.dtype.element_ty)
        tl.store(out_ptr + row * width + columns[None, :], zeros, mask=row < rows)
