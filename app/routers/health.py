"""Probes, and what serves."""

import math
from dataclasses import asdict
from importlib.metadata import version

from fastapi import APIRouter, Response, status

from app.dependencies import RuntimeDep
from app.runtime import Runtime
from app.schemas.service import EngineReport, Liveness, ReadinessReport
from engine.interface import EngineError

probes = APIRouter(tags=["service"])
"""Open, also where keys are set: an orchestrator has none."""
router = APIRouter(tags=["service"])


@probes.get("/health/live", summary="The process answers")
async def live() -> Liveness:
    """Never waits for work; restart the process when this fails."""
    return Liveness()


@probes.get(
    "/health/ready",
    summary="Requests are served",
    responses={503: {"model": ReadinessReport, "description": "loading, draining, or the engine stalls or has failed"}},
)
async def ready(response: Response, runtime: RuntimeDep) -> ReadinessReport:
    """Send traffic only while this answers 200."""
    report = await _readiness(runtime)
    if not report.ready:
        response.status_code = status.HTTP_503_SERVICE_UNAVAILABLE
        response.headers["Retry-After"] = str(math.ceil(runtime.life.retry_seconds))
    return report


async def _readiness(runtime: Runtime) -> ReadinessReport:
    life = runtime.life
    if life.ready:
        try:
            await runtime.engine.check_health()
        except EngineError:
            return ReadinessReport(ready=False, phase="the engine has failed", progress=0.0)
    return ReadinessReport(ready=life.ready, phase=life.phase, progress=life.progress)


@router.get("/v1/engine", summary="What serves")
async def engine(runtime: RuntimeDep) -> EngineReport:
    """Profile, model, encoder modes and versions; for operators and bug reports."""
    description = asdict(await runtime.engine.describe())
    description["versions"] = {"omnihear": version("omnihear"), **description["versions"]}
    description.pop("max_audio_seconds")
    return EngineReport(profile=runtime.settings.profile, ready=(await _readiness(runtime)).ready, **description)
