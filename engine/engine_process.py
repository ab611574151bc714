"""The engine in a process of its own.

vLLM's `AsyncLLM` takes some milliseconds of Python for each request, HTTP about as many, and one interpreter runs one
of them at a time: at a hundred clips a second both in one process would keep each other, and the GPU, waiting.

The process is forked from a fork server that has imported vLLM (`engine.preload`), and forks vLLM's engine core.
"""

import asyncio
import functools
import itertools
import logging
import multiprocessing
import multiprocessing.forkserver
import os
import socket
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from typing import Any, Final

import uvloop
from prometheus_client.metrics_core import Metric

from engine import messages
from engine.async_engine import STATUS_SECONDS, VllmEngine
from engine.config import EngineConfig
from engine.interface import (
    EncoderUsage,
    EngineDeadError,
    EngineDescription,
    EngineError,
    EngineNotReadyError,
    EngineStartError,
    ReportProgress,
    SpeechOutput,
    SpeechRequest,
)
from engine.reason import reason_of
from engine.vllm_environment import prepare_environment, servable

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0  # for an answer to whether it lives
ANSWER_SECONDS: Final = STATUS_SECONDS + LOOK_SECONDS  # it waits for the core itself, and then says what it knows
END_SECONDS: Final = 10.0  # for the engine to free what it has
_MOST_BYTES: Final = 2**30
_LEFT: Final = "left"  # a call of this name ends the one of the same number


@dataclass(frozen=True, slots=True)
class _Call:
    number: int
    name: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class _Said:
    """What a call has yielded, or where `ended` that it has ended, with an error or without."""

    number: int
    value: Any = None
    ended: bool = False


class EngineProcess:
    """Runs a `VllmEngine` elsewhere. Implements `engine.interface.SpeechEngine`."""

    def __init__(self, config: EngineConfig, prepare: Callable[[], None] | None = None) -> None:
        """Set up; starts nothing.

        Args:
            prepare: called in the process before anything else, such as to configure its logging.
        """
        self._config = config
        self._prepare = prepare
        self._process: ForkServerProcess | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._numbers = itertools.count()
        self._calls: dict[int, asyncio.Queue[_Said]] = {}
        self._ready = False
        self._dead = False

    async def start(self, report: ReportProgress) -> None:
        """Import vLLM, load the model, wait until the engine answers."""
        config = servable(self._config)
        prepare_environment(config)
        report("importing vLLM", 0.0)
        multiprocessing.set_forkserver_preload(["engine.preload"])
        multiprocessing.forkserver.ensure_running()  # from this thread: it ends with the one that starts it
        ours, theirs = socket.socketpair()
        reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        self._reading = asyncio.create_task(self._read(reader))
        with theirs:
            self._process = await _started(_run, theirs, config, self._prepare)
        try:
            async with aclosing(self._stream("start")) as phases:
                async for phase, share in phases:
                    report(phase, share)
        except EngineDeadError:
            msg = "the engine's process ended while it started"
            raise EngineStartError(msg) from None
        self._ready = True

    async def generate(
        self, request: SpeechRequest, *, incremental: bool = False
    ) -> AsyncGenerator[SpeechOutput, None]:
        """Transcribe one segment; see `SpeechEngine.generate`."""
        self._check()
        async with aclosing(self._stream("generate", request, incremental)) as outputs:
            async for output in outputs:
                yield output

    async def abort(self, request_id: str) -> None:
        """Stop a request; see `SpeechEngine.abort`."""
        await self._ask("abort", request_id)

    async def check_health(self) -> None:
        """Raise unless the engine lives. One that is too busy to answer does."""
        self._check()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await self._ask("check_health")

    async def describe(self) -> EngineDescription:
        """What serves, down to the versions."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                description: EngineDescription = await self._ask("describe")
        except (EngineError, TimeoutError):
            # Whatever it is, /v1/engine is what an operator looks at when something is wrong, so it has to answer.
            return await VllmEngine(self._config).describe()
        return description

    async def encoder_usage(self) -> EncoderUsage | None:
        """What the first worker's encoder has done; see `SpeechEngine.encoder_usage`."""
        usage: EncoderUsage | None = await self._ask_or_not("encoder_usage")
        return usage

    async def metrics(self) -> list[Metric]:
        """What vLLM counts; see `SpeechEngine.metrics`."""
        return await self._ask_or_not("metrics") or []

    async def shutdown(self) -> None:
        """End the process and all below it."""
        process, writer, reading = self._process, self._writer, self._reading
        self._process = self._writer = self._reading = None
        self._ready = False
        if writer is not None:
            writer.close()  # which tells it to end
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        if process is not None:
            await asyncio.to_thread(_end, process)

    def _check(self) -> None:
        if self._dead:
            msg = "the vLLM engine process has died"
            raise EngineDeadError(msg)
        if not self._ready:
            msg = "the engine has not started"
            raise EngineNotReadyError(msg)

    async def _ask_or_not(self, name: str) -> Any:
        """The answer, or None where there is none."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._ask(name)
        except (EngineError, TimeoutError) as error:
            logger.debug("the engine does not answer", exc_info=error)
            return None

    async def _ask(self, name: str, *arguments: Any) -> Any:
        """The one answer that a call has."""
        self._check()
        async with aclosing(self._stream(name, *arguments)) as answers:
            return await anext(answers)

    async def _stream(self, name: str, *arguments: Any) -> AsyncGenerator[Any, None]:
        """What a call yields over there; leaving it ends it there.

        Raises:
            EngineError: as the call did, or because nobody is there.
        """
        if self._writer is None or self._dead:
            raise EngineDeadError(_GONE)
        number = next(self._numbers)
        said = self._calls[number] = asyncio.Queue[_Said]()
        self._writer.write(messages.pack(_Call(number, name, arguments)))
        over = False
        try:
            while not (latest := await said.get()).ended:
                yield latest.value
            over = True
            if latest.value is not None:
                raise latest.value
        finally:
            del self._calls[number]
            if not over and self._writer is not None:
                self._writer.write(messages.pack(_Call(number, _LEFT)))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Hand out what arrives; ends with the process over there."""
        try:
            with suppress(EOFError):
                while True:
                    said: _Said = await messages.read(reader, most_bytes=_MOST_BYTES)
                    self._dead |= isinstance(said.value, EngineDeadError)
                    if (queue := self._calls.get(said.number)) is not None:
                        queue.put_nowait(said)
        finally:
            self._dead = True
            for number, queue in self._calls.items():
                queue.put_nowait(_Said(number, EngineDeadError(_GONE), ended=True))


