"""Who may use the engine next: requests take turns by segments."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from app.transcription.admission import Share


@dataclass(eq=False, slots=True)
class _Waiter:
    share: Share
    granted: asyncio.Future[None]
    arrived: float = field(default_factory=time.monotonic)


class Turns:
    """Places in the engine, one for each segment that it holds.

    A free place goes to the file that has the fewest, of several to the one that was served the longest ago: a clip
    that has just come waits for one segment of somebody to end, and not for the files before it. Long files leave
    some places alone: else all would be theirs when a clip comes, and each step of the engine as slow as they make it.

    Attributes:
        held: places that are taken.
        finished: segments that have left the engine so far.
    """

    def __init__(self, *, places: int, long_places: int, long_seconds: float) -> None:
        """Set up.

        Args:
            places: in all.
            long_places: of them, how many files longer than `long_seconds` may have together.
        """
        self.held = 0
        self.finished = 0
        self._long_held = 0
        self._places = places
        self._long_places = long_places
        self._long_seconds = long_seconds
        self._waiters: list[_Waiter] = []
        self._moved = time.monotonic()  # when a segment left, or the first one came

    @property
    def waiting(self) -> int:
        """Segments that wait for a place."""
        return len(self._waiters)

    @property
    def quiet_seconds(self) -> float:
        """How long the engine has had work and finished none of it; 0 where it has none."""
        return time.monotonic() - self._moved if self.held else 0.0

    @asynccontextmanager
    async def turn(self, share: Share) -> AsyncIterator[None]:
        """Hold a place for one segment of a file."""
        await self._take(share)
        try:
            yield
        finally:
            self.finished += 1
            self._moved = time.monotonic()
            self._leave(share)

    async def _take(self, share: Share) -> None:
        waiter = _Waiter(share, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self._grant()
        try:
            await waiter.granted
        except asyncio.CancelledError:
            if waiter.granted.done() and not waiter.granted.cancelled():  # at the same moment
                self._leave(share)
            else:
                self._waiters.remove(waiter)
            raise

    def _grant(self) -> None:
        while self.held < self._places and (free := [each for each in self._waiters if self._may_go(each)]):
            waiter = min(free, key=lambda each: (each.share.held, each.share.served, each.arrived))
            self._waiters.remove(waiter)
            if not self.held:
                self._moved = time.monotonic()
            self.held += 1
            self._long_held += self._is_long(waiter.share)
            waiter.share.held += 1
            waiter.share.served = time.monotonic()
            waiter.granted.set_result(None)

    def _leave(self, share: Share) -> None:
        self.held -= 1
        self._long_held -= self._is_long(share)
        share.held -= 1
        self._grant()

    def _may_go(self, waiter: _Waiter) -> bool:
        if waiter.granted.cancelled():  # it has not come round to leaving the queue
            return False
        return not self._is_long(waiter.share) or self._long_held < self._long_places

    def _is_long(self, share: Share) -> bool:
        return share.total > self._long_seconds
