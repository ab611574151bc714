"""The GPU's kernels under Triton's interpreter, against plain PyTorch; tests/gpu runs them compiled.

The interpreter truncates where it makes bfloat16, so bfloat16 is left to the GPU.
"""

import os

import pytest
import torch
from torch import nn
from vllm.config import VllmConfig

from engine.models import fused
from tests.engine.models.conftest import CPU, TowerPair

DTYPES = {torch.float32: 2e-6, torch.float16: 2e-3}

pytestmark = pytest.mark.filterwarnings("ignore")  # NumPy's, from under Triton's interpreter: NaN, overflow


interpreted = pytest.mark.skipif(
    os.environ["TRITON_INTERPRET"] != "1", reason="with a GPU the kernels are compiled; see tests/gpu"
)


@interpreted
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(0, 64), (1, 1), (1, 64), (3, 1280), (7, 129)])
def test_the_fused_norm_equals_addition_and_norm(dtype: torch.dtype, rows: int, width: int) -> None:
    generator = torch.Generator().manual_seed(rows + width)
    hidden, update = 3 * torch.randn(2, rows, width, generator=generator).to(dtype)
    weight, bias = torch.randn(2, width, generator=generator).to(dtype)
    ours = fused.launch_add_layer_norm(hidden, update, weight, bias, 1e-5, clamp=False)
    theirs = fused.add_layer_norm_reference(hidden, update, weight, bias, 1e-5, clamp=False)
    assert torch.equal(ours[0], theirs[0])
    torch.testing.assert_close(ours[1], theirs[1], rtol=DTYPES[dtype], atol=DTYPES[dtype])


@interpreted
def test_the_fused_norm_clamps_before_it_rounds() -> None:
    hidden = torch.tensor([[6e4, -6e4, 1.0, 64900.0]], dtype=torch.float16)
    ones = torch.ones(4, dtype=torch.float16)
    ours = fused.launch_add_layer_norm(hidden, hidden, ones, ones, 1e-5, clamp=True)
    theirs = fused.add_layer_norm_reference(hidden, hidden, ones, ones, 1e-5, clamp=True)
    assert ours[0].tolist() == theirs[0].tolist() == [[64512.0, -64512.0, 2.0, 64512.0]]
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-3, atol=1e-3)


@interpreted
@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 5000])
def test_gelu_is_exact_to_float32(count: int) -> None:
    x = torch.linspace(-12, 12, count)
    exact = fused.gelu_reference(x.double())
    assert float((fused.launch_gelu(x) - exact).abs().amax() if count else 0) < 5e-7
    # Where results are small they are as close as half precision can tell.
    small = x < -1
    torch.testing.assert_close(fused.launch_gelu(x)[small].double(), exact[small], rtol=5e-4, atol=1e-7)


@interpreted
def test_gelu_keeps_infinity_and_nan() -> None:
    result = fused.launch_gelu(torch.tensor([float("inf"), float("nan"), 0.0]))
    assert result[0] == float("inf")
    assert result[1].isnan()
    assert result[2] == 0


@pytest.fixture(name="_queries", params=[16, 128])
def _queries(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many of a window's queries one program takes."""
    monkeypatch.setattr(fused, "QUERY_ROWS", request.param)


@interpreted
@pytest.mark.usefixtures("_queries")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("bounds", "rows", "window"),
    [
        ([0, 100, 101, 101, 164, 200, 200, 200], 230, 100),
        ([0, 1], 1, 100),
        ([0, 128, 256], 256, 128),
        ([0, 16, 20, 20], 300, 16),
        ([0, 0], 0, 100),
    ],
)
def test_window_attention_equals_attention_segment_by_segment(
    dtype: torch.dtype, bounds: list[int], rows: int, window: int
) -> None:
    heads, head_size = 3, 32
    qkv = torch.randn(rows, 3 * heads * head_size, generator=torch.Generator().manual_seed(rows)).to(dtype)
    edges = torch.tensor(bounds, dtype=torch.int32)
    ours = fused.launch_window_attention(qkv, edges, heads, window)
    theirs = fused.window_attention_reference(qkv.float(), edges, heads, window)
    torch.testing.assert_close(ours.float(), theirs, rtol=DTYPES[dtype], atol=DTYPES[dtype])
    assert not ours[bounds[-1] :].any()


def test_the_reference_of_attention_is_what_the_tower_computes(tiny: TowerPair, config: VllmConfig) -> None:
    attention = tiny[1].audio_tower.layers[0].self_attn
    rows = torch.randn(250, 64, generator=torch.Generator().manual_seed(1))
    bounds = torch.tensor([0, 100, 200, 250], dtype=torch.int32)
    with torch.inference_mode():
        expected = attention(rows, bounds, tiny[1].audio_tower.max_seqlen)
        attended = fused.window_attention_reference(attention.qkv_proj(rows), bounds, attention.num_heads, 100)
        ours = attention.out_proj(attended)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def test_on_a_cpu_everything_is_plain_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: object) -> None:
        raise AssertionError("a kernel was launched")

    for name in ("launch_add_layer_norm", "launch_gelu", "launch_linear_gelu", "launch_window_attention"):
        monkeypatch.setattr(fused, name, forbidden)
    norm = nn.LayerNorm(8)
    rows = torch.randn(3, 8, device=CPU)
    total, normed = fused.add_layer_norm(rows, rows, norm)
    assert torch.equal(total, 2 * rows)
    assert torch.equal(normed, norm(2 * rows))
    assert torch.equal(fused.gelu(rows), nn.functional.gelu(rows))
    assert not fused.supports_window_attention(100, 64, torch.bfloat16)
    assert not fused.supports_linear_gelu(torch.bfloat16)


def test_the_operators_tell_their_shapes_without_running() -> None:
    with torch.device("meta"):
        rows, vector = torch.empty(5, 12), torch.empty(12)
        bounds = torch.empty(3, dtype=torch.int32)
        total, normed = torch.ops.omnihear.add_layer_norm(rows, rows, vector, vector, 1e-5, False)
        assert total.shape == normed.shape == torch.ops.omnihear.gelu(rows).shape == (5, 12)
        assert torch.ops.omnihear.window_attention(rows, bounds, 2, 100).shape == (5, 4)
        assert torch.ops.omnihear.linear_gelu(rows, torch.empty(7, 12), torch.empty(7)).shape == (5, 7)


@pytest.mark.parametrize("spread", [0.3, 1, 2])
def test_the_tanh_form_rounded_once_is_closer_than_the_exact_one_rounded_twice(spread: float) -> None:
    sums = spread * torch.randn(200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact = nn.functional.gelu(sums)
    once = nn.functional.gelu(sums, approximate="tanh").bfloat16().double()
    twice = nn.functional.gelu(sums.bfloat16().double()).bfloat16().double()
    assert (once - exact).norm() < 0.8 * (twice - exact).norm()
    assert (once - exact).abs().amax() <= (twice - exact).abs().amax()
