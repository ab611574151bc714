"""What routes ask for, as `Annotated` aliases."""

from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, cast

from fastapi import Depends, Request

from app.runtime import LOADING_RETRY_SECONDS, Runtime
from app.transcription.exceptions import NotReadyError


def _runtime(request: Request) -> Runtime:
    return cast("Runtime", request.state.runtime)


RuntimeDep = Annotated[Runtime, Depends(_runtime)]
"""All that lives as long as the service, ready or not."""


def _ready_runtime(runtime: RuntimeDep) -> Runtime:
    readiness = runtime.readiness
    if not readiness.ready:
        msg = f"not ready: {readiness.phase} ({readiness.progress:.0%}); /health/ready tells when"
        raise NotReadyError(msg, retry_after=LOADING_RETRY_SECONDS)
    return runtime


ReadyRuntimeDep = Annotated[Runtime, Depends(_ready_runtime)]
"""The same, refused with 503 before the body is read while requests cannot be served."""


async def _spool(runtime: ReadyRuntimeDep) -> AsyncIterator[Path]:
    with TemporaryDirectory(dir=runtime.spool) as folder:
        yield Path(folder)


SpoolDep = Annotated[Path, Depends(_spool)]
"""A folder for this request's files; gone with it."""
