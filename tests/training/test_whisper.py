import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from training import whisper
from training.whisper import encoder_weights, variables

WIDTH = 4


def text(value: str) -> bytes:
    return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"


def model_file(arrays: dict[str, "np.ndarray[tuple[int, ...], np.dtype[np.float16]]"], version: int = 6) -> bytes:
    """As CTranslate2's `ModelSpec.serialize` writes it."""
    parts = [struct.pack("<I", version), text("WhisperSpec"), struct.pack("<I", 3), struct.pack("<I", len(arrays))]
    for name, array in arrays.items():
        parts += [text(name), struct.pack("<B", array.ndim), struct.pack(f"<{array.ndim}I", *array.shape)]
        parts += [struct.pack("<BI", 4, array.nbytes), array.tobytes()]
    return b"".join([*parts, struct.pack("<I", 0)])


def encoder_arrays(layers: int) -> dict[str, "np.ndarray[tuple[int, ...], np.dtype[np.float16]]"]:
    chance = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "conv1/weight": (WIDTH, 3, 3),
        "conv1/bias": (WIDTH,),
        "conv2/weight": (WIDTH, WIDTH, 3),
        "conv2/bias": (WIDTH,),
        "layer_norm/gamma": (WIDTH,),
        "layer_norm/beta": (WIDTH,),
    }
    for layer in range(layers):
        for name, rows, columns in (
            ("self_attention/linear_0", 3 * WIDTH, WIDTH),
            ("self_attention/linear_1", WIDTH, WIDTH),
            ("ffn/linear_0", 8, WIDTH),
            ("ffn/linear_1", WIDTH, 8),
        ):
            shapes[f"layer_{layer}/{name}/weight"] = (rows, columns)
            shapes[f"layer_{layer}/{name}/bias"] = (rows,)
        for name in ("self_attention/layer_norm", "ffn/layer_norm"):
            shapes[f"layer_{layer}/{name}/gamma"] = shapes[f"layer_{layer}/{name}/beta"] = (WIDTH,)
    return {f"encoder/{name}": chance.normal(size=shape).astype(np.float16) for name, shape in shapes.items()}


def test_every_weight_of_the_tower_comes_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = encoder_arrays(2)
    (tmp_path / "model.bin").write_bytes(model_file(arrays))
    monkeypatch.setattr(whisper, "fetch", lambda package, cache: tmp_path)

    weights = encoder_weights(tmp_path)

    from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniAudioEncoderConfig
    from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniAudioEncoder

    config = Qwen2_5OmniAudioEncoderConfig(
        num_mel_bins=3, d_model=WIDTH, encoder_layers=2, encoder_attention_heads=1, encoder_ffn_dim=8, output_dim=5
    )
    report = Qwen2_5OmniAudioEncoder(config).load_state_dict(weights, strict=False)
    assert report.unexpected_keys == []
    assert set(report.missing_keys) == {"audio_bos_eos_token.weight", "proj.weight", "proj.bias"}
    packed = torch.from_numpy(arrays["encoder/layer_1/self_attention/linear_0/weight"].astype(np.float32))
    parts = [weights[f"layers.1.self_attn.{name}_proj.weight"] for name in "qkv"]
    assert torch.equal(torch.cat(parts), packed)


def test_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 99"):
        variables(model_file({}, version=99))
