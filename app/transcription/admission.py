"""A bounded number of requests runs, a bounded number waits, the rest are refused at once."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from app.transcription.exceptions import Limit, OverloadedError


class Admission:
    """Permits to decode and transcribe; taken before any work on an upload begins."""

    def __init__(self, *, running: int, queued: int) -> None:
        self._limiter = anyio.CapacityLimiter(running)
        self._running = running
        self._queued = queued
        self._waiting = 0
        self._mean_seconds = 1.0  # of one request, smoothed

    @property
    def admitted(self) -> int:
        """How many hold a permit or wait for one."""
        return int(self._limiter.borrowed_tokens) + self._waiting

    @property
    def limit(self) -> int:
        """How many may, before one is refused."""
        return self._running + self._queued

    @asynccontextmanager
    async def permit(self) -> AsyncIterator[float]:
        """Hold a permit; gives the seconds waited for it.

        Raises:
            OverloadedError: when as many wait as may.
        """
        if self._limiter.available_tokens < 1 and self._waiting >= self._queued:
            limit = Limit("queued requests", self._queued, "OMNIHEAR_CONCURRENCY_QUEUED_REQUESTS")
            retry_after = self._mean_seconds * (1 + self._waiting) / self._running
            raise OverloadedError("the queue is full; ask again later", retry_after=retry_after, limit=limit)
        arrived = time.monotonic()
        self._waiting += 1
        try:
            await self._limiter.acquire_on_behalf_of(token := object())
        finally:
            self._waiting -= 1
        admitted = time.monotonic()
        try:
            yield admitted - arrived
        finally:
            self._limiter.release_on_behalf_of(token)
            self._mean_seconds += 0.1 * (time.monotonic() - admitted - self._mean_seconds)
