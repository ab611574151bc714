import io
import json
import logging
import re
from collections.abc import Callable, Iterator
from typing import Literal

import pytest

from app import logs
from engine.interface import SpeechRequest
from engine.scripted import Act, ScriptedEngine
from tests.audio_factory import clip, pcm16, wav
from tests.conftest import MakeClient

SPEECH = wav(pcm16(clip("library-us-female.wav")))
KEY = "a-key-of-the-tests-0123456789"
Configure = Callable[..., io.StringIO]


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Iterator[Configure]:
    """Sets up logging as the service does, gives what it writes, and takes it all back."""
    names = ("app", "engine", "uvicorn")
    before = {log: (log.level, log.handlers[:], log.propagate) for log in map(logging.getLogger, names)}
    written = io.StringIO()

    def set_up(style: Literal["line", "json"] = "line", *, content: bool = False, level: str = "info") -> io.StringIO:
        monkeypatch.setattr("sys.stderr", written)
        logs.configure(level, style=style, content=content)
        return written

    yield set_up
    for log, (level, handlers, propagate) in before.items():
        log.setLevel(level)
        log.handlers[:] = handlers
        log.propagate = propagate


def throw(error: Exception, cause: Exception | None = None) -> None:
    raise error from cause


def fail(error: Exception, cause: Exception | None = None) -> None:
    try:
        throw(error, cause)
    except type(error):
        logging.getLogger("app.test").exception("it failed")


@pytest.mark.parametrize("style", ["line", "json"])
def test_control_characters_cannot_forge_a_record(style: Literal["line", "json"], configure: Configure) -> None:
    written = configure(style)
    forged = "name\r\n2026-01-01 00:00:00 INFO app.access: forged\x1b[2J\x85\u2028\u202e"

    logging.getLogger("app.test").info("a name: %s", forged)

    text = written.getvalue()
    assert len(text.splitlines()) == 1
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e]", text)
    assert "forged" in text


@pytest.mark.parametrize("style", ["line", "json"])
def test_messages_of_exceptions_are_written_only_where_asked_for(
    style: Literal["line", "json"], configure: Configure
) -> None:
    written = configure(style)
    fail(ValueError("the caller's words"), KeyError("the caller's words"))
    quiet = written.getvalue()
    configure(style, content=True)
    fail(ValueError("the caller's words\nforged"))
    told = written.getvalue().removeprefix(quiet)

    assert "the caller's words" not in quiet
    assert "KeyError" in quiet
    assert "ValueError" in quiet
    assert "test_logs.py" in quiet
    assert "the caller's words" in told
    assert "\nforged" not in told


def test_what_the_system_says_is_kept(configure: Configure) -> None:
    written = configure()
    path = "/spool/secret-name.wav"
    fail(OSError(28, "No space left on device", path))

    assert "OSError: No space left on device" in written.getvalue()
    assert path not in written.getvalue()


def test_groups_and_rings_of_exceptions_are_told_to_their_end(configure: Configure) -> None:
    written = configure()
    one, other = KeyError("a"), ValueError("b")
    one.__context__, other.__context__ = other, one
    logging.getLogger("app.test").error("it failed", exc_info=ExceptionGroup("c", [one, TypeError("d")]))

    for name in ("ExceptionGroup", "KeyError", "ValueError", "TypeError"):
        assert name in written.getvalue()


async def test_json_records_have_the_request_id_and_the_numbers(configure: Configure, make_client: MakeClient) -> None:
    written = configure("json")
    async with make_client() as client:
        await client.post("/v1/transcribe", files={"file": SPEECH}, headers={"X-Request-ID": "a-request"})

    records = [json.loads(line) for line in written.getvalue().splitlines()]
    (access,) = [record for record in records if record["logger"] == "app.access"]
    assert access["request_id"] == "a-request"
    assert access["level"] == "INFO"
    assert access["route"] == "/v1/transcribe"
    assert access["status"] == 200
    assert access["audio_seconds"] == 6.225
    assert access["milliseconds"] > 0
    assert "timestamp" in access


@pytest.mark.parametrize("style", ["line", "json"])
async def test_nothing_that_a_caller_sends_or_gets_is_in_the_log(
    style: Literal["line", "json"], configure: Configure, make_client: MakeClient
) -> None:
    def script(request: SpeechRequest) -> Act:
        if "fail" in request.request_id:
            raise RuntimeError(f"unexpected {request.context}")
        return Act(words=("secret-transcript",))

    form = {"prompt": "secret-prompt", "hotwords": "secret-word"}
    key = {"Authorization": f"Bearer {KEY}"}
    files = {"file": ("secret-name.wav", SPEECH)}
    written = configure(style, level="debug")
    async with make_client(ScriptedEngine(script), security={"api_keys": KEY}) as client:
        answers = [
            await client.post("/v1/transcribe", files=files, data=form, headers=key),
            await client.post("/v1/transcribe", files=files, data=form, headers={**key, "X-Request-ID": "fail"}),
            await client.post("/v1/transcribe", files={"file": ("secret-name", b"hi")}, data=form, headers=key),
            await client.post("/v1/transcribe", files=files, data={"language": "secret-language"}, headers=key),
            await client.post("/v1/transcribe", files=files, data={"secret-field": "x"}, headers=key),
            await client.post("/v1/transcribe", content=SPEECH, params=form, headers=key),
            await client.post("/v1/transcribe", files=files, headers={"X-API-Key": "secret-wrong-key"}),
            await client.post("/v1/transcribe/batch", files={"audio": ("secret-name", SPEECH)}, data=form, headers=key),
            await client.get("/secret-path", headers=key),
        ]

    assert [answer.status_code for answer in answers] == [200, 500, 415, 422, 422, 200, 401, 200, 404]
    assert "secret-transcript" in answers[0].text
    assert "RuntimeError" in written.getvalue()
    assert "secret" not in written.getvalue()
    assert KEY not in written.getvalue()
