"""How much the service takes on: a bounded number of requests and of audio seconds; the rest is refused at once.

A place is taken before the body is read, as bodies take disk. How long the audio is nobody knows then: it is taken for
speech at 128 kbit/s, the rate of a common MP3 (16 kB a second), until decoding tells. A file of speech at 32 kbit/s is
four times as long as it was taken for, so the bound may be passed by what is already here; then the next are refused
until that is worked off. Uncompressed sound is taken for longer than it is. What has been transcribed counts no more.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from app.transcription.clients import Clients
from app.transcription.exceptions import Limit, OverloadedError

BYTES_PER_SECOND: Final = 16_000  # of an upload whose length is not known yet
MEMORY_SECONDS: Final = 30.0  # of work, after which a measurement of the rate counts for 1/e
FIRST_RATE: Final = 10.0  # audio seconds a second, until it is measured: what two cores do at the least
LONGEST_WAIT: Final = 3600.0  # seconds; who is told more does not come back


class Share:
    """One file's part of the work.

    Attributes:
        seconds: of audio that are thought to be left.
        total: of audio in all.
        held: places in the engine that it has.
        served: when it was last given one, on the monotonic clock; at first when it arrived.
    """

    def __init__(self, seconds: float, finish: Callable[[float], None]) -> None:
        self.seconds = self.total = seconds
        self.held = 0
        self.served = time.monotonic()
        self._finish = finish

    def expect(self, seconds: float) -> None:
        """Learn how long the file is; before any of it is done."""
        self.seconds = self.total = seconds

    def done(self, seconds: float) -> None:
        """Note that a stretch of it has been transcribed, or needs no transcribing."""
        seconds = min(seconds, self.seconds)
        self.seconds -= seconds
        self._finish(seconds)


class Ticket:
    """A request's place; holds one share for each file that is worked on."""

    def __init__(self, seconds: float, finish: Callable[[float], None], client: str | None) -> None:
        self.client = client
        self._unassigned = seconds
        self._shares: set[Share] = set()
        self._finish = finish

    @property
    def seconds(self) -> float:
        """Of audio that are left in all."""
        return self._unassigned + sum(share.seconds for share in self._shares)

    @contextmanager
    def share(self, upload: Path) -> Iterator[Share]:
        """Take up the work on one file of the request."""
        share = Share(upload.stat().st_size / BYTES_PER_SECOND, self._finish)
        self._unassigned = max(0.0, self._unassigned - share.seconds)
        self._shares.add(share)
        try:
            yield share
        finally:
            self._shares.discard(share)


class Rate:
    """Audio seconds that the service works off in a second, when there is more to do than it can.

    Both sums forget exponentially, by the time that was measured and not by the clock: what was seen under load stays
    known through a quiet night.
    """

    def __init__(self) -> None:
        self._time = 1.0  # seconds of work; a weak first guess
        self._audio = FIRST_RATE
        self._last = time.monotonic()
        self._busy = False

    @property
    def value(self) -> float:
        """Audio seconds a second."""
        return self._audio / self._time

    def note(self, audio: float, *, busy: bool) -> None:
        """Count what was finished since the last call, if all was busy then; `busy` says what is now."""
        now = time.monotonic()
        if self._busy:
            fade = math.exp((self._last - now) / MEMORY_SECONDS)
            self._time = self._time * fade + now - self._last
            self._audio = self._audio * fade + audio
        self._last, self._busy = now, busy


class Admission:
    """Gives places, or says when to come back.

    Attributes:
        rate: at which work is done.
    """

    def __init__(
        self,
        *,
        max_requests: int,
        max_audio_seconds: float,
        segment_seconds: float,
        clients: Clients,
        waiting: Callable[[], int],
    ) -> None:
        """Set up.

        Args:
            max_requests: at once, whatever they do.
            max_audio_seconds: of all requests, as far as they are not transcribed yet. A single request always fits.
            segment_seconds: of a usual segment, by which requests take turns.
            clients: limits of single ones.
            waiting: how much work waits for a worker or the engine.
        """
        self.rate = Rate()
        self._max_requests = max_requests
        self._max_audio_seconds = max_audio_seconds
        self._segment_seconds = segment_seconds
        self._clients = clients
        self._waiting = waiting
        self._tickets: set[Ticket] = set()

    @property
    def requests(self) -> int:
        """That have a place."""
        return len(self._tickets)

    @property
    def audio_seconds(self) -> float:
        """That are left to do, as far as is known."""
        return sum(ticket.seconds for ticket in self._tickets)

    @contextmanager
    def enter(self, *, client: str | None, n_bytes: int) -> Iterator[Ticket]:
        """Hold a place.

        Args:
            client: who asks, for limits of single clients; None where nobody says.
            n_bytes: that the body is announced to have, 0 if it is not.

        Raises:
            OverloadedError: there is none, or the client has had its part.
        """
        seconds = n_bytes / BYTES_PER_SECOND
        self._check(seconds)
        self._clients.enter(client, wait=lambda: self._until_one_leaves(client))
        ticket = Ticket(seconds, self._finish, client)
        self._tickets.add(ticket)
        self.rate.note(0.0, busy=self._waiting() > 0)
        try:
            yield ticket
        finally:
            self._tickets.discard(ticket)
            self._clients.leave(client)

    def _finish(self, seconds: float) -> None:
        self.rate.note(seconds, busy=self._waiting() > 0)

    def _check(self, seconds: float) -> None:
        if len(self._tickets) >= self._max_requests:
            limit = Limit("requests at once", self._max_requests, "OMNIHEAR_CONCURRENCY_MAX_REQUESTS")
            msg = f"{self._max_requests} requests are being served or wait; ask again later"
            raise OverloadedError(msg, retry_after=self._until_one_leaves(None), limit=limit)
        excess = self.audio_seconds + seconds - self._max_audio_seconds
        if self._tickets and excess > 0:
            limit = Limit("audio seconds that wait", self._max_audio_seconds, "OMNIHEAR_CONCURRENCY_MAX_AUDIO_SECONDS")
            msg = f"{self.audio_seconds:.0f} s of audio are being transcribed or wait; ask again later"
            left = min(excess, self.audio_seconds)
            raise OverloadedError(msg, retry_after=self._wait(left), limit=limit)

    def _until_one_leaves(self, client: str | None) -> float:
        """Seconds until the first request, or the first of a client's, is done.

        Requests take turns by segments. One of a single segment goes when that is done; a longer one when all others
        have had as much of the engine, but for half a segment on the average.
        """
        first = min(
            (ticket.seconds for ticket in self._tickets if client in (None, ticket.client)),
            default=self._segment_seconds,
        )
        if first <= self._segment_seconds:
            return self._wait(first)
        others = first - self._segment_seconds / 2
        return self._wait(self._segment_seconds / 2 + sum(min(others, ticket.seconds) for ticket in self._tickets))

    def _wait(self, audio: float) -> float:
        return min(LONGEST_WAIT, audio / self.rate.value)
