"""Sound files with faults of the kinds that break decoders, each from a seed.

A mutation knows the layout of its container: it changes a length, a count or an offset, or takes boxes, pages and
frames away, puts them twice, elsewhere, a thousand times or into each other. What knows nothing of it is here too:
random bytes behind a magic number, single bits, files that end early.
"""

import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tests import audio_factory as factory
from tests.hostile.layouts import READERS, Layout, layout, seal_ogg

SECONDS: Final = 1.5  # of speech in the files that are mutated
LARGEST: Final = 300_000  # bytes of a file that grows
GARBAGE: Final = "no container"


@dataclass(frozen=True, slots=True)
class Input:
    """One file.

    Attributes:
        container: a name of `READERS`, or GARBAGE.
        kind: what was done to it.
        seed: makes it again, see `mutated`.
    """

    container: str
    kind: str
    seed: int
    data: bytes


@functools.cache
def original(name: str) -> tuple[bytes, Layout]:
    """A file of a format as it should be."""
    speech = factory.clip("library-us-female.wav")[: round(SECONDS * factory.RATE)]
    data = factory.encode(speech, name)
    return data, layout(name, data)


Mutate = Callable[[random.Random, str, bytearray, Layout], bytearray]


def _numbers(rng: random.Random, _: str, data: bytearray, places: Layout) -> bytearray:
    """One to three lengths, counts, offsets or parameters lie."""
    for number in rng.sample(places.numbers, min(len(places.numbers), rng.choice((1, 1, 1, 2, 3)))):
        old, top = number.read(data), 1 << 8 * number.width
        lies = (0, 1, 2, old - 1, old + 1, old * 2, old // 2, -old, top - 1, top // 2, top // 2 - 1, len(data))
        number.write(data, rng.choice((*lies, rng.randrange(top))))
    return data


def _first_numbers(rng: random.Random, name: str, data: bytearray, places: Layout) -> bytearray:
    """The same near the beginning, where the form of the whole is told."""
    return _numbers(rng, name, data, Layout(places.numbers[:40], places.units))


def _without(rng: random.Random, _: str, data: bytearray, places: Layout) -> bytearray:
    """Units are gone; what counts or points to them does not know."""
    for start, end in sorted(rng.sample(places.units, min(len(places.units), rng.randint(1, 3))), reverse=True):
        del data[start:end]
    return data


def _again(rng: random.Random, _: str, data: bytearray, places: Layout) -> bytearray:
    """A unit comes many times."""
    start, end = rng.choice(places.units)
    times = min(rng.choice((1, 2, 30, 1000, 100_000)), LARGEST // (end - start))
    at = rng.choice((start, end))
    return data[:at] + data[start:end] * times + data[at:]


def _exchanged(rng: random.Random, _: str, data: bytearray, places: Layout) -> bytearray:
    """Two units are in each other's place."""
    (start, end), (first, last) = sorted((rng.choice(places.units), rng.choice(places.units)))
    if end > first:
        return data[:start] + data[first:last] + data[start:]
    return data[:start] + data[first:last] + data[end:first] + data[start:end] + data[last:]


def _nested(rng: random.Random, _: str, data: bytearray, places: Layout) -> bytearray:
    """The head of a unit before itself, over and over: each claims to hold the next."""
    start, end = rng.choice(places.units)
    head = data[start : start + rng.randint(1, min(end - start, 32))]
    times = min(rng.choice((10, 1000, 100_000)), LARGEST // len(head))
    return data[:start] + head * times + data[start:]


def _grafted(rng: random.Random, name: str, data: bytearray, places: Layout) -> bytearray:
    """A unit, or all, of another file in the middle."""
    other = rng.choice([each for each in READERS if each != name])
    theirs, their_places = original(other)
    start, end = rng.choice((rng.choice(their_places.units), (0, len(theirs))))
    _, at = rng.choice(places.units)
    return data[:at] + theirs[start:end] + data[at:]


def _truncated(rng: random.Random, _: str, data: bytearray, places: Layout) -> bytearray:
    """It ends at the edge of a unit, a few bytes beside it, or anywhere; or it begins there."""
    edge = rng.choice(rng.choice(places.units)) + rng.randint(-4, 4)
    at = rng.choice((edge, rng.randrange(len(data)), 1 << rng.randrange(len(data).bit_length())))
    return data[max(1, at) :] if rng.random() < 0.2 else data[: max(1, at)]


def _scratched(rng: random.Random, _: str, data: bytearray, places: Layout) -> bytearray:
    """Bits flip, in the heads of units rather than in the sound."""
    for _bit in range(rng.choice((1, 3, 10, 100))):
        start, end = rng.choice(places.units)
        at = rng.randrange(start, min(end, start + 64)) if rng.random() < 0.7 else rng.randrange(len(data))
        data[at] ^= 1 << rng.randrange(8)
    return data


def _overwritten(rng: random.Random, _: str, data: bytearray, places: Layout) -> bytearray:
    """A stretch is zeros, ones or noise."""
    start, end = rng.choice(places.units)
    length = rng.randint(1, max(1, min(end - start, 4096)))
    at = rng.randrange(start, end)
    data[at : at + length] = rng.choice((bytes(length), b"\xff" * length, rng.randbytes(length)))
    return data


MUTATIONS: dict[str, Mutate] = {
    "numbers": _numbers,
    "first numbers": _first_numbers,
    "units removed": _without,
    "units repeated": _again,
    "units exchanged": _exchanged,
    "nested": _nested,
    "grafted": _grafted,
    "truncated": _truncated,
    "bits flipped": _scratched,
    "overwritten": _overwritten,
}


def mutated(container: str, kind: str, seed: int) -> Input:
    """One file; the same for the same arguments."""
    rng = random.Random(f"{container} {kind} {seed}")
    data, places = original(container)
    broken = MUTATIONS[kind](rng, container, bytearray(data), places)
    if container in ("ogg", "opus") and rng.random() < 0.7:
        seal_ogg(broken)
    return Input(container, kind, seed, bytes(broken))


def noise(seed: int) -> Input:
    """Random bytes, as a rule behind the magic number of a container."""
    rng = random.Random(f"noise {seed}")
    magic = rng.choice((*factory.MAGICS, b""))
    return Input(GARBAGE, "random bytes", seed, magic + rng.randbytes(rng.choice((1, 7, 64, 1000, 30_000))))


def inputs(count: int, *, seed: int = 0) -> Iterator[Input]:
    """So many files: every container with every mutation in turn, and a tenth of random bytes."""
    pairs = [(container, kind) for container in READERS for kind in MUTATIONS]
    for index in range(count):
        if index % 10 == 9:
            yield noise(seed + index)
        else:
            container, kind = pairs[(index - index // 10) % len(pairs)]
            yield mutated(container, kind, seed + index)
