import asyncio
import logging
from collections.abc import AsyncIterator

import httpx
import pytest

from app.errors import RULES
from app.transcription.exceptions import TranscriptionError
from engine.interface import EngineError
from engine.scripted import Act, ScriptedEngine
from tests.audio_factory import clip, film, pcm16, wav
from tests.conftest import Client, MakeClient
from tests.holding import Holding

ROUTES = ["/v1/transcribe", "/v1/audio/transcriptions"]
SPEECH = wav(pcm16(clip("library-us-female.wav")))
HEADER_ONLY = wav(b"")


def check(answer: httpx.Response, status: int, code: str, param: str | None = None) -> dict[str, object]:
    """Every error has the one shape, on every route."""
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    error: dict[str, object] = answer.json()["error"]
    assert set(error) == {"code", "type", "message", "param", "limit", "request_id"}
    assert error["code"] == code
    assert error["param"] == param
    assert error["request_id"] == answer.headers["X-Request-ID"]
    assert error["type"] == ("invalid_request_error" if status < 500 else "server_error")
    assert error["message"]
    return error


def subclasses(cls: type[Exception]) -> list[type[Exception]]:
    return [sub for child in cls.__subclasses__() for sub in (child, *subclasses(child))]


@pytest.mark.parametrize("error", [*subclasses(TranscriptionError), *subclasses(EngineError)])
def test_every_error_of_domain_and_engine_has_a_rule_of_its_family(error: type[Exception]) -> None:
    family = next(cls for cls in error.__mro__ if cls in RULES)

    assert family is not Exception or error.__name__ == "EngineStartError"


@pytest.mark.parametrize("route", ROUTES)
async def test_no_audio_part(route: str, scripted_client: Client) -> None:
    answer = await scripted_client.post(route, files={"language": (None, "en")})

    error = check(answer, 422, "missing_audio", "audio")
    assert "`language`" in str(error["message"])


@pytest.mark.parametrize("route", ROUTES)
async def test_a_string_in_place_of_a_file(route: str, scripted_client: Client) -> None:
    answer = await scripted_client.post(route, files={"audio": (None, "clip.wav")})

    error = check(answer, 422, "audio_not_a_file", "audio")
    assert "-F audio=@clip.wav" in str(error["message"])


@pytest.mark.parametrize("route", ROUTES)
async def test_an_empty_part(route: str, scripted_client: Client) -> None:
    check(await scripted_client.post(route, files={"file": ("clip.wav", b"")}), 400, "malformed_request", "audio")


@pytest.mark.parametrize("route", ROUTES)
async def test_half_a_header(route: str, scripted_client: Client) -> None:
    answer = await scripted_client.post(route, files={"file": ("clip.wav", SPEECH[:20])})

    assert 400 <= answer.status_code < 500
    check(answer, answer.status_code, answer.json()["error"]["code"], "audio")


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("text", b"hello, world\n" * 200),
        ("PNG", b"\x89PNG\r\n\x1a\n" + bytes(100)),
        ("HTML", b"<!DOCTYPE html><html><body>no</body></html>"),
        ("ZIP", b"PK\x03\x04" + bytes(100)),
    ],
)
async def test_what_is_not_audio_is_told_what_it_looks_like(
    name: str, content: bytes, route: str, scripted_client: Client
) -> None:
    answer = await scripted_client.post(route, files={"file": ("clip.wav", content, "audio/wav")})

    error = check(answer, 415, "not_audio", "audio")
    assert name.lower() in str(error["message"]).lower()


@pytest.mark.parametrize("route", ROUTES)
async def test_a_film_without_sound(route: str, scripted_client: Client) -> None:
    check(await scripted_client.post(route, files={"file": ("clip.mp4", film())}), 422, "no_audio_stream", "audio")


@pytest.mark.parametrize("route", ROUTES)
async def test_a_header_without_samples(route: str, scripted_client: Client) -> None:
    check(await scripted_client.post(route, files={"file": ("clip.wav", HEADER_ONLY)}), 422, "empty_audio", "audio")


