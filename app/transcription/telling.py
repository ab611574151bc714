"""From the texts of segments, one after the other, to one transcript that grows."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

from app.transcription.joining import Joining
from app.transcription.transcript import Segment
from app.transcription.units import merge, settled_before_seam


class Audience(Protocol):
    """Learns of a transcript as it grows."""

    async def text(self, piece: str) -> None:
        """Take what is new of the text; all pieces join to the whole."""

    async def segment(self, segment: Segment) -> None:
        """Take a segment that is complete and not empty, after its text."""


NextPiece = Callable[[], Awaitable[str | None]]
"""Gives what is new of a segment's text, None at its end."""


class Telling:
    """Joins segments, mends the seams of those that overlap, and tells an audience what is settled.

    With an audience or without, by pieces or whole: the text is the same.

    Attributes:
        segments: complete and not empty.
    """

    def __init__(self, language: str | None, audience: Audience | None) -> None:
        self.segments: list[Segment] = []
        self._joining = Joining(language)
        self._audience = audience
        self._told = 0  # characters of the segment under way
        self._waiting: Segment | None = None  # its last words depend on the next segment

    @property
    def has_audience(self) -> bool:
        """Whether anybody wants to know before all is complete."""
        return self._audience is not None

    @property
    def text(self) -> str:
        """Of all segments that are complete."""
        return self._joining.text

    async def follow(self, next_piece: NextPiece, channel: int | None, *, overlaps_next: bool) -> None:
        """Tell the pieces of the next segment as they come."""
        text = ""
        while (piece := await next_piece()) is not None:
            text += piece
            if self._waiting is None:
                await self._tell(settled_before_seam(text) if overlaps_next else text, channel)

    async def complete(self, segment: Segment, *, overlaps_next: bool) -> None:
        """Take the next segment whole, whether or not it was followed."""
        if self._waiting is not None:
            before, self._waiting = self._waiting, None
            left, right = merge(before.text, segment.text)
            middle = (segment.start + before.end) / 2
            segment = replace(segment, text=right, start=middle)
            await self._finish(replace(before, text=left, end=middle))
        if overlaps_next:
            self._waiting = segment
            await self._tell(settled_before_seam(segment.text), segment.channel)
        else:
            await self._finish(segment)

    async def _finish(self, segment: Segment) -> None:
        await self._tell(segment.text, segment.channel)
        self._told = 0
        if segment.text:
            self.segments.append(segment)
            if self._audience is not None:
                await self._audience.segment(segment)

    async def _tell(self, text: str, channel: int | None) -> None:
        """Add what is new in `text`, which begins with all that was told of the same segment."""
        new = text[self._told :]
        if not new:
            return
        piece = self._joining.go_on(new) if self._told else self._joining.begin(new, channel)
        self._told = len(text)
        if self._audience is not None:
            await self._audience.text(piece)
