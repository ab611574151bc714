"""From an uploaded file to a waveform on disk and its segments, in worker processes that may die."""

import hashlib
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import anyio
import anyio.to_process
import anyio.to_thread
import numpy as np

from app.transcription import worker
from app.transcription.exceptions import (
    CorruptAudioError,
    PreparationError,
    PreparationTimeoutError,
    TranscriptionError,
)
from app.transcription.mixing import Channels
from app.transcription.types import AudioLimits, PreparationPlan, PreparedAudio
from engine.interface import SAMPLE_RATE

logger = logging.getLogger(__name__)

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

ATTEMPTS = 2  # a worker may be lost to the machine (memory, an operator); twice on the same file is the file


class Preparer:
    """Decodes uploads in a bounded number of worker processes.

    Workers belong to the event loop of the first call and end with it. Beyond the first one, those that have been
    idle for five minutes are given up at the next call and made again when they are needed (about a second). A worker
    runs the program's main module again, under another name: what that imports at its top, every worker imports.
    """

    def __init__(
        self,
        *,
        limits: AudioLimits,
        workers: int,
        timeout_seconds: float,
        max_segment_seconds: float = 30.0,
        target_segment_seconds: float | None = None,
    ) -> None:
        """Set up; starts nothing.

        Args:
            limits: for every upload.
            workers: processes, and so the uploads decoded at once; others wait in order.
            timeout_seconds: for one upload, waiting for a worker excluded.
            max_segment_seconds: the longest segment, at least 4.
            target_segment_seconds: see `segmentation.cut`.
        """
        self._plan = PreparationPlan(
            limits=limits,
            max_samples=round(max_segment_seconds * SAMPLE_RATE),
            target_samples=round((target_segment_seconds or max_segment_seconds) * SAMPLE_RATE),
        )
        self._workers = workers
        self._timeout_seconds = timeout_seconds
        self._slots = anyio.CapacityLimiter(workers)
        # Slots are taken before the clock starts, so anyio's own limit shall not hold anybody up.
        self._unlimited = anyio.CapacityLimiter(math.inf)
        self.workers_lost = 0  # that died or were killed at an upload

    async def warm_up(self) -> None:
        """Start all workers and load their libraries, so that the first uploads do not wait for that.

        Raises:
            PreparationError: workers cannot be started.
        """
        try:
            async with anyio.create_task_group() as group:
                for _ in range(self._workers):
                    group.start_soon(self._run, worker.isolate)
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def statistics(self) -> anyio.CapacityLimiterStatistics:
        """Uploads that are being decoded and that wait."""
        return self._slots.statistics()

    async def prepare(self, source: Path, target: Path, *, separate: bool = False) -> PreparedAudio:
        """Decode `source` into `target` and find the segments.

        Both files stay the caller's to remove, whatever happens. Cancellation kills the worker at once.

        Args:
            source: the upload; nothing about its name matters.
            target: in a directory that exists; receives the waveform, see `map_waveform`.
            separate: keep the channels and find the segments of each, in place of those of their mix.

        Raises:
            InvalidInputError: as `audio.decode` does, or if the decoder crashes on the file.
            PreparationTimeoutError: the worker took too long and was killed.
            PreparationError: workers do not work.
        """
        plan = replace(self._plan, separate=separate)
        for _ in range(ATTEMPTS):
            try:
                return await self._run(worker.prepare, str(source), str(target), plan)
            except anyio.BrokenWorkerProcess:
                digest = await anyio.to_thread.run_sync(_digest, source)
                logger.warning("a decode worker died on an upload with SHA-256 %s", digest)
        await self._run(worker.isolate)  # raises if it is not the file, but the machine
        raise CorruptAudioError("The decoder crashes on this file.", param="audio")

    async def _run(self, function: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
        """Call a function in a worker that is known to work.

        Raises:
            anyio.BrokenWorkerProcess: the worker died at it.
        """
        async with self._slots:
            await self._ready_worker()
            try:
                with anyio.fail_after(self._timeout_seconds):
                    return await anyio.to_process.run_sync(function, *args, cancellable=True, limiter=self._unlimited)
            except TimeoutError:
                self.workers_lost += 1
                raise PreparationTimeoutError(
                    f"Decoding took longer than {self._timeout_seconds:g} s and was given up."
                ) from None
            except TranscriptionError:
                raise
            except anyio.BrokenWorkerProcess:
                self.workers_lost += 1
                raise
            except Exception as error:
                raise PreparationError("A decode worker failed.") from error

    async def _ready_worker(self) -> None:
        """Leave a working worker idle, which the next call in this task takes.

        Costs a millisecond where one is there. Where one has to be started, it starts in peace: anyio loses track of
        a worker whose start is cancelled. Idle workers that have died are discarded on the way.
        """
        with anyio.CancelScope(shield=True):
            for _ in range(self._workers):
                with suppress(anyio.BrokenWorkerProcess, ProcessLookupError):
                    return await anyio.to_process.run_sync(worker.isolate, limiter=self._unlimited)
            try:
                return await anyio.to_process.run_sync(worker.isolate, limiter=self._unlimited)
            except Exception as error:
                raise PreparationError("A decode worker cannot be started.") from error


def map_waveform(path: Path, prepared: PreparedAudio) -> Channels:
    """What `Preparer.prepare` wrote, shape = (n_channels, n_samples): read-only, read from disk as it is touched."""
    return np.memmap(path, dtype="<f4", mode="r", shape=(prepared.n_samples, prepared.n_channels)).T


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
