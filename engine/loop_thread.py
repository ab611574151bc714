"""An event loop in a thread of its own, and the bridge to it from another loop."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import uvloop

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Item(Generic[T]):
    value: T


@dataclass(frozen=True, slots=True)
class _End:
    error: Exception | None


class LoopThread:
    """Keeps what blocks or computes on an event loop away from the loop that serves HTTP."""

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine over there; cancelling here cancels it there."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def iterate(self, source: Callable[[], AsyncIterator[T]]) -> AsyncGenerator[T, None]:
        """Yield what an asynchronous iterator over there yields; leaving the iteration cancels it there."""
        here = asyncio.get_running_loop()
        arrived: asyncio.Queue[_Item[T] | _End] = asyncio.Queue()

        async def pump() -> None:
            error = None
            try:
                async for value in source():
                    here.call_soon_threadsafe(arrived.put_nowait, _Item(value))
            except Exception as raised:  # handed over, not swallowed
                error = raised
            here.call_soon_threadsafe(arrived.put_nowait, _End(error))

        pumping = asyncio.run_coroutine_threadsafe(pump(), self._loop)
        try:
            while isinstance(message := await arrived.get(), _Item):
                yield message.value
            if message.error is not None:
                raise message.error
        finally:
            pumping.cancel()

    def stop(self, seconds: float = 5.0) -> None:
        """End the loop and its thread; blocks until what runs at this moment yields.

        Args:
            seconds: after which a thread that does not, because it loads a model, is left to the end of the process.
        """
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(seconds)
            if not self._thread.is_alive():
                self._loop.close()
