"""Owns the engine and the decode workers: start, warm up, serve, shut down."""

import asyncio
import logging
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

from app.metrics import Metrics
from app.runtime import Readiness, Runtime, State
from app.settings import Settings
from app.transcription.admission import Admission
from app.transcription.guards import GuardPolicy
from app.transcription.hearing import Listener
from app.transcription.preparation import Preparer
from app.transcription.service import Transcriber
from app.transcription.types import AudioLimits
from engine.async_engine import VllmEngine
from engine.config import SEGMENT_SECONDS
from engine.interface import SAMPLE_RATE, EngineError, SpeechEngine, SpeechRequest
from engine.scripted import ScriptedEngine

logger = logging.getLogger(__name__)


def build_engine(settings: Settings) -> SpeechEngine:
    """The engine that a profile asks for; starts nothing."""
    return ScriptedEngine() if settings.engine.backend == "scripted" else VllmEngine(settings.engine)


@asynccontextmanager
async def serve(settings: Settings, engine: SpeechEngine, metrics: Metrics) -> AsyncIterator[State]:
    """Start in the background, so that health checks are answered while the model loads."""
    limits, concurrency = settings.limits, settings.concurrency
    preparer = Preparer(
        limits=AudioLimits(
            max_seconds=limits.max_audio_seconds,
            max_channels=limits.max_channels,
            min_rate=limits.min_sample_rate,
            max_rate=limits.max_sample_rate,
            max_decoded_bytes=limits.max_decoded_bytes,
        ),
        workers=concurrency.decode_workers,
        timeout_seconds=limits.decode_timeout_seconds,
        max_segment_seconds=SEGMENT_SECONDS,
        target_segment_seconds=settings.engine.segment_seconds,
    )
    transcriber = Transcriber(
        listener=Listener(engine, GuardPolicy(**settings.guards.model_dump())),
        preparer=preparer,
        admission=Admission(running=concurrency.running_requests, queued=concurrency.queued_requests),
        observer=metrics,
        segments_per_request=concurrency.segments_per_request,
        inference_timeout_seconds=limits.inference_timeout_seconds,
    )
    readiness = Readiness()
    with tempfile.TemporaryDirectory(prefix="omnihear-", dir=settings.server.spool_dir or None) as spool:
        runtime = Runtime(settings, engine, transcriber, readiness, metrics, Path(spool), time.time())
        starting = asyncio.create_task(_start(runtime, preparer))
        try:
            yield {"runtime": runtime}
        finally:
            readiness.ready = False
            readiness.phase = "shutting down"
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await engine.shutdown()


async def _start(runtime: Runtime, preparer: Preparer) -> None:
    readiness = runtime.readiness
    begun = time.monotonic()

    def report(phase: str, progress: float) -> None:
        readiness.phase, readiness.progress = phase, progress
        logger.info("%s (%.0f s)", phase, time.monotonic() - begun)

    try:
        # Decode workers take a second: they start while the engine's imports keep the other core busy.
        await asyncio.gather(runtime.engine.start(report), preparer.warm_up())
        report("warming up", 0.95)
        await _warm_up(runtime.engine, runtime.settings)
    except Exception as error:
        known = isinstance(error, EngineError)
        logger.critical("start-up failed: %s", error, exc_info=None if known else error)
        # The server owns the process: it is asked to end as an operator would ask, and ends by that signal.
        os.kill(os.getpid(), signal.SIGTERM)
        return
    report("ready", 1.0)
    readiness.ready = True


async def _warm_up(engine: SpeechEngine, settings: Settings) -> None:
    """One second of faint noise, so that the first caller does not pay for what is made at first use."""
    noise = np.random.default_rng(0).normal(0, 1e-3, SAMPLE_RATE).astype(np.float32)
    request = SpeechRequest(request_id="warm-up", waveform=noise, language=settings.engine.languages[0], max_tokens=4)
    async for _ in engine.generate(request):
        pass
