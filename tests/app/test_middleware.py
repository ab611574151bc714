import asyncio
import logging
from typing import Any

import pytest

from engine.interface import SpeechRequest
from engine.scripted import Act, ScriptedEngine
from tests.audio_factory import clip, pcm16, wav
from tests.conftest import Client, MakeClient
from tests.holding import Holding
from tests.live import live

SPEECH = wav(pcm16(clip("library-us-female.wav")))
PAGE = "https://app.example.org"
KEY = "a-key-of-the-tests-0123456789"


def broken(request: SpeechRequest) -> Act:
    if request.request_id == "warm-up":
        return Act()
    raise ZeroDivisionError("secret detail")


@pytest.mark.parametrize(
    ("path", "status"),
    [("/v1/models", 200), ("/health/live", 200), ("/openapi.json", 200), ("/nothing", 404), ("/v1/transcribe", 405)],
)
async def test_every_answer_tells_browsers_to_be_careful(path: str, status: int, scripted_client: Client) -> None:
    answer = await scripted_client.get(path)

    assert answer.status_code == status
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"


async def test_without_origins_no_page_may_read_answers(scripted_client: Client) -> None:
    answer = await scripted_client.get("/v1/models", headers={"Origin": PAGE})

    assert not [name for name in answer.headers if name.lower().startswith("access-control-")]


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [((PAGE,), PAGE, PAGE), ((PAGE,), "https://evil.example", None), (("*",), "https://any.example", "*")],
)
async def test_answers_of_every_status_say_which_page_may_read_them(
    origins: tuple[str, ...], origin: str, allowed: str | None, make_client: MakeClient
) -> None:
    settings: dict[str, Any] = {
        "security": {"cors_origins": origins, "api_keys": KEY},
        "limits": {"max_upload_bytes": 300_000},
    }
    page = {"Origin": origin}
    keyed = {**page, "Authorization": f"Bearer {KEY}"}
    async with make_client(ScriptedEngine(broken), **settings) as client:
        answers = {
            200: await client.get("/v1/models", headers=keyed),
            401: await client.post("/v1/transcribe", files={"file": SPEECH}, headers=page),
            404: await client.get("/nothing", headers=keyed),
            405: await client.get("/v1/transcribe", headers=keyed),
            413: await client.post("/v1/transcribe", content=_endless(), headers=keyed),
            415: await client.post("/v1/transcribe", files={"file": b"text, no sound"}, headers=keyed),
            500: await client.post("/v1/transcribe", files={"file": SPEECH}, headers=keyed),
        }

    for status, answer in answers.items():
        assert answer.status_code == status
        assert answer.headers.get("Access-Control-Allow-Origin") == allowed
        assert "Access-Control-Allow-Credentials" not in answer.headers
        assert "X-Request-ID" in answer.headers["Access-Control-Expose-Headers"]
        assert answer.headers["X-Request-ID"] == "test"
        assert "Origin" in answer.headers["Vary"] or allowed == "*"


async def _endless() -> Any:
    """More than any limit allows, and never its end."""
    for _ in range(1000):
        yield bytes(100_000)
    msg = "the service read on after its limit"
    raise AssertionError(msg)


async def test_a_full_queue_is_told_to_pages_too(make_client: MakeClient) -> None:
    holding = Holding()
    settings: dict[str, Any] = {
        "security": {"cors_origins": (PAGE,)},
        "concurrency": {"max_requests": 1},
    }
    async with make_client(ScriptedEngine(holding), **settings) as client:
        running = asyncio.create_task(client.post("/v1/transcribe", files={"file": SPEECH}))
        await holding.arrived.wait()
        refused = await client.post("/v1/transcribe", files={"file": SPEECH}, headers={"Origin": PAGE})
        holding.gate.set()
        await running

    assert refused.status_code == 429
    assert refused.headers["Access-Control-Allow-Origin"] == PAGE
    assert "Retry-After" in refused.headers["Access-Control-Expose-Headers"]


@pytest.mark.parametrize(("origin", "status"), [(PAGE, 200), ("https://evil.example", 400)])
async def test_a_page_may_ask_first_and_needs_no_key_for_that(
    origin: str, status: int, make_client: MakeClient
) -> None:
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, x-stainless-lang",
    }
    async with make_client(security={"cors_origins": (PAGE,), "api_keys": KEY}) as client:
        answer = await client.options("/v1/audio/transcriptions", headers=headers)

    assert answer.status_code == status
    assert answer.headers.get("Access-Control-Allow-Origin") == (PAGE if status == 200 else None)
    if status == 200:
        assert "x-stainless-lang" in answer.headers["Access-Control-Allow-Headers"]


async def test_the_unexpected_is_logged_once_and_the_connection_lives_on(caplog: pytest.LogCaptureFixture) -> None:
    async with live(ScriptedEngine(broken)) as client:
        answer = await client.post("/v1/transcribe", files={"file": SPEECH})
        after = await client.get("/health/live")

    assert answer.status_code == 500
    assert after.status_code == 200
    assert [record.name for record in caplog.records if record.levelno >= logging.ERROR] == ["app.errors"]


async def test_the_access_log_has_the_route_and_nothing_a_caller_made_up(
    make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "app.access")
    async with make_client() as client:
        await client.post("/v1/transcribe?prompt=secretprompt", content=SPEECH)
        await client.post("/v1/transcribe/batch", files=[("audio", ("secretname.wav", SPEECH))] * 2)
        await client.get("/secretpath%0aforged%1b[31m")

    records = [record for record in caplog.records if record.name == "app.access"]
    assert [(record.__dict__["route"], record.__dict__["status"]) for record in records] == [
        ("/v1/transcribe", 200),
        ("/v1/transcribe/batch", 200),
        ("unmatched", 404),
    ]
    assert [record.__dict__["audio_seconds"] for record in records] == [6.225, 12.45, None]
    assert all(record.__dict__["milliseconds"] > 0 for record in records)
    assert "secret" not in caplog.text
    assert "forged" not in caplog.text
