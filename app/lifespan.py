"""Owns the engine and the decode workers: start, warm up, serve, shut down."""

import asyncio
import io
import logging
import time
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import numpy as np

from app import logs
from app.lifecycle import LifeCycle
from app.metrics import Metrics
from app.runtime import Runtime, State
from app.settings import Settings
from app.spool import service_spool
from app.supervisor import Supervisor
from app.transcription import isolation
from app.transcription.admission import Admission
from app.transcription.clients import Clients
from app.transcription.exceptions import PreparationError, ShuttingDownError, TranscriptionError
from app.transcription.guards import GuardPolicy
from app.transcription.hearing import Listener
from app.transcription.pool import Pool
from app.transcription.preparation import Preparer
from app.transcription.service import Transcriber
from app.transcription.turns import Turns
from app.transcription.types import AudioLimits
from engine.config import SEGMENT_SECONDS
from engine.engine_process import EngineProcess
from engine.interface import SAMPLE_RATE, EngineError, SpeechEngine, SpeechRequest
from engine.scripted import ScriptedEngine

logger = logging.getLogger(__name__)

REHEARSAL_SECONDS = 60.0  # on a machine that is busy with something else; some ms otherwise


def build_engine(settings: Settings) -> SpeechEngine:
    """The engine that a profile asks for; starts nothing."""
    if settings.engine.backend == "scripted":
        return ScriptedEngine(remembers=False)
    chosen, level = settings.server, logging.getLevelName(logging.getLogger("engine").getEffectiveLevel())
    configure_logs = partial(logs.configure, level, style=chosen.log_format, content=chosen.log_content)
    return EngineProcess(settings.engine, configure_logs)


@asynccontextmanager
async def serve(settings: Settings, engine: SpeechEngine, metrics: Metrics) -> AsyncIterator[State]:
    """Start in the background, so that health checks are answered while the model loads."""
    limits, concurrency = settings.limits, settings.concurrency
    life = LifeCycle()
    pool = Pool(concurrency.decode_workers)
    preparer = Preparer(
        limits=AudioLimits(
            max_seconds=limits.max_audio_seconds,
            max_channels=limits.max_channels,
            min_rate=limits.min_sample_rate,
            max_rate=limits.max_sample_rate,
            max_decoded_bytes=int(limits.max_decoded_bytes),
        ),
        pool=pool,
        long_decodes=concurrency.long_decodes,
        long_seconds=concurrency.long_seconds,
        timeout_seconds=limits.decode_timeout_seconds,
        max_segment_seconds=SEGMENT_SECONDS,
        target_segment_seconds=settings.engine.segment_seconds,
        skip_silence=settings.guards.silence,
    )
    turns = Turns(
        places=settings.engine.max_num_seqs,
        long_places=concurrency.long_segments,
        long_seconds=concurrency.long_seconds,
    )
    admission = Admission(
        max_requests=concurrency.max_requests,
        max_audio_seconds=concurrency.max_audio_seconds,
        segment_seconds=settings.engine.segment_seconds,
        clients=Clients(max_requests=settings.clients.max_requests, per_minute=settings.clients.requests_per_minute),
        waiting=lambda: preparer.waiting + turns.waiting,
    )
    transcriber = Transcriber(
        listener=Listener(engine, GuardPolicy(**settings.guards.model_dump(exclude={"silence"}))),
        preparer=preparer,
        turns=turns,
        observer=metrics,
        segments_per_request=concurrency.segments_per_request,
        inference_timeout_seconds=limits.inference_timeout_seconds,
    )
    supervisor = Supervisor(engine=engine, life=life, admission=admission, turns=turns, settings=settings.server)
    with service_spool(settings.server.spool_dir) as spool, supervisor.signals():
        runtime = Runtime(
            settings=settings,
            engine=engine,
            transcriber=transcriber,
            admission=admission,
            turns=turns,
            pool=pool,
            life=life,
            metrics=metrics,
            spool=spool,
            started=time.time(),
        )
        tasks = [
            asyncio.create_task(_start(runtime, supervisor)),
            asyncio.create_task(supervisor.run()),
        ]
        try:
            yield {"runtime": runtime}
        finally:
            life.end("shutting down", ShuttingDownError("the service has ended", retry_after=life.retry_seconds))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await pool.close()
            await engine.shutdown()
            supervisor.leave()


async def _start(runtime: Runtime, supervisor: Supervisor) -> None:
    begun = time.monotonic()

    def report(phase: str, progress: float) -> None:
        runtime.life.load(phase, progress)
        logger.info("%s (%.0f s)", phase, time.monotonic() - begun)

    try:
        # Decode workers take a second: they start while the engine's imports keep the other core busy.
        await asyncio.gather(runtime.engine.start(report), _start_workers(runtime))
        report("warming up", 0.95)
        await _warm_up(runtime.engine, runtime.settings)
    except Exception as error:
        if not isinstance(error, EngineError | TranscriptionError):
            logger.debug("start-up failed", exc_info=error)
        supervisor.fail("start-up failed", error)
        return
    report("ready", 1.0)
    runtime.life.serve()


async def _start_workers(runtime: Runtime) -> None:
    """Have decode workers ready, and one of them do what they all are for: libraries may be there and not work.

    Raises:
        PreparationError: they do not work; says why.
    """
    upload, waveform = runtime.spool / "rehearsal", runtime.spool / "rehearsal.waveform"
    # The limits of uploads may be such that they exclude this one.
    preparer = Preparer(limits=AudioLimits(), pool=runtime.pool, long_decodes=1, timeout_seconds=REHEARSAL_SECONDS)
    try:
        await runtime.pool.start()
        upload.write_bytes(_noise_file())
        await preparer.prepare(upload, waveform)
        network = await runtime.pool.run(isolation.network, seconds=REHEARSAL_SECONDS)
    except (TranscriptionError, OSError) as error:
        cause = error.__cause__ or error
        msg = f"decode workers do not work: {type(cause).__name__}: {cause}"
        raise PreparationError(msg) from error
    finally:
        upload.unlink(missing_ok=True)
        waveform.unlink(missing_ok=True)
    if network == isolation.network():
        logger.warning("decode workers can reach the network: nobody without privileges may make namespaces here")


def _noise_file() -> bytes:
    """Half a second at a rate that has to be changed."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, 8000, 0, "NONE", ""))
        writer.writeframes(np.random.default_rng(0).integers(-99, 99, 4000).astype("<i2").tobytes())
    return file.getvalue()


async def _warm_up(engine: SpeechEngine, settings: Settings) -> None:
    """One second of faint noise, so that the first caller does not pay for what is made at first use."""
    noise = np.random.default_rng(0).normal(0, 1e-3, SAMPLE_RATE).astype(np.float32)
    request = SpeechRequest(request_id="warm-up", waveform=noise, language=settings.engine.languages[0], max_tokens=4)
    async for _ in engine.generate(request):
        pass
