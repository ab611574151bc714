"""Speech on disk: one audio file of many utterances, and beside it a line of JSON for each."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from engine.interface import SAMPLE_RATE

Samples = NDArray[np.int16]
"""16 kHz mono, shape = (n,)."""

GAP = SAMPLE_RATE // 20  # silence between utterances: what a codec smears stays with its own
BLOCK = 30 * SAMPLE_RATE  # libsndfile's Opus and Vorbis encoders overflow their stack on long single writes


@dataclass(frozen=True, slots=True, kw_only=True)
class Utterance:
    """One sentence, spoken.

    Attributes:
        start, length: in samples of the shard's audio.
        source: of the text, a name of the configuration.
        held_out: for evaluation; training leaves it out.
        codec: that it went through, if any.
    """

    text: str
    voice: str
    source: str
    start: int
    length: int
    held_out: bool = False
    codec: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """An utterance that is not on disk yet."""

    samples: Samples
    text: str
    voice: str
    source: str
    held_out: bool = False
    codec: str | None = None


def listing(audio: Path) -> Path:
    """The file of utterances beside an audio file."""
    return audio.with_suffix(".jsonl")


def write(audio: Path, spoken: Sequence[Spoken], *, compression: float | None = None) -> list[Utterance]:
    """Write a shard, FLAC or Opus by its suffix.

    The listing comes last and at once, so a shard that has one is whole.

    Args:
        compression: libsndfile's level from 0 to 1, for Opus.
    """
    utterances, pieces, place = [], [], 0
    for each in spoken:
        utterances.append(
            Utterance(
                text=each.text,
                voice=each.voice,
                source=each.source,
                start=place,
                length=len(each.samples),
                held_out=each.held_out,
                codec=each.codec,
            )
        )
        pieces += [each.samples, np.zeros(GAP, np.int16)]
        place += len(each.samples) + GAP
    audio.parent.mkdir(parents=True, exist_ok=True)
    samples = np.concatenate(pieces) if pieces else np.zeros(0, np.int16)
    form = {"format": "OGG", "subtype": "OPUS"} if audio.suffix == ".opus" else {"format": "FLAC"}
    choice = {} if compression is None else {"compression_level": compression}
    with soundfile.SoundFile(audio, "w", SAMPLE_RATE, 1, **form, **choice) as file:
        for start in range(0, len(samples), BLOCK):
            file.write(samples[start : start + BLOCK])
    partial = audio.with_suffix(".partial")
    partial.write_text("".join(json.dumps(asdict(each)) + "\n" for each in utterances), encoding="utf-8")
    partial.replace(listing(audio))
    return utterances


def utterances_of(audio: Path) -> list[Utterance]:
    """What a shard says."""
    return [Utterance(**json.loads(line)) for line in listing(audio).read_text(encoding="utf-8").splitlines()]


def samples_of(audio: Path) -> Samples:
    """All of a shard's audio, at least as long as its utterances say."""
    samples, rate = soundfile.read(audio, dtype="int16")
    if rate != SAMPLE_RATE:
        msg = f"{audio}: {rate} Hz, expected {SAMPLE_RATE}"
        raise ValueError(msg)
    ends = max((each.start + each.length for each in utterances_of(audio)), default=0)
    whole: Samples = np.pad(samples, (0, max(0, ends - len(samples))))
    return whole


def read(audio: Path) -> list[Spoken]:
    """A shard as it was written; an Opus one as its decoder gives it."""
    samples = samples_of(audio)
    return [
        Spoken(
            samples=samples[each.start : each.start + each.length],
            text=each.text,
            voice=each.voice,
            source=each.source,
            held_out=each.held_out,
            codec=each.codec,
        )
        for each in utterances_of(audio)
    ]


def complete(folder: Path, suffix: str) -> list[Path]:
    """Audio files of the whole shards in a folder and below, in order."""
    return sorted(path for path in folder.rglob(f"*{suffix}") if listing(path).exists())
