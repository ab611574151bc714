"""All speech that training draws from, decoded, with what is said as tokens and as letters."""

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.interface import SAMPLE_RATE
from training import shards

ALPHABET = " abcdefghijklmnopqrstuvwxyz'"
_NUMBER = {letter: number for number, letter in enumerate(ALPHABET, 1)}  # 0 is the blank

Tokens = NDArray[np.int64]


def without_punctuation(text: str) -> str:
    """As the instruction without punctuation marks wants it; capitals stay."""
    return " ".join(re.sub(r"[.,;:?!]", "", text).split())


def letters(text: str) -> Tokens:
    """Numbers of the letters in `ALPHABET`, from 1."""
    plain = " ".join(re.sub(r"[^a-z' ]+", " ", text.lower()).split())
    return np.array([_NUMBER[each] for each in plain], np.int64)


class Corpus:
    """Utterances for training, those for evaluation left out.

    Attributes:
        waves: the audio of all shards, in pieces that `starts` counts through.
        starts, lengths: of each utterance, in samples.
        said: index of its text.
        texts: different ones.
        chance: of each utterance to be drawn, the sum 1.
    """

    def __init__(self, folder: Path, suffix: str, weights: dict[str, float]) -> None:
        """Decode everything, a shard a thread.

        Args:
            weights: of utterances by their synthesizer.

        Raises:
            SystemExit: there is nothing.
        """
        files = shards.complete(folder, suffix)
        with ThreadPoolExecutor() as threads:  # libsndfile decodes outside the interpreter's lock
            self.waves: Sequence[shards.Samples] = list(threads.map(shards.samples_of, files))
        numbers: dict[str, int] = {}
        kept: list[tuple[int, shards.Utterance]] = []
        place = 0
        for path, wave in zip(files, self.waves, strict=True):
            kept += [(place + each.start, each) for each in shards.utterances_of(path) if not each.held_out]
            place += len(wave)
        if not kept:
            raise SystemExit(f"{folder} holds no speech: run synthesize and pack, or lay the parts beside it")
        self.samples = place
        self.starts = np.array([start for start, _ in kept], np.int64)
        self.lengths = np.array([each.length for _, each in kept], np.int64)
        self.said = np.array([numbers.setdefault(each.text, len(numbers)) for _, each in kept], np.int64)
        self.texts = list(numbers)
        drawn = np.array([weights.get(each.voice.split()[0], 1.0) for _, each in kept])
        self.chance = np.cumsum(drawn / drawn.sum())

    @property
    def hours(self) -> float:
        """Of speech."""
        return float(self.lengths.sum()) / SAMPLE_RATE / 3600

    def draw(self, chance: np.random.Generator, count: int) -> NDArray[np.int64]:
        """So many utterances, by their weights."""
        drawn = np.searchsorted(self.chance, chance.random(count)).astype(np.int64)
        return np.minimum(drawn, len(self.lengths) - 1)


class Written:
    """Texts as token numbers, with and without punctuation, first in an answer or after another."""

    def __init__(self, texts: Sequence[str], tokenizer: Any) -> None:
        plain = [without_punctuation(text) for text in texts]
        self._forms = {
            (bare, later): [
                np.array(numbers, np.int64)
                for numbers in tokenizer([" " * later + text for text in form], add_special_tokens=False)["input_ids"]
            ]
            for bare, form in ((False, texts), (True, plain))
            for later in (False, True)
        }

    def tokens(self, text: int, *, bare: bool = False, later: bool = False) -> Tokens:
        """Of one text."""
        return self._forms[bare, later][text]
