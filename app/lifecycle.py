"""Where the service stands between its start and its end, and how requests learn of the end."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, TypeVar

from app.transcription.exceptions import NotReadyError, ShuttingDownError

Result = TypeVar("Result")

RETRY_SECONDS: Final = 5.0  # while loading or stalled: nobody can tell how long it takes


class Stage(Enum):
    """What may happen next."""

    LOADING = "loading"
    SERVING = "serving"
    STALLED = "stalled"  # serving, but nothing comes of it; may pass
    DRAINING = "draining"
    ENDED = "ended"


class LifeCycle:
    """Changed by the lifespan and its supervisor alone, read by all.

    Attributes:
        phase: what goes on, in words.
        progress: share of start-up that is done, 0 to 1.
        failed: the process has to end with an error, as start-up failed or the engine died.
    """

    def __init__(self) -> None:
        self.phase = "starting"
        self.progress = 0.0
        self.failed = False
        self._stage = Stage.LOADING
        self._deadline = 0.0  # of the drain, on the monotonic clock
        self._end: Exception | None = None
        self._ended = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Whether requests are served."""
        return self._stage is Stage.SERVING

    @property
    def stage(self) -> Stage:
        """What may happen next."""
        return self._stage

    @property
    def retry_seconds(self) -> float:
        """After which asking again makes sense, where it is not ready; whoever drains is gone then, or replaced."""
        return max(1.0, self._deadline - time.monotonic()) if self._stage is Stage.DRAINING else RETRY_SECONDS

    def load(self, phase: str, progress: float) -> None:
        """Say how far start-up is."""
        if self._stage is Stage.LOADING:
            self.phase, self.progress = phase, progress

    def serve(self) -> None:
        """Take requests, from the end of start-up on or again after a stall."""
        if self._stage in (Stage.LOADING, Stage.STALLED):
            self._stage, self.phase, self.progress = Stage.SERVING, "ready", 1.0

    def stall(self, phase: str) -> None:
        """Take no requests until `serve`; those that run go on."""
        if self._stage is Stage.SERVING:
            self._stage, self.phase = Stage.STALLED, phase

    def drain(self, seconds: float) -> None:
        """Take no requests any more; those that run have so long."""
        if self._stage is not Stage.ENDED:
            self._stage, self.phase = Stage.DRAINING, "draining"
            self._deadline = time.monotonic() + seconds

    def end(self, phase: str, error: Exception) -> None:
        """Fail all that still runs."""
        if self._stage is not Stage.ENDED:
            self._stage, self.phase, self.progress = Stage.ENDED, phase, 0.0
            self._end = error
            self._ended.set()

    def check(self) -> None:
        """Return if requests are served.

        Raises:
            NotReadyError: they are not; says when to come back.
        """
        if self._stage in (Stage.DRAINING, Stage.ENDED):
            msg = "the service is shutting down; ask again, and another instance or the next one will answer"
            raise ShuttingDownError(msg, retry_after=self.retry_seconds)
        if self._stage is not Stage.SERVING:
            msg = f"not ready: {self.phase} ({self.progress:.0%}); /health/ready tells when"
            raise NotReadyError(msg, retry_after=self.retry_seconds)

    async def ended(self, seconds: float) -> bool:
        """Wait for the end, but no longer; returns whether it has come."""
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    def interrupting(self, receive: Callable[[], Awaitable[Result]]) -> Callable[[], Awaitable[Result]]:
        """`receive` of a request that is served, but it raises the error of the end once that has come.

        Whatever a request does, it reads its body or watches for the client to leave: so it learns of this, too.
        """

        async def receive_or_end() -> Result:
            receiving = asyncio.ensure_future(receive())
            ending = asyncio.ensure_future(self._ended.wait())
            try:
                await asyncio.wait((receiving, ending), return_when=asyncio.FIRST_COMPLETED)
                if receiving.done():
                    return receiving.result()
                assert self._end is not None
                raise self._end
            finally:
                receiving.cancel()
                ending.cancel()

        return receive_or_end
