"""Speech to measure with: the demo clips, and cuts of them of which no two are alike, as files in memory."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import BinaryIO

import av
import numpy as np
from numpy.typing import NDArray

from benchmarks.containers import Container, encode
from engine.config import ROOT
from engine.interface import SAMPLE_RATE

DEMO = ROOT / "examples" / "audio"
GOLDEN = (5**0.5 - 1) / 2
SILVER = 2**0.5 - 1  # for lengths, so that they do not follow the starts

Samples = NDArray[np.int16]
"""16 kHz mono, shape = (n,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """One upload.

    Attributes:
        seconds: of audio.
        content: the whole file.
        spoken: what is said, where known.
    """

    name: str
    seconds: float
    content: bytes
    container: Container = "wav"
    spoken: str | None = None


class Cuts:
    """Cuts of some recordings, without end and without repeats.

    Servers keep what they computed for audio that they have seen (vLLM does, by the hash of the samples), so a clip
    sent twice would measure a cache. The starts follow the golden ratio: they cover the recordings evenly however many
    are taken, and are the same in every run. So do the lengths where they differ.
    """

    def __init__(self, recordings: Sequence[Samples], shortest: float, longest: float | None = None) -> None:
        """Set up.

        Args:
            recordings: to cut from, those that are long enough for a cut.
            shortest: seconds of a cut.
            longest: the same as the shortest when None.

        Raises:
            ValueError: no recording is long enough.
        """
        self._recordings = recordings
        self._shortest, self._longest = shortest, longest or shortest
        most = max((len(samples) for samples in recordings), default=0)
        if round(shortest * SAMPLE_RATE) < 1 or most < round(self._longest * SAMPLE_RATE):
            msg = f"no recording is {self._longest:g} s long: name longer ones, or take shorter clips"
            raise ValueError(msg)
        self._numbers = count()

    def take(self, number: int, container: Container = "wav") -> list[Clip]:
        """The next `number` cuts."""
        indices = list(islice(self._numbers, number))
        with ThreadPoolExecutor() as threads:  # FFmpeg's encoders run outside the interpreter's lock
            return list(threads.map(lambda index: self._cut(index, container), indices))

    def _cut(self, index: int, container: Container) -> Clip:
        seconds = self._shortest + index * SILVER % 1 * (self._longest - self._shortest)
        length = round(seconds * SAMPLE_RATE)
        rooms = [max(0, len(samples) - length + 1) for samples in self._recordings]
        ends = np.cumsum(rooms)  # of each recording's share of all possible starts
        start = int(index * GOLDEN % 1 * ends[-1])
        which = int(np.searchsorted(ends, start, side="right"))
        start -= int(ends[which - 1]) if which else 0
        samples = self._recordings[which][start : start + length]
        return clip(f"cut-{index}.{container}", samples, container=container)


def clip(name: str, samples: Samples, spoken: str | None = None, *, container: Container = "wav") -> Clip:
    """Write samples as a file in memory."""
    return Clip(
        name=name,
        seconds=len(samples) / SAMPLE_RATE,
        content=encode(samples, container),
        container=container,
        spoken=spoken,
    )


def read_recording(path: Path | BinaryIO, form: str | None = None) -> Samples:
    """Decode any audio file to 16 kHz mono.

    Args:
        form: FFmpeg's name of the container, where neither bytes nor a file's name tell it.

    Raises:
        av.FFmpegError: the file cannot be decoded.
    """
    resampler = av.AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)
    with av.open(path, "r", format=form) as container:
        frames = [part for frame in container.decode(audio=0) for part in resampler.resample(frame)]
    frames += resampler.resample(None)
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames])


def demo_clips() -> list[Clip]:
    """The demo clips, whole, with what is said in them; the shortest first."""
    transcripts = json.loads((DEMO / "transcripts.json").read_text(encoding="utf-8"))
    clips = [clip(name, read_recording(DEMO / name), entry["text"]) for name, entry in transcripts.items()]
    return sorted(clips, key=lambda each: each.seconds)