@pytest.mark.parametrize("route", ROUTES)
async def test_an_upload_that_announces_too_much_is_refused_before_it_is_read(
    route: str, make_client: MakeClient
) -> None:
    reads = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal reads
        reads += 1
        yield b"x" * 2048

    async with make_client(limits={"max_upload_bytes": 1024}) as client:
        headers = {"Content-Type": "multipart/form-data; boundary=b", "Content-Length": "2048"}
        answer = await client.post(route, content=body(), headers=headers)

    error = check(answer, 413, "too_large", "audio")
    assert error["limit"] == {
        "name": "request body bytes",
        "value": 1024,
        "setting": "OMNIHEAR_LIMITS_MAX_UPLOAD_BYTES",
    }
    assert reads == 0


async def test_an_upload_that_grows_too_large_is_refused_where_it_passes_the_limit(make_client: MakeClient) -> None:
    reads = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal reads
        for _ in range(1000):
            reads += 1
            yield b"x" * 1024

    async with make_client(limits={"max_upload_bytes": 10 * 1024}) as client:
        answer = await client.post("/v1/transcribe", content=body())

    check(answer, 413, "too_large", "audio")
    assert reads == 11


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("limits", "setting"),
    [
        ({"max_audio_seconds": 2.0}, "OMNIHEAR_LIMITS_MAX_AUDIO_SECONDS"),
        ({"max_decoded_bytes": 1000}, "OMNIHEAR_LIMITS_MAX_DECODED_BYTES"),
    ],
)
async def test_audio_that_is_too_long_names_limit_value_and_setting(
    limits: dict[str, float], setting: str, route: str, make_client: MakeClient
) -> None:
    async with make_client(limits=limits) as client:
        answer = await client.post(route, files={"file": SPEECH})

    error = check(answer, 413, "too_large", "audio")
    assert isinstance(error["limit"], dict)
    assert error["limit"]["setting"] == setting
    assert error["limit"]["value"] == next(iter(limits.values()))


@pytest.mark.parametrize("body", [b"", b"--b\r\n", b"--b\r\nnonsense\r\n\r\n--b--\r\n", b"xx", b"--b--", SPEECH])
async def test_a_broken_form_is_the_callers_fault(body: bytes, scripted_client: Client) -> None:
    answer = await scripted_client.post(
        "/v1/transcribe", content=body, headers={"Content-Type": "multipart/form-data; boundary=b"}
    )

    assert answer.status_code in (400, 422)
    check(answer, answer.status_code, answer.json()["error"]["code"], answer.json()["error"]["param"])


async def test_a_form_without_boundary(scripted_client: Client) -> None:
    answer = await scripted_client.post(
        "/v1/transcribe", content=SPEECH, headers={"Content-Type": "multipart/form-data"}
    )

    error = check(answer, 400, "malformed_request")
    assert "boundary" in str(error["message"])


async def test_openais_route_wants_a_form(scripted_client: Client) -> None:
    check(await scripted_client.post("/v1/audio/transcriptions", content=SPEECH), 400, "malformed_request", "file")


async def test_two_files_that_differ(scripted_client: Client) -> None:
    answer = await scripted_client.post("/v1/transcribe", files={"audio": SPEECH, "file": SPEECH[:-2]})

    check(answer, 422, "several_audio_parts", "file")


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("other", [SPEECH, SPEECH[:-2], b""])
async def test_two_parts_of_one_name(other: bytes, route: str, scripted_client: Client) -> None:
    answer = await scripted_client.post(route, files=[("audio", SPEECH), ("audio", other)])

    error = check(answer, 422, "several_audio_parts", "audio")
    assert "/v1/transcribe/batch" in str(error["message"])


async def test_the_same_file_under_both_names_is_one(scripted_client: Client) -> None:
    answer = await scripted_client.post("/v1/transcribe", files={"audio": SPEECH, "file": SPEECH})

    assert answer.status_code == 200


async def test_a_file_in_a_field_of_text(scripted_client: Client) -> None:
    answer = await scripted_client.post("/v1/transcribe", files={"audio": SPEECH, "prompt": ("p.txt", b"words")})

    check(answer, 422, "unknown_field", "prompt")


