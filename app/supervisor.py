"""Watches over a service that runs, and ends it: on a signal, or when the engine has died."""

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from app.lifecycle import LifeCycle, Stage
from app.settings import Server
from app.transcription.admission import Admission
from app.transcription.exceptions import ShuttingDownError
from app.transcription.turns import Turns
from engine.interface import EngineDeadError, EngineNotReadyError, SpeechEngine

logger = logging.getLogger(__name__)

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
LOOK_SECONDS: Final = 0.2  # between two looks at the engine, and at what is left to do
LAST_SECONDS: Final = 5.0  # for answers to those whose work was cut off, and for uvicorn to close their connections


class Supervisor:
    """Owns the way from serving to the end.

    uvicorn, when it is told to end, first closes its sockets. A service that drains has to answer that it does, so
    uvicorn's signals are handled here, and it is told at the end.
    """

    def __init__(
        self, *, engine: SpeechEngine, life: LifeCycle, admission: Admission, turns: Turns, settings: Server
    ) -> None:
        self._engine = engine
        self._life = life
        self._admission = admission
        self._turns = turns
        self._settings = settings
        self._told = asyncio.Event()  # to drain
        self._uvicorn: Any = None  # the server that runs this application, where it is one

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Take over uvicorn's signals and its idle connections; another server keeps its own, and ends as it likes."""
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        servers = [getattr(handler, "__self__", None) for handler in handlers.values()]
        if threading.current_thread() is not threading.main_thread() or not hasattr(servers[0], "should_exit"):
            yield
            return
        self._uvicorn = servers[0]
        config = self._uvicorn.config  # which its connections read when they begin
        config.timeout_keep_alive = max(config.timeout_keep_alive, self._settings.idle_connection_seconds)
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            signal.signal(number, lambda number, _: loop.call_soon_threadsafe(self._signalled, number))
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _signalled(self, number: int) -> None:
        if self._life.stage is Stage.ENDED:  # it does not come to its end
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if self._life.stage is Stage.DRAINING:
            logger.warning("%s again: running work is cut off", signal.Signals(number).name)
            self._cut_off("shutting down")
            return
        logger.info(
            "%s: draining %d requests, at most %g s",
            signal.Signals(number).name,
            self._admission.requests,
            self._settings.drain_seconds,
        )
        self._life.drain(self._settings.drain_seconds)
        self._told.set()

    def _cut_off(self, phase: str) -> None:
        msg = "the service is shutting down and could not finish this request"
        self._life.end(phase, ShuttingDownError(msg, retry_after=self._life.retry_seconds))

    async def run(self) -> None:
        """Watch until the end, see to it that every request has its answer, and have the server stop."""
        while not self._told.is_set() and self._life.stage is not Stage.ENDED:
            await self._look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._told.wait()
        if self._life.stage is Stage.DRAINING:
            await self._drain()
        await self._last_answers()
        self.stop()

    async def _look(self) -> None:
        try:
            await self._engine.check_health()
        except EngineNotReadyError:
            return
        except EngineDeadError as error:
            self.fail("the engine has failed", error)
            return
        quiet = self._turns.quiet_seconds
        if quiet > self._settings.stall_seconds:
            if self._life.ready:
                logger.error("the engine has had work for %.0f s and has finished none of it", quiet)
            self._life.stall(f"stalled: the engine has finished nothing for {self._settings.stall_seconds:g} s")
        elif self._life.stage is Stage.STALLED:
            logger.warning("the engine works again")
            self._life.serve()

    def fail(self, phase: str, error: Exception) -> None:
        """End with an error: whatever runs fails with it at once."""
        logger.critical("%s: %s", phase, error)
        self._life.failed = True
        self._life.end(phase, error)

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.drain_seconds
        while self._admission.requests and loop.time() < deadline:
            await self._look()
            if await self._life.ended(LOOK_SECONDS):
                return
        if self._admission.requests:
            logger.warning("the grace time is over: %d requests are cut off", self._admission.requests)
        self._cut_off("shutting down")

    async def _last_answers(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS):
                while self._admission.requests:  # noqa: ASYNC110  # requests know nothing of this
                    await asyncio.sleep(LOOK_SECONDS / 4)

    def stop(self) -> None:
        """Have the server stop; one that is not uvicorn's is left to its operator."""
        if self._uvicorn is not None:
            if self._uvicorn.config.timeout_graceful_shutdown is None:
                self._uvicorn.config.timeout_graceful_shutdown = LAST_SECONDS  # without limit otherwise
            self._uvicorn.should_exit = True

    def leave(self) -> None:
        """After shutdown: have uvicorn exit with its status for a failed start, 3, where the service has failed."""
        if self._uvicorn is not None and self._life.failed:
            self._uvicorn.started = False
