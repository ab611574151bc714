"""The decoder's C++ kernels against what vLLM runs in their place."""

import pytest
import torch
from torch import nn
from vllm.config import CompilationConfig, CompilationMode, DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.layers.rotary_embedding import MRotaryEmbedding
from vllm.utils.torch_utils import set_default_torch_dtype

from engine.models.cpu_kernels import multiply, use_cpu_kernels, use_few_shapes

ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2}
HEAD = 32


class Decoder(nn.Module):
    def __init__(self, config: VllmConfig, dtype: torch.dtype) -> None:
        super().__init__()
        with set_current_vllm_config(config), set_default_torch_dtype(dtype):
            self.norm = RMSNorm(384, eps=1e-6)
            self.rotary = MRotaryEmbedding(
                HEAD, HEAD, 2048, 10_000, is_neox_style=True, dtype=dtype, mrope_section=[4, 6, 6]
            )
        nn.init.normal_(self.norm.weight)
        self.requires_grad_(requires_grad=False)


def settings(mode: CompilationMode) -> VllmConfig:
    return VllmConfig(device_config=DeviceConfig(device="cpu"), compilation_config=CompilationConfig(mode=mode))


@pytest.fixture(name="decoder", params=ROUNDING, ids=str)
def _decoder(config: VllmConfig, request: pytest.FixtureRequest) -> tuple[Decoder, torch.dtype]:
    config = settings(CompilationMode.NONE)
    decoder = Decoder(config, request.param)
    use_cpu_kernels(decoder, config)
    assert "forward" in vars(decoder.norm)
    assert "forward" in vars(decoder.rotary)
    return decoder, request.param


@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_norms_are_those_of_plain_pytorch(decoder: tuple[Decoder, torch.dtype], rows: int, scale: float) -> None:
    norm, dtype = decoder[0].norm, decoder[1]
    x, residual = scale * torch.randn(2, rows, 384).to(dtype)
    alone = norm.forward_native(x.clone())
    normed, total = norm.forward_native(x.clone(), residual.clone())
    close = {"rtol": ROUNDING[dtype], "atol": ROUNDING[dtype]}
    torch.testing.assert_close(norm(x.clone()), alone, **close)
    ours = norm(x.clone(), residual.clone())
    torch.testing.assert_close(ours[0], normed, **close)
    torch.testing.assert_close(ours[1], total, **close)


@pytest.mark.parametrize("tokens", [1, 5, 700])
def test_one_position_turns_as_three_equal_ones(decoder: tuple[Decoder, torch.dtype], tokens: int) -> None:
    rotary, dtype = decoder[0].rotary, decoder[1]
    positions = (torch.arange(tokens) + 17).expand(3, -1)
    query, key = torch.randn(tokens, 6 * HEAD).to(dtype), torch.randn(tokens, 2 * HEAD).to(dtype)
    theirs = rotary.forward_native(positions, query.clone(), key.clone())
    ours = rotary(positions, query.clone(), key.clone())
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])


def test_products_of_any_number_of_rows_are_those_of_few_numbers() -> None:
    seen: list[int] = []
    weight, bias = torch.randn(24, 16), torch.randn(24)

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        seen.append(len(x))
        return nn.functional.linear(x, weight, bias)

    for rows in range(1, 300):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(multiply(linear, x, weight, bias), linear(x, weight, bias))
        seen.pop()
    assert len(set(seen)) == 16 + 8 * 4 + 2


@pytest.mark.parametrize("mode", [CompilationMode.NONE, CompilationMode.VLLM_COMPILE])
def test_what_onednn_multiplies_once_loaded_is_rounded_where_it_runs_eagerly(
    config: VllmConfig, mode: CompilationMode
) -> None:
    config = settings(mode)
    with set_current_vllm_config(config):
        linear = ReplicatedLinear(384, 20_000, bias=False, params_dtype=torch.bfloat16, return_bias=False)
    nn.init.normal_(linear.weight)
    x = torch.randn(300, 384, dtype=torch.bfloat16)
    expected = nn.functional.linear(x, linear.weight)
    linear.quant_method.process_weights_after_loading(linear)
    use_few_shapes(linear, config)
    assert (getattr(linear.cpu_linear, "func", None) is multiply) is (mode == CompilationMode.NONE)
    torch.testing.assert_close(linear(x), expected, rtol=1.6e-2, atol=1e-2)


def test_what_inductor_fuses_is_left_to_it(config: VllmConfig) -> None:
    compiled = settings(CompilationMode.VLLM_COMPILE)
    decoder = Decoder(compiled, torch.float32)
    use_cpu_kernels(decoder, compiled)
    assert "forward" not in vars(decoder.norm)
    assert "forward" not in vars(decoder.rotary)
