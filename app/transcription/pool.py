"""Processes that run functions one at a time, and that may die at it.

Written here because what exists shares locks or a loop among its workers. `anyio.to_process` loses track of a worker
whose start is cancelled. `pebble` and `concurrent.futures` have all workers read from one pipe under a lock, and
stand still when a worker is killed while it holds it (noxdafox/pebble, issue 163); theirs also outlive a parent that is
killed. Here a worker has a socket of its own and is killed by a descriptor that can mean no other process.
"""

import asyncio
import contextlib
import os
import select
import signal
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import anyio

from app.transcription import wire
from app.transcription.exceptions import PreparationError
from app.transcription.nursery import LONGEST_REASON, Nursery, nursery
from engine import messages

Result = TypeVar("Result")
Answer = Callable[[Any], Any]
"""Answers a question that a function asks while it runs; must not block."""

START_SECONDS: Final = 60.0  # on a machine that is busy with something else; a second otherwise


class WorkerLostError(Exception):
    """A worker died at its work."""


class Pool:
    """At most `size` workers. A call waits in order of arrival; one that is cancelled or too slow costs its worker.

    Attributes:
        restarts: workers that were lost or killed and had to be replaced, so far.
        waiting: calls that wait for a worker.
    """

    def __init__(self, size: int, *, born_by: Nursery | None = None) -> None:
        self.restarts = 0
        self.waiting = 0
        self._size = size
        self._nursery = born_by or nursery()
        self._places = asyncio.Semaphore(size)
        self._workers: set[_Worker] = set()
        self._idle: deque[_Worker] = deque()

    @property
    def busy(self) -> int:
        """Workers that run a function."""
        return len(self._workers) - len(self._idle)

    @property
    def idle(self) -> int:
        """Workers that are ready."""
        return len(self._idle)

    async def start(self) -> None:
        """Have all workers ready, so that the first calls do not wait for that.

        Raises:
            PreparationError: workers cannot be started.
        """
        for _ in range(self._size - len(self._workers)):
            self._idle.append(await self._hatch())

    async def run(
        self, function: Callable[..., Result], *args: object, seconds: float, answer: Answer | None = None
    ) -> Result:
        """Call `function(*args)` in a worker, which is killed where this is left before the end.

        Args:
            function: of a module that workers have; its result and errors must be such as `wire` lets through.
            seconds: of the call itself, waiting for a worker excluded.
            answer: given, the function gets one more argument, through which it may ask.

        Raises:
            WorkerLostError: the worker died at it.
            TimeoutError: it took too long.
            PreparationError: workers cannot be started.
            Exception: what the function raised.
        """
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        try:
            worker = await self._take()
            try:
                async with asyncio.timeout(seconds):
                    outcome = await worker.call(function, args, seconds, answer)
            except BaseException as error:
                self._workers.discard(worker)
                self.restarts += 1
                await worker.kill()
                if isinstance(error, EOFError):
                    raise WorkerLostError from error
                raise
            self._idle.append(worker)
        finally:
            self._places.release()
        if outcome.error is not None:
            raise outcome.error
        result: Result = outcome.value
        return result

    async def _take(self) -> "_Worker":
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
            self._workers.discard(worker)
            self.restarts += 1
            await worker.kill()
        return await self._hatch()

    async def _hatch(self) -> "_Worker":
        try:
            async with asyncio.timeout(START_SECONDS):
                worker = await _Worker.born(self._nursery.bear())
        except (OSError, EOFError, TimeoutError) as error:
            msg = "A decode worker cannot be started."
            raise PreparationError(msg) from error
        self._workers.add(worker)
        return worker

    async def close(self) -> None:
        """Kill all workers; calls that run fail."""
        workers, self._workers = self._workers, set()
        self._idle.clear()
        for worker in workers:
            await worker.kill()


@dataclass(frozen=True, slots=True)
class _Outcome:
    value: Any = None
    error: Exception | None = None


class _Worker:
    """One process, by its socket and its descriptor (pidfd_open(2))."""

    def __init__(self, descriptor: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._descriptor = descriptor
        self._reader = reader
        self._writer = writer

    @classmethod
    async def born(cls, connection: socket.socket) -> "_Worker":
        """Wait until it says that it is there. Where this is left, the worker finds the socket closed and ends.

        Raises:
            EOFError, OSError: it is not, and will not be.
        """
        descriptors: list[int] = []
        try:
            connection.setblocking(False)
            await _readable(connection.fileno())
            descriptors = _descriptors(connection)
            reader, writer = await asyncio.open_unix_connection(sock=connection)
        except BaseException:
            connection.close()
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return cls(descriptors[0], reader, writer)

    @property
    def alive(self) -> bool:
        return not _has_ended(self._descriptor)

    async def call(
        self, function: Callable[..., Any], args: tuple[object, ...], seconds: float, answer: Answer | None
    ) -> _Outcome:
        """Let it run a function to the end.

        Raises:
            EOFError: it died.
        """
        self._writer.write(messages.pack((function, args, answer is not None, seconds)))
        while True:
            kind, value = await wire.read(self._reader)
            if kind == "asks" and answer is not None:
                self._writer.write(messages.pack(answer(value)))
            elif kind == "failed" and isinstance(value, Exception):
                return _Outcome(error=value)
            else:
                return _Outcome(value)

    async def kill(self) -> None:
        """End it, and wait until it is gone: what it writes to is about to be removed."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        self._writer.close()
        try:
            with anyio.CancelScope(shield=True):
                if self.alive:
                    await _readable(self._descriptor)
        finally:
            os.close(self._descriptor)


def _descriptors(connection: socket.socket) -> list[int]:
    """The one that came over a socket, or in its place the reason why there is none."""
    words, descriptors, _, _ = socket.recv_fds(connection, LONGEST_REASON, 1)
    if not descriptors:
        raise EOFError(words.decode(errors="replace"))
    return descriptors


async def _readable(descriptor: int) -> None:
    """Wait until there is something to read; of a pidfd: until the process has ended."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[None] = loop.create_future()

    def notice() -> None:
        if not found.done():
            found.set_result(None)

    loop.add_reader(descriptor, notice)
    try:
        await found
    finally:
        loop.remove_reader(descriptor)


def _has_ended(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
