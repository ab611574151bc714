"""The application on a real socket, inside the test's own event loop: what a transport in memory cannot show."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn

from app.main import create_app
from app.runtime import Runtime
from engine.interface import SpeechEngine
from engine.scripted import ScriptedEngine
from tests.conftest import settings_with, until_ready
from tests.waiting import eventually

__all__ = ["eventually", "live", "live_runtime"]


@asynccontextmanager
async def live_runtime(
    engine: SpeechEngine | None = None, *, engine_settings: dict[str, Any] | None = None, **sections: dict[str, Any]
) -> AsyncIterator[tuple[httpx.AsyncClient, Runtime]]:
    """A client of a ready service that listens on a port of this machine, and what lives in the service."""
    app = create_app(settings_with(engine=engine_settings or {}, **sections), engine=engine or ScriptedEngine())
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, access_log=False))
    serving = asyncio.create_task(server.serve())
    try:
        await eventually(lambda: server.started, seconds=10)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            await until_ready(client)
            yield client, server.lifespan.state["runtime"]
    finally:
        server.should_exit = True
        await serving


@asynccontextmanager
async def live(
    engine: SpeechEngine | None = None, *, engine_settings: dict[str, Any] | None = None, **sections: dict[str, Any]
) -> AsyncIterator[httpx.AsyncClient]:
    """The client alone."""
    async with live_runtime(engine, engine_settings=engine_settings, **sections) as (client, _):
        yield client