async def test_a_field_that_is_not_utf8(scripted_client: Client) -> None:
    answer = await scripted_client.post("/v1/transcribe", files={"audio": SPEECH, "prompt": (None, b"\xff\xfe")})

    check(answer, 422, "invalid_field", "prompt")


async def test_unknown_routes_and_methods_have_the_same_shape(scripted_client: Client) -> None:
    check(await scripted_client.get("/v1/nothing"), 404, "not_found")
    answer = await scripted_client.get("/v1/transcribe")
    check(answer, 405, "method_not_allowed")
    assert answer.headers["Allow"] == "POST"


@pytest.mark.parametrize("route", ROUTES)
async def test_while_loading_requests_are_told_when_to_come_back(route: str, make_client: MakeClient) -> None:
    gate = asyncio.Event()
    async with make_client(ScriptedEngine(start_gate=gate), wait=False) as client:
        answer = await client.post(route, files={"file": SPEECH})
        gate.set()

    check(answer, 503, "not_ready")
    assert int(answer.headers["Retry-After"]) > 0


async def test_a_failure_of_the_engine_gives_nothing_away_and_hits_one_request(
    make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    engine = ScriptedEngine(lambda request: Act(words=("fine",), fail=request.request_id.startswith("bad")))
    async with make_client(engine) as client:
        bad, good = await asyncio.gather(
            client.post("/v1/transcribe", files={"file": SPEECH}, headers={"X-Request-ID": "bad"}),
            client.post("/v1/transcribe", files={"file": SPEECH}, headers={"X-Request-ID": "good"}),
        )

    error = check(bad, 500, "engine_failed")
    assert "scripted" not in str(error["message"])
    assert any(record.levelno == logging.ERROR for record in caplog.records)
    assert good.json()["text"] == "fine"


async def test_the_death_of_the_engine_fails_what_waits_and_turns_ready_off(make_client: MakeClient) -> None:
    arrived = asyncio.Event()

    def script(request: object) -> Act:
        if getattr(request, "request_id", "").startswith("waits"):
            arrived.set()
            return Act(gate=asyncio.Event())
        return Act()

    engine = ScriptedEngine(script)
    async with make_client(engine) as client:
        waiting = asyncio.create_task(
            client.post("/v1/transcribe", files={"file": SPEECH}, headers={"X-Request-ID": "waits"})
        )
        await arrived.wait()
        engine.die()
        check(await waiting, 503, "engine_dead")
        ready = await client.get("/health/ready")

    assert ready.status_code == 503
    assert ready.json()["ready"] is False


async def test_a_full_queue_refuses_with_an_honest_time(make_client: MakeClient) -> None:
    holding = Holding("done")
    async with make_client(ScriptedEngine(holding), concurrency={"max_requests": 1}) as client:
        running = asyncio.create_task(client.post("/v1/transcribe", files={"file": SPEECH}))
        await holding.arrived.wait()
        refused = await client.post("/v1/transcribe", files={"file": SPEECH})
        holding.gate.set()
        answer = await running

    error = check(refused, 429, "overloaded")
    assert int(refused.headers["Retry-After"]) >= 1
    assert isinstance(error["limit"], dict)
    assert error["limit"]["setting"] == "OMNIHEAR_CONCURRENCY_MAX_REQUESTS"
    assert answer.status_code == 200


async def test_inference_that_takes_too_long_is_given_up_and_aborted(make_client: MakeClient) -> None:
    engine = ScriptedEngine(Holding())
    async with make_client(engine, limits={"inference_timeout_seconds": 0.05}) as client:
        answer = await client.post("/v1/transcribe", files={"file": SPEECH})

    check(answer, 504, "inference_timeout")
    assert engine.running == {}
    assert len(engine.aborted) == 1


async def test_the_unexpected_is_a_500_that_says_nothing(make_client: MakeClient) -> None:
    def script(request: object) -> Act:
        if getattr(request, "request_id", "") == "warm-up":
            return Act()
        raise ZeroDivisionError("secret detail")

    async with make_client(ScriptedEngine(script)) as client:
        answer = await client.post("/v1/transcribe", files={"file": SPEECH})

    error = check(answer, 500, "internal_error")
    assert "secret" not in answer.text
    assert "request id" in str(error["message"])
