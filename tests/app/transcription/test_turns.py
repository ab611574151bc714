import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from app.transcription.admission import Share
from app.transcription.turns import Turns


def make(places: int, long_places: int | None = None) -> Turns:
    return Turns(places=places, long_places=long_places or places, long_seconds=60)


def share(seconds: float = 10.0) -> Share:
    return Share(seconds, lambda _: None)


class Order:
    """Notes who was given a turn; each keeps it until told."""

    def __init__(self, turns: Turns) -> None:
        self.given: list[str] = []
        self._turns = turns
        self._ends: list[asyncio.Event] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def ask(self, name: str, by: Share) -> asyncio.Task[None]:
        async def take() -> None:
            async with self._turns.turn(by):
                self.given.append(name)
                end = asyncio.Event()
                self._ends.append(end)
                await end.wait()

        self._tasks.append(asyncio.create_task(take()))
        await self.settle()
        return self._tasks[-1]

    async def end_first(self) -> None:
        self._ends.pop(0).set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def ordering(turns: Turns) -> AsyncIterator[Order]:
    order = Order(turns)
    try:
        yield order
    finally:
        await order.close()


async def test_a_file_that_has_just_come_goes_before_one_that_has_turns() -> None:
    turns, long, clip = make(2), share(), share()
    async with ordering(turns) as order:
        for name in ("long 0", "long 1", "long 2", "long 3"):
            await order.ask(name, long)
        await order.ask("clip", clip)
        assert order.given == ["long 0", "long 1"]
        await order.end_first()
        assert order.given[2:] == ["clip"]
        await order.end_first()
        assert order.given[3:] == ["long 2"]


async def test_files_take_turns_and_their_segments_keep_their_order() -> None:
    turns, files = make(1), {name: share() for name in "abc"}
    async with ordering(turns) as order:
        for name, by in files.items():
            for index in range(3):
                await order.ask(f"{name}{index}", by)
        for _ in range(8):
            await order.end_first()
        assert order.given == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]


async def test_long_files_leave_places_alone() -> None:
    turns, long, clip = make(4, long_places=2), share(61), share(60)
    async with ordering(turns) as order:
        for index in range(4):
            await order.ask(f"long {index}", long)
        for index in range(3):
            await order.ask(f"clip {index}", clip)
        assert order.given == ["long 0", "long 1", "clip 0", "clip 1"]
        assert (turns.held, turns.waiting) == (4, 3)
        await order.end_first()
        assert order.given[4:] == ["long 2"]


async def test_whoever_leaves_the_queue_or_the_engine_leaves_nothing() -> None:
    turns = make(1)
    async with ordering(turns) as order:
        held = await order.ask("held", share())
        waiting = await order.ask("waiting", share())
        await order.ask("next", share())
        waiting.cancel()
        held.cancel()
        await order.settle()
        assert order.given == ["held", "next"]
    assert (turns.held, turns.waiting) == (0, 0)


@pytest.mark.parametrize("first", ["the holder ends", "the waiter leaves"])
async def test_leaving_at_the_moment_of_ones_turn_leaves_nothing(first: str) -> None:
    """Both in one step of the event loop, so that nobody has come round to anything between them."""
    turns = make(1)
    async with AsyncExitStack() as held:
        await held.enter_async_context(turns.turn(share()))
        waiting = asyncio.create_task(turns.turn(share()).__aenter__())
        await asyncio.sleep(0)
        if first == "the waiter leaves":
            waiting.cancel()
        await held.aclose()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert (turns.held, turns.waiting) == (0, 0)
    async with asyncio.timeout(5), turns.turn(share()):
        assert turns.held == 1


async def test_an_engine_with_work_is_quiet_since_something_left_it() -> None:
    turns = make(2)
    assert turns.quiet_seconds == 0
    async with turns.turn(share()):
        await asyncio.sleep(0.05)
        assert turns.quiet_seconds >= 0.05
        async with turns.turn(share()):
            pass
        assert turns.quiet_seconds < 0.05
    assert turns.quiet_seconds == 0
    assert turns.finished == 2
