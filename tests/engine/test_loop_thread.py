import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from engine.loop_thread import LoopThread


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("test")
    yield thread
    thread.stop()


async def test_runs_elsewhere_and_brings_back_results_and_errors(thread: LoopThread) -> None:
    async def where() -> str:
        return threading.current_thread().name

    async def fail() -> None:
        raise LookupError("there")

    assert await thread.run(where()) == "test"
    with pytest.raises(LookupError, match="there"):
        await thread.run(fail())


async def test_iterates_in_order_and_raises_at_the_end(thread: LoopThread) -> None:
    async def numbers() -> AsyncIterator[int]:
        for number in range(1000):
            yield number
        raise LookupError("after")

    outputs = thread.iterate(numbers)

    assert [await anext(outputs) for _ in range(1000)] == list(range(1000))
    with pytest.raises(LookupError, match="after"):
        await anext(outputs)


async def test_leaving_an_iteration_cancels_it_there(thread: LoopThread) -> None:
    cancelled = threading.Event()

    async def endless() -> AsyncIterator[int]:
        try:
            yield 0
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    outputs = thread.iterate(endless)
    assert await anext(outputs) == 0
    await outputs.aclose()

    assert await asyncio.to_thread(cancelled.wait, 5)


async def test_cancelling_a_waiting_reader_cancels_the_source(thread: LoopThread) -> None:
    entered, cancelled = threading.Event(), threading.Event()

    async def endless() -> AsyncIterator[int]:
        try:
            entered.set()
            await asyncio.Event().wait()
            yield 0
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def read() -> None:
        async for _ in thread.iterate(endless):
            pass

    reading = asyncio.create_task(read())
    await asyncio.to_thread(entered.wait, 5)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading

    assert await asyncio.to_thread(cancelled.wait, 5)


async def test_what_does_not_yield_is_left_behind() -> None:
    thread, begun, release = LoopThread("blocked"), threading.Event(), threading.Event()

    async def block() -> None:
        begun.set()
        release.wait()

    running = asyncio.create_task(thread.run(block()))
    await asyncio.to_thread(begun.wait)
    running.cancel()
    await asyncio.to_thread(thread.stop, 0.1)
    assert not release.is_set()
    release.set()
    await asyncio.to_thread(thread.stop)
