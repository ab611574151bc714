"""From an uploaded file to a waveform on disk and its segments, in worker processes that may die."""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
import numpy as np

from app.transcription import worker
from app.transcription.exceptions import (
    CorruptAudioError,
    Limit,
    PreparationError,
    PreparationTimeoutError,
    TranscriptionError,
)
from app.transcription.mixing import Channels
from app.transcription.pool import Pool, WorkerLostError
from app.transcription.storage import storing
from app.transcription.types import AudioLimits, Postponed, PreparationPlan, PreparedAudio
from engine.interface import SAMPLE_RATE

logger = logging.getLogger(__name__)

ATTEMPTS = 2  # a worker may be lost to the machine (memory, an operator); twice on the same file is the file

Learn = Callable[[float], None]
"""Takes the seconds of a file, as soon as it is known to be long."""


class Preparer:
    """Decodes uploads in a bounded number of worker processes.

    Nobody knows how long a file is before it is decoded, so all begin alike, in order of arrival. One that turns out
    to be long goes on only while fewer long ones than there are workers do; else it gives its worker back and waits
    for others of its kind. So a short clip waits for short ones alone, but where there is a single worker.
    """

    def __init__(
        self,
        *,
        limits: AudioLimits,
        pool: Pool,
        long_decodes: int,
        timeout_seconds: float,
        long_seconds: float = 60.0,
        max_segment_seconds: float = 30.0,
        target_segment_seconds: float | None = None,
        skip_silence: bool = True,
    ) -> None:
        """Set up; starts nothing.

        Args:
            limits: for every upload.
            pool: of workers; as many uploads are decoded at once, others wait in order.
            long_decodes: of those, how many may be longer than `long_seconds`.
            timeout_seconds: for one upload, waiting for a worker excluded.
            max_segment_seconds: the longest segment, at least 4.
            target_segment_seconds, skip_silence: see `segmentation.cut`.
        """
        self._plan = PreparationPlan(
            limits=limits,
            max_samples=round(max_segment_seconds * SAMPLE_RATE),
            target_samples=round((target_segment_seconds or max_segment_seconds) * SAMPLE_RATE),
            brief_samples=round(long_seconds * SAMPLE_RATE),
            skip_silence=skip_silence,
        )
        self._pool = pool
        self._long = anyio.CapacityLimiter(long_decodes)
        self._timeout_seconds = timeout_seconds

    @property
    def waiting(self) -> int:
        """Uploads that wait for a worker or, being long, for a long one to end."""
        return self._pool.waiting + self._long.statistics().tasks_waiting

    async def prepare(
        self, source: Path, target: Path, *, separate: bool = False, learn: Learn = lambda _: None
    ) -> PreparedAudio:
        """Decode `source` into `target` and find the segments.

        Both files stay the caller's to remove, whatever happens. Cancellation kills the worker at once.

        Args:
            source: the upload; nothing about its name matters.
            target: in a directory that exists; receives the waveform, see `map_waveform`.
            separate: keep the channels and find the segments of each, in place of those of their mix.

        Raises:
            InvalidInputError: as `audio.decode` does, or if the decoder crashes on the file.
            PreparationTimeoutError: the worker took too long and was killed.
            StorageFullError: there is no room for the waveform.
            PreparationError: workers do not work.
        """
        job = (str(source), str(target), replace(self._plan, separate=separate))
        for _ in range(ATTEMPTS):
            try:
                return await self._attempt(job, learn)
            except WorkerLostError:
                digest = await anyio.to_thread.run_sync(_digest, source)
                logger.warning("a decode worker died on an upload with SHA-256 %s", digest)
        raise CorruptAudioError("The decoder crashes on this file.", param="audio")

    async def _attempt(self, job: tuple[str, str, PreparationPlan], learn: Learn) -> PreparedAudio:
        prepared = await self._brief(job, learn)
        if isinstance(prepared, Postponed):
            async with self._long:
                prepared = await self._run(job)
        assert isinstance(prepared, PreparedAudio)
        return prepared

    async def _brief(self, job: tuple[str, str, PreparationPlan], learn: Learn) -> PreparedAudio | Postponed:
        """Decode a file of unknown length, all of it where it is short or others of its kind leave a place."""
        token = object()

        def may_go_on(seconds: float) -> bool:
            learn(seconds)
            try:
                self._long.acquire_on_behalf_of_nowait(token)
            except anyio.WouldBlock:
                return False
            return True

        try:
            return await self._run(job, may_go_on)
        finally:
            if token in self._long.statistics().borrowers:
                self._long.release_on_behalf_of(token)

    async def _run(
        self, job: tuple[str, str, PreparationPlan], may_go_on: Callable[[float], bool] | None = None
    ) -> PreparedAudio | Postponed:
        try:
            with storing():
                return await self._pool.run(worker.prepare, *job, seconds=self._timeout_seconds, answer=may_go_on)
        except TimeoutError:
            limit = Limit("seconds of decoding", self._timeout_seconds, "OMNIHEAR_LIMITS_DECODE_TIMEOUT_SECONDS")
            msg = f"Decoding took longer than {limit.value:g} s and was given up. Send a shorter file."
            raise PreparationTimeoutError(msg, limit=limit) from None
        except (TranscriptionError, WorkerLostError):
            raise
        except Exception as error:
            raise PreparationError("A decode worker failed.") from error


def map_waveform(path: Path, prepared: PreparedAudio) -> Channels:
    """What `Preparer.prepare` wrote, shape = (n_channels, n_samples): read-only, read from disk as it is touched."""
    return np.memmap(path, dtype="<f4", mode="r", shape=(prepared.n_samples, prepared.n_channels)).T


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
