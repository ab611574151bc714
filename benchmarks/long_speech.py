"""Hours of speech of which every time is known, and an engine that knows where in them it is.

Each sample carries its place in its lowest two bits (at -84 dBFS, 16-bit files keep them), so what the engine is given
tells where it was cut. The engine "hears" a numbered word for each WORD_SECONDS of the recording; of a word that a cut
goes through it hears a scrap, as a model would. A number that is missing or comes twice is a fault of the seams.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from benchmarks.clips import DEMO, Samples, read_recording
from engine.interface import SAMPLE_RATE, SpeechRequest, Waveform
from engine.scripted import Act

WORD_SECONDS = 0.4
GAP_SECONDS = 3.0  # ends a segment, so that each recording has its own
BREATHLESS_SECONDS = 70.0
LOUD = 0.3  # of a passage's level: no pause
_FRAME = 32  # samples that one number of a frame is spread over
_NAMES = (
    "library-us-female.wav",
    "report-us-male.wav",
    "bridge-uk-female.wav",
    "number-uk-male.wav",
    "test-flite-male.wav",
    "jfk-human.wav",
    "harbor-story-long.flac",
)
BREATHLESS = "breathless"
CLEAR_TEXTS = (*_NAMES[:5], "harbor-story-long.flac")  # that the bundled model knows for certain
CLEAR_EDGES = _NAMES[:5]  # silence around the words; where noise surrounds them their edges are a matter of opinion


@dataclass(frozen=True, slots=True)
class Passage:
    """A recording's place in the whole.

    Attributes:
        start, end: its first sample and the one after its last.
    """

    name: str
    start: int
    end: int


def recordings() -> dict[str, Samples]:
    """What the whole is made of, by name: the demo clips, and speech without any pause."""
    clips = {name: read_recording(DEMO / name) for name in _NAMES}
    return {**clips, BREATHLESS: breathless(list(clips.values()), BREATHLESS_SECONDS)}


def breathless(clips: Sequence[Samples], seconds: float) -> Samples:
    """Speech of several voices from which every pause has been cut, shape = (n,)."""
    voiced = []
    for samples in clips:
        frames = samples[: len(samples) // 160 * 160].reshape(-1, 160)
        levels = frames.std(axis=1)
        voiced.append(frames[levels > 0.08 * levels.max()].reshape(-1))
    speech = np.concatenate(voiced)
    n_samples = round(seconds * SAMPLE_RATE)
    return np.tile(speech, -(-n_samples // len(speech)))[:n_samples]


def gap() -> Samples:
    """The silence between passages."""
    return np.zeros(round(GAP_SECONDS * SAMPLE_RATE), np.int16)


def assemble(sources: dict[str, Samples], seconds: float) -> Iterator[tuple[Passage, Samples]]:
    """The passages of a recording of at most so many seconds, with the gap before each as part of its samples."""
    place = 0
    for name in cycle(sources):
        samples = np.concatenate([gap(), sources[name]])
        if place + len(samples) > seconds * SAMPLE_RATE:
            return
        start, place = place + len(samples) - len(sources[name]), place + len(samples)
        yield Passage(name, start, place), samples


def mark(samples: Samples, start: int = 0) -> Samples:
    """Write each sample's place into its lowest two bits.

    Args:
        start: place of the first sample in the whole.
    """
    places = np.arange(start, start + len(samples))
    frames, offsets = np.divmod(places, _FRAME)
    bits = (frames >> offsets) & 1 | (offsets == 0) << 1
    marked: Samples = ((samples & ~3) | bits).astype(np.int16)
    return marked


def place_of(waveform: Waveform) -> int:
    """Place of the first sample of a marked waveform of at least 64 samples."""
    bits = np.round(waveform[: 2 * _FRAME] * 32768).astype(np.int64) & 3
    (first,) = np.flatnonzero(bits[:_FRAME] >> 1)
    frame = int(np.sum((bits[first : first + _FRAME] & 1) << np.arange(_FRAME)))
    return frame * _FRAME - int(first)


def hear_numbers(request: SpeechRequest) -> Act:
    """The script of an engine for marked recordings; says nothing to what is not marked, such as the warm-up."""
    try:
        place = place_of(request.waveform)
    except ValueError:
        return Act()
    start, end = place / SAMPLE_RATE, (place + len(request.waveform)) / SAMPLE_RATE
    first, last = int(np.ceil(start / WORD_SECONDS)), int(end / WORD_SECONDS)
    words = [f"word{number}" for number in range(first, last)]
    if start < first * WORD_SECONDS:
        words.insert(0, "ord")
    if end > last * WORD_SECONDS:
        words.append("wo")
    return Act(words=tuple(words))


def numbers_spoken(samples: Samples, start: int) -> list[int]:
    """The numbers of the words during which a passage is loud all the time: those that nobody may lose.

    Args:
        start: place of its first sample in the whole.
    """
    quarter = round(WORD_SECONDS / 4 * SAMPLE_RATE)
    skipped = -start % (4 * quarter)  # up to the first word that begins in the passage
    levels = samples[skipped:][: (len(samples) - skipped) // (4 * quarter) * 4 * quarter].reshape(-1, quarter)
    loud = levels.astype(np.float32).std(axis=1) > LOUD * samples.std()
    first = (start + skipped) // (4 * quarter)
    return [first + int(word) for word in np.flatnonzero(loud.reshape(-1, 4).all(axis=1))]


def numbers_in(text: str) -> list[int]:
    """The numbers of the words that were heard whole."""
    return [int(word.removeprefix("word")) for word in text.split() if word.startswith("word")]
