import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Mount, Route

from app.main import create_app
from engine.scripted import ScriptedEngine
from tests.audio_factory import clip, pcm16, wav
from tests.conftest import Client, MakeClient, lifespan_client, settings_with, until_ready
from tests.holding import Holding
from tests.live import live

SPEECH = wav(pcm16(clip("library-us-female.wav")))
KEY = "a-key-of-the-tests-0123456789"
KEYS = {"api_keys": f"team-a {KEY}, team-b another-key-of-the-tests"}

OPEN = {"/health/live", "/health/ready", "/docs", "/docs/static", "/openapi.json"}
"""As docs/operations.md lists them."""

FORMS = [{"Authorization": f"Bearer {KEY}"}, {"authorization": f"bearer {KEY}"}, {"X-API-Key": KEY}]
WRONG = [
    {"Authorization": "Bearer wrong"},
    {"Authorization": f"Bearer {KEY}x"},
    {"Authorization": "Bearer é".encode("latin-1")},
    {"X-API-Key": "wrong"},
]
MISSING = [{}, {"Authorization": f"Basic {KEY}"}, {"Authorization": KEY}, {"Authorization": "Bearer "}]


@pytest.fixture(scope="module")
async def keyed_client(one_event_loop: None) -> AsyncIterator[Client]:
    """A service that asks for keys; shared, so tests leave it as it is."""
    async with lifespan_client(create_app(settings_with(security=KEYS), engine=ScriptedEngine())) as client:
        await until_ready(client)
        yield client


def leaves(routes: list[BaseRoute]) -> list[tuple[str, str]]:
    """Method and path of everything that the application answers."""
    found = []
    for route in routes:
        if isinstance(route, Mount):
            found.append(("GET", f"{route.path}/swagger-ui.css"))
        else:
            assert isinstance(route, Route | APIRoute), route
            found += [(method, route.path) for method in route.methods or ()]
    return found


@pytest.mark.parametrize("open_metrics", [False, True])
async def test_every_route_asks_for_a_key_but_those_that_are_listed(
    open_metrics: bool, make_client: MakeClient
) -> None:
    security = {**KEYS, "open_metrics": open_metrics}
    app = create_app(settings_with(security=security), engine=ScriptedEngine())
    routes = leaves(app.routes)
    async with make_client(security=security) as client:
        answers = {(method, path): await client.request(method, path) for method, path in routes}

    is_open = {path for (_, path), answer in answers.items() if answer.status_code != 401}
    asks = {path for (_, path), answer in answers.items() if answer.status_code == 401}
    is_open = {"/docs/static" if path.startswith("/docs/static") else path for path in is_open}
    assert is_open == OPEN | ({"/metrics"} if open_metrics else set())
    assert asks >= {"/v1/transcribe", "/v1/transcribe/batch", "/v1/models", "/v1/engine", "/v1/audio/transcriptions"}


@pytest.mark.parametrize("headers", FORMS)
async def test_a_key_lets_in(headers: dict[str, str], keyed_client: Client) -> None:
    answer = await keyed_client.post("/v1/transcribe", files={"file": SPEECH}, headers=headers)

    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("headers", "code", "challenge"),
    [
        *((headers, "missing_api_key", 'Bearer realm="omnihear"') for headers in MISSING),
        *((headers, "invalid_api_key", 'Bearer realm="omnihear", error="invalid_token"') for headers in WRONG),
    ],
)
async def test_anything_else_is_a_401_that_says_how_to_do_it(
    headers: dict[str, str], code: str, challenge: str, keyed_client: Client
) -> None:
    answer = await keyed_client.post("/v1/transcribe", files={"file": SPEECH}, headers=headers)

    error = answer.json()["error"]
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == challenge
    assert error["code"] == code
    assert error["type"] == "invalid_request_error"
    assert error["request_id"] == answer.headers["X-Request-ID"] == "test"
    assert KEY not in answer.text
    assert "wrong" not in answer.text


