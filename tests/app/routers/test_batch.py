import asyncio
from typing import Any

import httpx
import pytest

from engine.interface import SpeechRequest
from engine.scripted import Act, ScriptedEngine
from tests.audio_factory import clip, pcm16, silence, wav
from tests.conftest import Client, MakeClient

SPEECH = wav(pcm16(clip("library-us-female.wav")))
REPORT = wav(pcm16(clip("report-us-male.wav")))
PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(100)
ROUTE = "/v1/transcribe/batch"


async def post(client: Client, *files: tuple[str, bytes], **fields: Any) -> httpx.Response:
    return await client.post(ROUTE, files=[("audio", file) for file in files], data=fields)


async def test_each_file_has_its_transcript_in_order(scripted_client: Client) -> None:
    answer = await post(scripted_client, ("a.wav", SPEECH), ("b.wav", REPORT), ("c.wav", wav(pcm16(silence(2)))))

    assert answer.status_code == 200
    body = answer.json()
    assert (body["succeeded"], body["failed"]) == (3, 0)
    assert [result["index"] for result in body["results"]] == [0, 1, 2]
    assert [result["name"] for result in body["results"]] == ["a.wav", "b.wav", "c.wav"]
    assert [result["status"] for result in body["results"]] == [200, 200, 200]
    durations = [result["transcript"]["duration"] for result in body["results"]]
    assert durations == pytest.approx([6.22, 4.62, 2.0], abs=0.2)
    assert [result["transcript"]["no_speech"] for result in body["results"]] == [False, False, True]
    assert all("error" not in result for result in body["results"])


async def test_one_bad_file_does_not_fail_the_rest(make_client: MakeClient) -> None:
    engine = ScriptedEngine(lambda request: Act(words=("fine",), fail=request.request_id.startswith("test-3")))
    async with make_client(engine) as client:
        answer = await post(client, ("a.png", PICTURE), ("b.wav", SPEECH), ("c.wav", b""), ("d.wav", SPEECH))

    body = answer.json()
    assert answer.status_code == 200
    assert (body["succeeded"], body["failed"]) == (1, 3)
    assert [result["status"] for result in body["results"]] == [415, 200, 400, 500]
    assert body["results"][1]["transcript"]["text"] == "fine"
    errors = [result["error"]["code"] for result in body["results"] if result["status"] != 200]
    assert errors == ["not_audio", "malformed_request", "engine_failed"]
    assert all("transcript" not in result for result in body["results"] if result["status"] != 200)


async def test_text_in_place_of_a_file_fails_alone(scripted_client: Client) -> None:
    files = [("audio", (None, b"clip.wav")), ("file", ("b.wav", SPEECH))]

    body = (await scripted_client.post(ROUTE, files=files)).json()

    assert [result["status"] for result in body["results"]] == [422, 200]
    assert body["results"][0]["error"]["code"] == "audio_not_a_file"


@pytest.mark.parametrize(("response_format", "begins"), [("text", "audio of"), ("srt", "1\n00:"), ("vtt", "WEBVTT")])
async def test_fields_hold_for_all_files(response_format: str, begins: str, scripted_client: Client) -> None:
    body = (await post(scripted_client, ("a", SPEECH), ("b", REPORT), response_format=response_format)).json()

    assert all(result["transcript"].startswith(begins) for result in body["results"])


async def test_verbose_files_have_segments(scripted_client: Client) -> None:
    fields = {"response_format": "verbose_json", "timestamp_granularities[]": "segment"}
    body = (await post(scripted_client, ("a", SPEECH), **fields)).json()

    assert len(body["results"][0]["transcript"]["segments"]) == 1


@pytest.mark.parametrize(("field", "value"), [("response_format", "xml"), ("stream", "true"), ("language", "xx")])
async def test_a_field_that_cannot_be_served_fails_all(field: str, value: str, scripted_client: Client) -> None:
    answer = await post(scripted_client, ("a", SPEECH), **{field: value})

    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == field


async def test_a_batch_without_files_is_refused(scripted_client: Client) -> None:
    nothing = await scripted_client.post(ROUTE, files={"language": (None, "en")})
    bare = await scripted_client.post(ROUTE, content=SPEECH)

    assert nothing.json()["error"]["code"] == "missing_audio"
    assert bare.status_code == 400


async def test_a_batch_leaves_room_for_others(make_client: MakeClient) -> None:
    gate, full = asyncio.Event(), asyncio.Event()

    def script(request: SpeechRequest) -> Act:
        if request.request_id == "warm-up":
            return Act()
        if len(engine.running) == 1:  # the other one of two is under way
            full.set()
        return Act(words=("done",), gate=gate)

    engine = ScriptedEngine(script)
    async with make_client(engine, concurrency={"files_per_batch": 2}) as client:
        answering = asyncio.create_task(post(client, *[("a", REPORT)] * 5))
        await full.wait()
        gate.set()
        body = (await answering).json()

    assert body["succeeded"] == 5
    assert engine.peak_running == 2
