"""Segments become one text: the same by pieces and whole, over seams and channels."""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from app.transcription.telling import Telling
from app.transcription.transcript import Segment

Part = tuple[str, bool]  # text of a segment, and whether it overlaps the next


@dataclass
class Ears:
    pieces: list[str] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)

    async def text(self, piece: str) -> None:
        self.pieces.append(piece)

    async def segment(self, segment: Segment) -> None:
        self.segments.append(segment)


def segments(parts: Sequence[Part]) -> list[tuple[Segment, bool]]:
    """Ten seconds each, those that overlap by two."""
    start, result = 0.0, []
    for index, (text, overlaps) in enumerate(parts):
        result.append((Segment(index=index, start=start, end=start + 10, text=text), overlaps))
        start += 8 if overlaps else 10
    return result


async def tell(parts: Sequence[Part], ears: Ears | None) -> Telling:
    telling = Telling("en", ears)
    for segment, overlaps in segments(parts):
        if ears is not None:
            words = segment.text.split(" ") if segment.text else []
            pieces: list[str | None] = [*(word if n == 0 else f" {word}" for n, word in enumerate(words)), None]
            told: asyncio.Queue[str | None] = asyncio.Queue()
            for piece in pieces:
                told.put_nowait(piece)
            await telling.follow(told.get, None, overlaps_next=overlaps)
        await telling.complete(segment, overlaps_next=overlaps)
    return telling


texts = st.lists(st.sampled_from(["one", "two", "three", "four", "a", "b"]), max_size=30).map(" ".join)


@given(st.lists(st.tuples(texts, st.booleans()), max_size=5))
def test_pieces_and_wholes_end_in_the_same_text(parts: list[Part]) -> None:
    parts = [*parts, ("the end", False)]

    async def both() -> tuple[Telling, Telling, Ears]:
        ears = Ears()
        return await tell(parts, None), await tell(parts, ears), ears

    whole, followed, ears = asyncio.run(both())

    assert whole.text == followed.text == "".join(ears.pieces)
    assert whole.segments == followed.segments == ears.segments
    assert whole.text == " ".join(segment.text for segment in whole.segments)
    assert all(segment.text for segment in whole.segments)
    assert "" not in ears.pieces
    assert all(left.end <= right.start for left, right in itertools.pairwise(whole.segments))


async def test_a_seam_is_told_only_when_both_sides_are_known() -> None:
    ears = Ears()
    long = " ".join(f"w{n}" for n in range(20))
    telling = await tell([(f"{long} cu", True)], ears)
    known = "".join(ears.pieces)

    await telling.complete(Segment(index=1, start=8.0, end=18.0, text="w18 w19 cut here"), overlaps_next=False)

    assert known == "w0 w1 w2 w3 w4"
    assert "".join(ears.pieces) == f"{long} cut here"
    assert [(segment.start, segment.end) for segment in ears.segments] == [(0.0, 9.0), (9.0, 18.0)]
