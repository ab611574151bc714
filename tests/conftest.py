"""Fixtures and settings for all tests."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

# Before anything imports Triton, which looks once: without a GPU its kernels can run in its interpreter only.
os.environ.setdefault("TRITON_INTERPRET", "0" if Path("/dev/nvidiactl").exists() else "1")
os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # for tests that import onnxruntime themselves

import httpx
import hypothesis
import pytest
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from app.main import create_app
from app.settings import Settings, load_settings
from engine.interface import SpeechEngine
from engine.scripted import ScriptedEngine
from tests.serving import Server, serving

Client = httpx.AsyncClient
MakeClient = Callable[..., AbstractAsyncContextManager[Client]]

# The same examples in every run, and no limit on their time: machines differ, failures should not.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


Figure = Callable[[str], None]
_FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figure:
    """Takes a measurement in words; all are printed at the end of the run."""
    return request.config.stash.setdefault(_FIGURES, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    figures = terminalreporter.config.stash.get(_FIGURES, [])
    if figures:
        terminalreporter.section("figures")
        for line in figures:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("OMNIHEAR_", "OTEL_")):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
async def one_event_loop() -> None:
    """Keeps the event loop, and with it the decode workers, from one test to the next."""


def settings_with(**sections: dict[str, Any]) -> Settings:
    """The cpu profile with some values changed: `settings_with(limits={"max_channels": 2})`."""
    values = load_settings("cpu").model_dump()
    for section, changes in sections.items():
        values[section] |= changes
    return Settings.model_validate(values)


@asynccontextmanager
async def lifespan_client(app: FastAPI) -> AsyncIterator[Client]:
    """A client of the application while its lifespan runs; requests reach it without a socket."""
    async with app.router.lifespan_context(app) as state:

        async def stateful(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, "state": {**(state or {})}}, receive, send)

        transport = httpx.ASGITransport(stateful, raise_app_exceptions=False)
        async with Client(transport=transport, base_url="http://omnihear") as client:
            client.headers["X-Request-ID"] = "test"
            yield client


async def until_ready(client: Client) -> None:
    """Start-up runs beside the requests; ask until it has ended."""
    while (await client.get("/health/ready")).status_code != 200:
        pass


@pytest.fixture
def make_client(one_event_loop: None) -> MakeClient:
    """`async with make_client(engine=..., limits={...}) as client:` gives a client of a ready service."""

    @asynccontextmanager
    async def make(
        engine: SpeechEngine | None = None,
        *,
        wait: bool = True,
        engine_settings: dict[str, Any] | None = None,
        **sections: dict[str, Any],
    ) -> AsyncIterator[Client]:
        settings = settings_with(engine=engine_settings or {}, **sections)
        app = create_app(settings, engine=engine or ScriptedEngine())
        async with lifespan_client(app) as client:
            if wait:
                await until_ready(client)
            yield client

    return make


@pytest.fixture(scope="session")
async def scripted_client(one_event_loop: None) -> AsyncIterator[Client]:
    """A service whose engine tells the seconds of the audio it is given; shared, so tests leave it as it is."""
    async with lifespan_client(create_app(settings_with(), engine=ScriptedEngine())) as client:
        await until_ready(client)
        yield client


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The real service on the embedded checkpoint, as `omnihear serve` starts it."""
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running