async def test_the_key_is_asked_for_before_the_body_is_read_and_before_readiness(make_client: MakeClient) -> None:
    read = False

    async def body() -> object:
        nonlocal read
        read = True
        yield b"x"

    gate = asyncio.Event()
    async with make_client(ScriptedEngine(start_gate=gate), wait=False, security=KEYS) as client:
        answer = await client.post("/v1/transcribe", content=body())  # type: ignore[arg-type]
        gate.set()

    assert answer.status_code == 401
    assert not read


async def test_openais_sdk_sends_the_key_and_reads_the_refusal() -> None:
    async with live(security=KEYS) as client:
        url = f"{client.base_url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as good:
            text = (await good.audio.transcriptions.create(model="whisper-1", file=("a.wav", SPEECH))).text
        async with openai.AsyncOpenAI(base_url=url, api_key="sk-wrong", max_retries=0) as bad:
            with pytest.raises(openai.AuthenticationError) as error:
                await bad.audio.transcriptions.create(model="whisper-1", file=("a.wav", SPEECH))

    assert text.startswith("audio of")
    assert error.value.code == "invalid_api_key"


async def test_a_key_that_is_taken_from_the_file_is_refused_by_the_running_service(
    make_client: MakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.keys.RELOAD_SECONDS", 0.0)
    file = tmp_path / "keys"
    file.write_text(f"a {KEY}\n")
    async with make_client(security={"api_keys_file": str(file)}) as client:
        before = await client.get("/v1/models", headers=FORMS[0])
        (tmp_path / "fresh").write_text("b another-key-of-the-tests\n")
        (tmp_path / "fresh").rename(file)
        after = await client.get("/v1/models", headers=FORMS[0])

    assert before.status_code == 200
    assert after.status_code == 401


async def test_the_document_shows_the_scheme_where_keys_are_set_and_only_there(
    keyed_client: Client, scripted_client: Client
) -> None:
    document = (await keyed_client.get("/openapi.json")).json()
    without = (await scripted_client.get("/openapi.json")).json()

    assert document["components"]["securitySchemes"]["Bearer"]["scheme"] == "bearer"
    assert document["components"]["securitySchemes"]["X-API-Key"]["in"] == "header"
    # Either will do: a list of two, not an object of two.
    assert document["paths"]["/v1/transcribe"]["post"]["security"] == [{"Bearer": []}, {"X-API-Key": []}]
    assert "security" not in document["paths"]["/health/ready"]["get"]
    assert "securitySchemes" not in without["components"]
    assert "security" not in json.dumps(without["paths"])


async def test_the_holder_of_the_key_is_known_to_what_serves_the_request(
    keyed_client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "app.access")
    await keyed_client.post("/v1/transcribe", files={"file": SPEECH}, headers=FORMS[0])
    await keyed_client.post("/v1/transcribe", files={"file": SPEECH})

    clients = [getattr(record, "client", None) for record in caplog.records if record.name == "app.access"]
    assert clients == ["team-a", None]


async def test_the_limits_of_a_client_hold_by_the_name_of_its_key(make_client: MakeClient) -> None:
    keys = f"team-a {KEY}, team-a a-second-key-of-team-a, team-b another-key-of-the-tests"
    holding = Holding()
    limits = {"security": {"api_keys": keys}, "clients": {"max_requests": 1}}
    async with make_client(ScriptedEngine(holding), **limits) as client:
        held = asyncio.create_task(client.post("/v1/transcribe", files={"file": SPEECH}, headers=FORMS[0]))
        await holding.arrived.wait()
        same = await client.post("/v1/transcribe", content=SPEECH, headers={"X-API-Key": "a-second-key-of-team-a"})
        holding.arrived.clear()
        theirs = {"X-API-Key": "another-key-of-the-tests", "X-Request-ID": "theirs"}
        other = asyncio.create_task(client.post("/v1/transcribe", content=SPEECH, headers=theirs))
        await holding.arrived.wait()
        holding.gate.set()
        answers = await asyncio.gather(held, other)

    assert same.status_code == 429
    assert same.json()["error"]["code"] == "too_many_requests_at_once"
    assert [answer.status_code for answer in answers] == [200, 200]
