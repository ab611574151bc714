"""GET /metrics"""

import asyncio

from fastapi import APIRouter, Response

from app.dependencies import RuntimeDep
from app.gauges import standing

router = APIRouter(tags=["service"])


@router.get(
    "/metrics",
    summary="Numbers for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(runtime: RuntimeDep) -> Response:
    """Of this service, its process and vLLM, in Prometheus' text format."""
    usage, counts = await asyncio.gather(runtime.engine.encoder_usage(), runtime.engine.metrics())
    body, media_type = runtime.metrics.render([*standing(runtime, usage), *counts])
    return Response(body, headers={"Content-Type": media_type})
