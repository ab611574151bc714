from typing import Any

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.utils.torch_utils import set_default_torch_dtype

from benchmarks.checkpoints import EMBEDDED
from benchmarks.towers import NativeTower, StockTower, build_native, build_stock, finish_loading, make_batch
from engine.models.audio_encoder import AudioEncoder
from tests.engine.models.conftest import CPU, TowerPair

TOLERANCE = 1e-5
# The norm of the difference to float32 over the norm, beside Transformers' own in bfloat16; see docs/acceleration.md.
BF16_FACTOR = 1.25

WINDOW_EDGES = [198, 199, 200, 201, 202, 203, 204, 399, 400, 401, 402, 403]
RAGGED = [1, 2, 3, 4, 5, 50, 777, 1000, 2999, 3000, 3001, 4000]


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm())


@torch.inference_mode()
def encode(tower: StockTower | NativeTower, lengths: list[int], mel_bins: int = 16) -> tuple[torch.Tensor, ...]:
    return tower.embed(make_batch(lengths, mel_bins, CPU))


@pytest.mark.parametrize("length", [*RAGGED, *WINDOW_EDGES])
def test_one_clip_equals_transformers_in_float32(tiny: TowerPair, length: int) -> None:
    stock, native = tiny
    [theirs], [ours] = encode(stock, [length]), encode(native, [length])
    torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)


def test_a_ragged_batch_equals_transformers_in_float32(tiny: TowerPair) -> None:
    stock, native = tiny
    lengths = RAGGED + WINDOW_EDGES
    for ours, theirs in zip(encode(native, lengths), encode(stock, lengths), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)


def test_the_comparison_would_see_a_wrong_window(tiny: TowerPair) -> None:
    stock, native = tiny
    native.audio_tower.n_window = 99
    try:
        [theirs], [ours] = encode(stock, [777]), encode(native, [777])
        assert relative(ours, theirs) > 100 * TOLERANCE
    finally:
        native.audio_tower.n_window = 100


def test_a_clip_is_the_same_alone_and_in_any_batch(tiny: TowerPair) -> None:
    _, native = tiny
    batch = make_batch(RAGGED, 16, CPU)
    clips = batch["input_audio_features"].split(RAGGED, dim=1)
    together = encode(native, RAGGED)
    for order in (list(range(len(RAGGED))), list(reversed(range(len(RAGGED)))), [5, 0, 7, 3, 11, 1, 9, 2, 8, 4, 10, 6]):
        with torch.inference_mode():
            shuffled = native.encode_audio(
                torch.cat([clips[index] for index in order], dim=1), [RAGGED[index] for index in order]
            ).split([together[index].shape[0] for index in order])
        for index, ours in zip(order, shuffled, strict=True):
            torch.testing.assert_close(ours, together[index], rtol=TOLERANCE, atol=TOLERANCE)
    for clip, expected in zip(clips, together, strict=True):
        with torch.inference_mode():
            alone = native.encode_audio(clip, [clip.shape[1]])
        torch.testing.assert_close(alone, expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_bfloat16_is_as_close_to_float32_as_transformers_is(config: VllmConfig, tiny: TowerPair) -> None:
    stock_bf16 = build_stock("tiny", CPU, torch.bfloat16)
    native_bf16 = build_native("tiny", config, CPU, torch.bfloat16)
    # float32 arithmetic on the bfloat16 weights, so that only the arithmetic differs.
    exact = build_stock("tiny", CPU, torch.float32)
    exact.audio_tower.load_state_dict(
        {name: value.float() for name, value in stock_bf16.audio_tower.state_dict().items()}
    )
    lengths = [3, 199, 200, 201, 777, 3000]
    expected, theirs, ours = (torch.cat(encode(tower, lengths)) for tower in (exact, stock_bf16, native_bf16))
    assert ours.dtype == torch.bfloat16
    assert relative(ours, expected) < BF16_FACTOR * relative(theirs, expected) < 0.05


def test_float16_is_clamped_as_in_transformers(config: VllmConfig) -> None:
    with set_current_vllm_config(config), set_default_torch_dtype(torch.float16):
        native = build_native("tiny", config, CPU, torch.float16)
    tower = native.audio_tower
    rows, bounds = torch.full((4, 64), 6e4, dtype=torch.float16), torch.tensor([0, 4], dtype=torch.int32)
    for layer in tower.layers:
        layer.fc2.bias.fill_(6e4)
    with torch.inference_mode():
        clamped = tower.run_layers(rows, torch.zeros_like(rows), bounds)
    assert clamped.max() == torch.finfo(torch.float16).max - 1000
    assert clamped.isfinite().all()


def test_the_embedded_tower_equals_transformers_in_float32(config: VllmConfig) -> None:
    from safetensors.torch import load_file
    from transformers import AutoConfig
    from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniAudioEncoder

    audio_config = AutoConfig.from_pretrained(EMBEDDED).thinker_config.audio_config
    prefix = "thinker.audio_tower."
    weights = {
        name.removeprefix(prefix): value.float()
        for name, value in load_file(EMBEDDED / "model.safetensors").items()
        if name.startswith(prefix)
    }
    stock = Qwen2_5OmniAudioEncoder(audio_config).eval()
    stock.load_state_dict(weights)
    with set_current_vllm_config(config):
        native = AudioEncoder(audio_config)
    native.load_weights(weights.items())
    finish_loading(native)
    lengths = [50, 777, 3000]
    batch = make_batch(lengths, 80, CPU)
    with torch.inference_mode():
        theirs = StockTower(stock).embed(batch)
        ours = native(batch["input_audio_features"], lengths).split([clip.shape[0] for clip in theirs])
    # Trained activations reach into the hundreds, so the tolerance is relative to the clip's largest.
    for left, right in zip(ours, theirs, strict=True):
        assert float((left - right).abs().max() / right.abs().max()) < TOLERANCE


def test_features_that_do_not_match_their_lengths_are_refused(tiny: TowerPair) -> None:
    _, native = tiny
    with pytest.raises(ValueError, match="expected mel features of shape"):
        native.encode_audio(torch.zeros(16, 100), [99])


def test_no_attribute_of_flash_attn_is_touched(tiny: TowerPair, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import ModuleType

    class Poisoned(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"flash_attn.{name} was used")

    monkeypatch.setitem(sys.modules, "flash_attn", Poisoned("flash_attn"))
    _, native = tiny
    assert encode(native, [300])[0].shape == (75, 64)
