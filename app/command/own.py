"""A service of one's own for the time of a command, on a free port of this machine."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from rich.console import Console

from app import logs
from app.main import create_app
from app.settings import Security, Settings


class StartError(Exception):
    """The service ended before it was ready."""


@asynccontextmanager
async def own_service(settings: Settings, console: Console) -> AsyncIterator[str]:
    """Start a service, tell how far it is, and stop it at the end; gives its URL once it is ready.

    Raises:
        StartError: it does not start; its log says why.
    """
    logs.configure("error")
    logging.getLogger("app.access").disabled = True
    config = uvicorn.Config(
        # Nobody else uses it, so it asks for no key.
        create_app(settings.model_copy(update={"security": Security()})),
        host="127.0.0.1",
        port=0,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    try:
        with console.status("starting the engine"):
            url = await _until_ready(server, serving)
        yield url
    finally:
        server.should_exit = True
        await serving


async def _until_ready(server: uvicorn.Server, serving: "asyncio.Task[None]") -> str:
    async with httpx.AsyncClient() as client:
        while not serving.done() and not server.should_exit:
            if server.started:
                port = server.servers[0].sockets[0].getsockname()[1]
                url = f"http://127.0.0.1:{port}"
                if (await client.get(f"{url}/health/ready")).status_code == 200:
                    return url
            await asyncio.sleep(0.05)
    msg = "the engine did not start"
    raise StartError(msg)
