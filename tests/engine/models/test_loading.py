"""How weights reach the tower: from a checkpoint, as dummies, and split over tensor-parallel ranks."""

from collections.abc import Callable

import pytest
import torch
from vllm.config import LoadConfig, ModelConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

from benchmarks.checkpoints import AUDIO_SIZES
from benchmarks.towers import audio_config, random_weights
from engine.models.audio_encoder import AudioEncoder, select_quant_config
from engine.models.thinker import OmnihearThinker
from tests.engine.models.conftest import CPU

DIMS = AUDIO_SIZES["tiny"]
WIDTH, HEADS = DIMS["d_model"], DIMS["encoder_attention_heads"]

Simulate = Callable[[int, int], None]


@pytest.fixture(name="weights")
def _weights() -> dict[str, torch.Tensor]:
    return dict(random_weights(audio_config("tiny"), CPU, torch.float32))


@pytest.fixture(name="simulate")
def _simulate(monkeypatch: pytest.MonkeyPatch) -> Simulate:
    """Pretend to be one rank of several while layers are built and loaded."""

    def pretend(rank: int, size: int) -> None:
        for module in ("vllm.model_executor.layers.linear", "vllm.model_executor.parameter"):
            monkeypatch.setattr(f"{module}.get_tensor_model_parallel_rank", lambda: rank)
            monkeypatch.setattr(f"{module}.get_tensor_model_parallel_world_size", lambda: size)
        monkeypatch.setattr("engine.models.audio_encoder.get_tensor_model_parallel_world_size", lambda: size)

    return pretend


def build(config: VllmConfig) -> AudioEncoder:
    with set_current_vllm_config(config):
        tower = AudioEncoder(audio_config("tiny"))
    # What memory happens to hold.
    for parameter in tower.parameters():
        parameter.data.fill_(7.0)
    return tower


def test_every_parameter_comes_from_the_checkpoint(config: VllmConfig, weights: dict[str, torch.Tensor]) -> None:
    tower = build(config)
    loaded = tower.load_weights(weights.items())
    assert loaded == {name for name, _ in tower.named_parameters()}
    attention = tower.layers[1].self_attn.qkv_proj
    parts = [weights[f"layers.1.self_attn.{name}_proj.weight"] for name in "qkv"]
    assert torch.equal(attention.weight, torch.cat(parts))
    biases = [weights["layers.1.self_attn.q_proj.bias"], torch.zeros(WIDTH), weights["layers.1.self_attn.v_proj.bias"]]
    assert torch.equal(attention.bias, torch.cat(biases))


def test_convolution_weights_keep_their_taps(config: VllmConfig, weights: dict[str, torch.Tensor]) -> None:
    tower = build(config)
    tower.load_weights(weights.items())
    rows = torch.randn(9, DIMS["num_mel_bins"])
    taps = (torch.arange(1, 8)[:, None] + torch.tensor([-1, 0, 1])).int().flatten()
    expected = torch.nn.functional.conv1d(rows.t()[None], weights["conv1.weight"], weights["conv1.bias"])[0].t()
    torch.testing.assert_close(tower.conv1(rows, taps), expected, rtol=1e-5, atol=1e-5)


def test_an_unknown_weight_is_refused(config: VllmConfig) -> None:
    with pytest.raises(ValueError, match="surprise"):
        build(config).load_weights([("surprise.weight", torch.zeros(1))])


def test_dummy_weights_leave_the_key_bias_zero(config: VllmConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    tower = build(config)
    thinker = OmnihearThinker.__new__(OmnihearThinker)
    torch.nn.Module.__init__(thinker)
    thinker.audio_tower, thinker.language_model, thinker.vllm_config = tower, torch.nn.Module(), config
    DummyModelLoader(LoadConfig(load_format="dummy")).load_weights(thinker, ModelConfig.__new__(ModelConfig))
    assert tower.layers[0].self_attn.qkv_proj.bias[WIDTH : 2 * WIDTH].abs().max() > 0

    thinker.process_weights_after_loading()  # vLLM's loaders end with this call

    for layer in tower.layers:
        bias = layer.self_attn.qkv_proj.bias
        assert torch.count_nonzero(bias[WIDTH : 2 * WIDTH]) == 0
        assert torch.count_nonzero(bias[:WIDTH]) > 0
        assert torch.count_nonzero(bias[2 * WIDTH :]) > 0


@pytest.mark.parametrize("size", [2, 4])
def test_tensor_parallel_shards_add_up(
    config: VllmConfig, weights: dict[str, torch.Tensor], simulate: Simulate, size: int
) -> None:
    head = WIDTH // HEADS
    local = WIDTH // size
    shards = []
    for rank in range(size):
        simulate(rank, size)
        tower = build(config)
        assert tower.load_weights(weights.items()) == {name for name, _ in tower.named_parameters()}
        attention = tower.layers[0].self_attn
        assert attention.num_heads * head == local
        assert attention.attn.num_heads == HEADS // size
        assert torch.count_nonzero(attention.qkv_proj.bias[local : 2 * local]) == 0
        shards.append(tower.layers[0])
    for index, name in enumerate("qkv"):
        packed = [shard.self_attn.qkv_proj.weight[index * local : (index + 1) * local] for shard in shards]
        assert torch.equal(torch.cat(packed), weights[f"layers.0.self_attn.{name}_proj.weight"])
    for name in ("self_attn.out_proj", "fc2"):
        columns = torch.cat([shard.get_submodule(name).weight for shard in shards], dim=1)
        assert torch.equal(columns, weights[f"layers.0.{name}.weight"])
    assert torch.equal(torch.cat([shard.fc1.weight for shard in shards]), weights["layers.0.fc1.weight"])
    assert torch.equal(torch.cat([shard.fc1.bias for shard in shards]), weights["layers.0.fc1.bias"])


def test_heads_that_do_not_divide_are_replicated(
    config: VllmConfig, weights: dict[str, torch.Tensor], simulate: Simulate
) -> None:
    simulate(5, 8)  # four heads on eight ranks
    tower = build(config)
    tower.load_weights(weights.items())
    attention = tower.layers[0].self_attn
    parts = [weights[f"layers.0.self_attn.{name}_proj.weight"] for name in "qkv"]
    assert attention.num_heads == HEADS
    assert torch.equal(attention.qkv_proj.weight, torch.cat(parts))
    assert torch.equal(attention.out_proj.weight, weights["layers.0.self_attn.out_proj.weight"])
    assert torch.count_nonzero(attention.qkv_proj.bias[WIDTH : 2 * WIDTH]) == 0
    # The feed-forward part has no heads and is split all the same.
    assert tower.layers[0].fc1.weight.shape[0] == DIMS["encoder_ffn_dim"] // 8


class Quantization(QuantizationConfig):
    """Only a name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def get_name(self) -> str:
        return self.name

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        return []

    @classmethod
    def get_min_capability(cls) -> int:
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, object]) -> "Quantization":
        return cls(str(config["name"]))

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> None:
        return None


@pytest.mark.parametrize(("name", "applies"), [("gptq_marlin", False), ("awq", False), ("fp8", True)])
def test_quantisation_applies_where_checkpoints_quantise_the_tower(name: str, *, applies: bool) -> None:
    quantization = Quantization(name)
    assert select_quant_config(quantization) is (quantization if applies else None)
    assert select_quant_config(None) is None
