"""Speech to measure with: the demo clips, and cuts of them of which no two are alike, as 16-bit wav files in memory."""

import io
import json
import wave
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from engine.config import ROOT
from engine.interface import SAMPLE_RATE

DEMO = ROOT / "examples" / "audio"
GOLDEN = (5**0.5 - 1) / 2

Samples = NDArray[np.int16]
"""16 kHz mono, shape = (n,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """One upload.

    Attributes:
        seconds: of audio.
        wav: the whole file.
        spoken: what is said, where known.
    """

    name: str
    seconds: float
    wav: bytes
    spoken: str | None = None


class Cuts:
    """Equally long cuts of some recordings, without end and without repeats.

    Servers keep what they computed for audio that they have seen (vLLM does, by the hash of the samples), so a clip
    sent twice would measure a cache. The starts follow the golden ratio: they cover the recordings evenly however many
    are taken, and are the same in every run.
    """

    def __init__(self, recordings: Sequence[Samples], seconds: float) -> None:
        self._recordings = recordings
        self._length = round(seconds * SAMPLE_RATE)
        rooms = [max(0, len(samples) - self._length + 1) for samples in recordings]
        self._ends = np.cumsum(rooms)  # of each recording's share of all possible starts
        if self._length < 1 or not rooms or not self._ends[-1]:
            msg = f"no recording is {seconds:g} s long: name longer ones, or take shorter clips"
            raise ValueError(msg)
        self._numbers = count()

    def take(self, number: int) -> list[Clip]:
        """The next `number` cuts."""
        return [self._cut(index) for index in islice(self._numbers, number)]

    def _cut(self, index: int) -> Clip:
        start = int(index * GOLDEN % 1 * self._ends[-1])
        which = int(np.searchsorted(self._ends, start, side="right"))
        start -= int(self._ends[which - 1]) if which else 0
        return clip(f"cut-{index}.wav", self._recordings[which][start : start + self._length])


def clip(name: str, samples: Samples, spoken: str | None = None) -> Clip:
    """Write samples as a wav file in memory."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(SAMPLE_RATE)
        writer.writeframes(samples.astype("<i2").tobytes())
    return Clip(name=name, seconds=len(samples) / SAMPLE_RATE, wav=file.getvalue(), spoken=spoken)


def read_recording(path: Path) -> Samples:
    """Decode any audio file to 16 kHz mono.

    Raises:
        av.FFmpegError: the file cannot be decoded.
    """
    resampler = av.AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)
    with av.open(path) as container:
        frames = [part for frame in container.decode(audio=0) for part in resampler.resample(frame)]
    frames += resampler.resample(None)
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames])


def demo_clips() -> list[Clip]:
    """The demo clips, whole, with what is said in them; the shortest first."""
    transcripts = json.loads((DEMO / "transcripts.json").read_text(encoding="utf-8"))
    clips = [clip(name, read_recording(DEMO / name), entry["text"]) for name, entry in transcripts.items()]
    return sorted(clips, key=lambda each: each.seconds)