_GONE: Final = "the engine's process is gone"


async def _started(target: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    """A process that runs `target`; waits until the fork server has imported what it imports."""
    forked: Future[ForkServerProcess] = Future()
    forked.set_running_or_notify_cancel()  # where nobody waits any more, the process finds its socket closed

    def fork() -> None:
        process = multiprocessing.get_context("forkserver").Process(target=target, args=arguments, name="engine")
        try:
            process.start()
        except Exception as error:  # handed over, not swallowed
            forked.set_exception(error)
        else:
            forked.set_result(process)

    # Not one of the loop's own threads, whose end a loop that is closed waits for.
    threading.Thread(target=fork, name="fork", daemon=True).start()
    try:
        return await asyncio.wrap_future(forked)
    except Exception as error:
        msg = f"the engine's process cannot be started: {error}"
        raise EngineStartError(msg) from error


def _end(process: ForkServerProcess) -> None:
    process.join(END_SECONDS)
    if process.is_alive():
        process.kill()
    process.join()
    process.close()


def _run(connection: socket.socket, config: EngineConfig, prepare: Callable[[], None] | None) -> None:
    """What the process does."""
    os.setsid()  # Ctrl-C in a terminal is for the service, which lets work that runs finish; the core comes along
    if prepare is not None:
        prepare()
    uvloop.run(_serve(connection, config))


async def _serve(connection: socket.socket, config: EngineConfig) -> None:
    """Answer calls until the service closes the connection."""
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    engine = VllmEngine(config)
    running: dict[int, asyncio.Task[None]] = {}
    with suppress(EOFError):
        while True:
            call: _Call = await messages.read(reader, most_bytes=_MOST_BYTES)
            if call.name == _LEFT:
                if (task := running.get(call.number)) is not None:
                    task.cancel()
                continue
            task = running[call.number] = asyncio.create_task(_answer(engine, call, writer))
            task.add_done_callback(functools.partial(_forget, running, call.number))
    for task in running.values():
        task.cancel()
    await engine.shutdown()


def _forget(running: dict[int, asyncio.Task[None]], number: int, _: object) -> None:
    del running[number]


async def _answer(engine: VllmEngine, call: _Call, writer: asyncio.StreamWriter) -> None:
    def say(value: Any, *, ended: bool = False) -> None:
        writer.write(messages.pack(_Said(call.number, value, ended)))

    error: Exception | None = None
    try:
        if call.name == "start":
            await engine.start(lambda phase, share: say((phase, share)))
        elif call.name == "generate":
            request, incremental = call.arguments
            async for output in engine.generate(request, incremental=incremental):
                say(output)
        else:
            say(await getattr(engine, call.name)(*call.arguments))
    except EngineError as raised:
        if raised.__cause__ is not None:  # which does not travel
            logger.debug("%s", raised, exc_info=raised)
        error = raised
    except Exception as raised:
        logger.exception("the engine failed at %s", call.name)
        error = EngineError(reason_of(raised))
    say(error, ended=True)
