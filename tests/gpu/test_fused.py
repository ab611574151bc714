"""The kernels as the GPU runs them, against plain PyTorch in float32."""

import pytest
import torch
from torch import nn

from engine.models import fused

ROUNDING = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
HALF = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize(("rows", "width"), [(0, 1280), (1, 1), (1, 1280), (7, 129), (12001, 1280), (33, 5120)])
def test_the_fused_norm_equals_addition_and_norm(dtype: torch.dtype, rows: int, width: int) -> None:
    hidden, update = 3 * torch.randn(2, rows, width, device="cuda").to(dtype)
    norm = nn.LayerNorm(width, device="cuda", dtype=dtype).requires_grad_(requires_grad=False)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    total, normed = fused.add_layer_norm(hidden, update, norm)
    assert torch.equal(total, hidden + update)
    expected = nn.functional.layer_norm(total.float(), (width,), norm.weight.float(), norm.bias.float(), norm.eps)
    torch.testing.assert_close(normed.float(), expected, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])


def test_the_fused_norm_clamps_in_float16() -> None:
    rows = torch.tensor([[6e4, -6e4, 1.0, 64900.0]], dtype=torch.float16, device="cuda")
    norm = nn.LayerNorm(4, device="cuda", dtype=torch.float16).requires_grad_(requires_grad=False)
    total, normed = fused.add_layer_norm(rows, rows, norm, clamp=True)
    assert total.tolist() == [[64512.0, -64512.0, 2.0, 64512.0]]
    assert normed.isfinite().all()


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 1280 * 999])
def test_gelu_is_as_exact_as_its_type(dtype: torch.dtype, count: int) -> None:
    x = torch.linspace(-12, 12, count, device="cuda").to(dtype)
    exact = nn.functional.gelu(x.double())
    torch.testing.assert_close(fused.gelu(x).double(), exact, rtol=ROUNDING[dtype] / 2, atol=1e-6)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("head_size", [16, 32, 64, 128])
@pytest.mark.parametrize(
    ("bounds", "rows", "window"),
    [
        ([0, 100, 101, 101, 164, 200, 200, 200], 230, 100),
        ([0, 1], 1, 100),
        ([0, 128, 256], 256, 128),
        ([0, 16, 20, 20], 1300, 16),
        ([0, 0], 0, 100),
        (list(range(0, 12001, 100)), 12032, 100),
    ],
)
def test_window_attention_equals_attention_segment_by_segment(
    dtype: torch.dtype, head_size: int, bounds: list[int], rows: int, window: int
) -> None:
    heads = 5
    qkv = torch.randn(rows, 3 * heads * head_size, device="cuda").to(dtype)
    edges = torch.tensor(bounds, dtype=torch.int32, device="cuda")
    ours = fused.window_attention(qkv, edges, heads, window)
    theirs = fused.window_attention_reference(qkv.float(), edges, heads, window)
    torch.testing.assert_close(ours.float(), theirs, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])
    assert not ours[bounds[-1] :].any()


def test_attention_stays_within_its_segment() -> None:
    qkv = torch.randn(300, 3 * 64, device="cuda", dtype=torch.bfloat16)
    edges = torch.tensor([0, 100, 200, 300], dtype=torch.int32, device="cuda")
    before = fused.window_attention(qkv, edges, 1, 100)
    qkv[100:200] = float("nan")
    after = fused.window_attention(qkv, edges, 1, 100)
    assert torch.equal(before[:100], after[:100])
    assert torch.equal(before[200:], after[200:])
    assert after[100:200].isnan().all()


def test_the_operators_can_be_traced() -> None:
    norm = nn.LayerNorm(64, device="cuda", dtype=torch.bfloat16).requires_grad_(requires_grad=False)
    qkv = torch.randn(200, 192, device="cuda", dtype=torch.bfloat16)
    edges = torch.tensor([0, 100, 200], dtype=torch.int32, device="cuda")
    rows = torch.randn(200, 64, device="cuda", dtype=torch.bfloat16)
    tests = ("test_schema", "test_faketensor")
    arguments = (rows, rows, norm.weight, norm.bias, norm.eps, False)
    torch.library.opcheck(torch.ops.omnihear.add_layer_norm.default, arguments, test_utils=tests)
    torch.library.opcheck(torch.ops.omnihear.gelu.default, (rows,), test_utils=tests)
    torch.library.opcheck(torch.ops.omnihear.window_attention.default, (qkv, edges, 1, 100), test_utils=tests)
    torch.library.opcheck(
        torch.ops.omnihear.linear_gelu.default, (rows, rows[:128], rows[0].repeat(2)), test_utils=tests
    )


@pytest.mark.parametrize(
    ("rows", "width", "out"), [(1, 64, 128), (250, 1280, 5120), (1501, 1280, 5120), (7, 384, 1536)]
)
def test_a_product_with_gelu_is_closer_than_product_and_gelu(rows: int, width: int, out: int) -> None:
    x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(out, width, device="cuda", dtype=torch.bfloat16) / width**0.5
    bias = torch.randn(out, device="cuda", dtype=torch.bfloat16)
    exact = nn.functional.gelu(nn.functional.linear(x.double(), weight.double(), bias.double()))
    together = fused.linear_gelu(x, weight, bias)
    apart = fused.gelu(nn.functional.linear(x, weight, bias))
    reference = fused.linear_gelu_reference(x.double(), weight.double(), bias.double())
    torch.testing.assert_close(together.double(), reference, rtol=ROUNDING[torch.bfloat16] / 2, atol=1e-4)
    assert (together.double() - exact).norm() < (apart.double() - exact).norm()
