"""What routes ask for, as `Annotated` aliases."""

from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, cast

import anyio
import anyio.to_thread
from fastapi import Depends, Request

from app.runtime import Runtime
from app.transcription.admission import Ticket
from app.transcription.storage import storing


def _runtime(request: Request) -> Runtime:
    return cast("Runtime", request.state.runtime)


RuntimeDep = Annotated[Runtime, Depends(_runtime)]
"""All that lives as long as the service, ready or not."""


def _ready_runtime(runtime: RuntimeDep) -> Runtime:
    runtime.life.check()
    return runtime


ReadyRuntimeDep = Annotated[Runtime, Depends(_ready_runtime)]
"""The same, refused with 503 before the body is read while requests cannot be served."""


async def _ticket(request: Request, runtime: ReadyRuntimeDep) -> AsyncIterator[Ticket]:
    announced = request.headers.get("content-length", "")
    n_bytes = min(int(announced), int(runtime.settings.limits.max_upload_bytes)) if announced.isdecimal() else 0
    client = getattr(request.state, "client", None)
    with runtime.admission.enter(client=client, n_bytes=n_bytes) as ticket:
        yield ticket


TicketDep = Annotated[Ticket, Depends(_ticket)]
"""A place for this request, from before its body is read until its answer is sent; refused with 429 where none is."""


async def _spool(runtime: ReadyRuntimeDep, _: TicketDep) -> AsyncIterator[Path]:
    with storing():
        folder = TemporaryDirectory(dir=runtime.spool)
        try:
            yield Path(folder.name)
        finally:
            # In a thread: to remove a long file's waveform takes a tenth of a second.
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(folder.cleanup)


SpoolDep = Annotated[Path, Depends(_spool)]
"""A folder for this request's files; gone with it."""
