"""Server-sent events over real sockets: what proxies, SDKs and people who leave see of them."""

import asyncio
import json
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from engine.interface import SpeechOutput, SpeechRequest
from engine.scripted import Act, ScriptedEngine
from tests.audio_factory import clip, pcm16, silence, wav
from tests.conftest import MakeClient
from tests.live import eventually, live

ROUTES = ["/v1/transcribe", "/v1/audio/transcriptions"]
SPEECH = wav(pcm16(clip("library-us-female.wav")))
STORY = wav(pcm16(clip("harbor-story-long.flac")))


@pytest.fixture(autouse=True)
def _same_loop(one_event_loop: None) -> None:
    """Decode workers belong to it."""


def index_of(request: SpeechRequest) -> int:
    return int(request.request_id.rsplit("-", 1)[1])


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


async def read(client: httpx.AsyncClient, audio: bytes, route: str = ROUTES[0], **fields: str) -> list[dict[str, Any]]:
    form = {"stream": "true", **fields}
    async with client.stream("POST", route, files={"file": audio}, data=form) as answer:
        assert answer.status_code == 200
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        assert answer.headers["Cache-Control"] == "no-cache"
        assert answer.headers["X-Accel-Buffering"] == "no"
        assert answer.headers["X-Request-ID"]
        return [event async for event in events(answer)]


def words_by_segment(request: SpeechRequest) -> Act:
    index = 0 if request.request_id == "warm-up" else index_of(request)
    return Act(words=(f"This is segment {index},", "in some", "pieces."))


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("audio", [SPEECH, STORY], ids=["one segment", "several segments"])
async def test_deltas_join_to_the_text_of_the_whole_answer(route: str, audio: bytes) -> None:
    async with live(ScriptedEngine(words_by_segment)) as client:
        *deltas, done = await read(client, audio, route)
        whole = (await client.post(route, files={"file": audio})).json()

    assert {event["type"] for event in deltas} == {"transcript.text.delta"}
    assert done["type"] == "transcript.text.done"
    assert len(deltas) > 1
    assert "".join(event["delta"] for event in deltas) == done["text"] == whole["text"]
    assert "pieces. This is segment" in done["text"] or audio is SPEECH
    assert done["duration"] == whole["duration"]
    assert done["usage"]["total_tokens"] == done["usage"]["input_tokens"] + done["usage"]["output_tokens"]


async def test_verbose_streams_tell_segments_after_their_text() -> None:
    async with live(ScriptedEngine(words_by_segment)) as client:
        *told, done = await read(client, STORY, response_format="verbose_json")
        whole = (await client.post(ROUTES[0], files={"file": STORY}, data={"response_format": "verbose_json"})).json()

    segments = [event for event in told if event["type"] == "transcript.text.segment"]
    assert told[-1] == segments[-1]
    assert [(each["start"], each["end"], each["text"]) for each in segments] == [
        (each["start"], each["end"], each["text"]) for each in whole["segments"]
    ]
    assert {each["speaker"] for each in segments} == {""}
    assert done["text"] == whole["text"]


async def test_no_speech_is_done_without_a_delta() -> None:
    async with live() as client:
        (done,) = await read(client, wav(pcm16(silence(3.0))))

    assert done["type"] == "transcript.text.done"
    assert done["text"] == ""
    assert done["no_speech"] is True


async def test_segments_stream_in_order_as_soon_as_each_is_ready() -> None:
    gates = [asyncio.Event() for _ in range(100)]

    def script(request: SpeechRequest) -> Act:
        if request.request_id == "warm-up":
            return Act()
        return Act(words=(f"<{index_of(request)}>",), gate=gates[index_of(request)])

    async with live(ScriptedEngine(script)) as client:
        form = {"stream": "true"}
        gates[1].set()  # ready first, told second
        gates[0].set()
        async with client.stream("POST", ROUTES[0], files={"file": STORY}, data=form) as answer:
            arriving = events(answer)
            assert (await anext(arriving))["delta"] == "<0>"
            assert (await anext(arriving))["delta"] == " <1>"
            for gate in gates:  # all others waited while these two were read
                gate.set()
            rest = [event async for event in arriving]

    assert rest[-1]["text"].startswith("<0> <1> <2>")


async def test_pieces_of_a_segment_come_before_its_end() -> None:
    gate = asyncio.Event()

    class Halting(ScriptedEngine):
        async def generate(
            self, request: SpeechRequest, *, incremental: bool = False
        ) -> AsyncGenerator[SpeechOutput, None]:
            async for output in super().generate(request, incremental=incremental):
                if output.finish_reason and request.request_id != "warm-up":
                    await gate.wait()
                yield output

    async with (
        live(Halting(lambda _: Act(words=("one", "two", "three")))) as client,
        client.stream("POST", ROUTES[0], files={"file": SPEECH}, data={"stream": "true"}) as answer,
    ):
        arriving = events(answer)
        assert (await anext(arriving))["delta"] == "one"
        gate.set()
        assert [event async for event in arriving][-1]["text"] == "one two three"


async def test_a_quiet_stream_is_kept_alive_by_comments() -> None:
    gate = asyncio.Event()
    engine = ScriptedEngine(
        lambda request: Act(words=("late",), gate=None if request.request_id == "warm-up" else gate)
    )
    async with (
        live(engine, server={"keep_alive_seconds": 0.05}) as client,
        client.stream("POST", ROUTES[0], files={"file": SPEECH}, data={"stream": "true"}) as answer,
    ):
        lines = answer.aiter_lines()
        heard = [line for line in [await anext(lines) for _ in range(6)] if line]
        gate.set()
        rest = [line async for line in lines if line]

    assert answer.status_code == 200
    assert heard == [": still working"] * 3
    assert json.loads(rest[-1].removeprefix("data: "))["text"] == "late"


@pytest.mark.parametrize("route", ROUTES)
async def test_what_fails_before_the_first_text_has_its_status(route: str, make_client: MakeClient) -> None:
    engine = ScriptedEngine(lambda request: Act(fail=request.request_id != "warm-up"))
    async with make_client(engine) as client:
        failed = await client.post(route, files={"file": SPEECH}, data={"stream": "true"})
        picture = await client.post(route, files={"file": b"\x89PNG\r\n\x1a\n" + bytes(100)}, data={"stream": "true"})

    assert failed.status_code == 500
    assert failed.json()["error"]["code"] == "engine_failed"
    assert picture.status_code == 415


async def test_what_fails_later_is_the_last_event_and_counts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "app.access")
    engine = ScriptedEngine(lambda request: Act(words=("half", "way"), fail=request.request_id != "warm-up"))
    async with live(engine) as client:
        first, last = await read(client, SPEECH)
        healthy = await client.get("/health/ready")

    assert first["delta"] == "half"
    assert last["type"] == "error"
    assert last["error"]["code"] == "engine_failed"
    assert "scripted" not in last["error"]["message"]
    assert healthy.status_code == 200
    assert any(" /v1/transcribe 500 " in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("stream", ["true", "false"])
async def test_leaving_ends_the_work_and_leaves_nothing_behind(
    stream: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "app.access")
    arrived = asyncio.Event()

    def script(request: SpeechRequest) -> Act:
        if request.request_id == "warm-up":
            return Act()
        if index_of(request) == 1:
            arrived.set()
        return Act(words=("word",), gate=None if index_of(request) == 0 else asyncio.Event())

    engine = ScriptedEngine(script)
    async with live(engine, server={"spool_dir": str(tmp_path)}) as client:
        (spool,) = files(tmp_path)
        leaving = asyncio.create_task(client.post(ROUTES[0], files={"file": STORY}, data={"stream": stream}))
        await arrived.wait()
        assert len(files(spool)) == 1
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await eventually(lambda: not engine.running and not files(spool), seconds=1)
        await eventually(lambda: any(" 499 " in record.getMessage() for record in caplog.records), seconds=1)

    assert len(engine.aborted) >= 1


async def test_clients_that_leave_at_any_moment_leave_nothing_behind(tmp_path: Path) -> None:
    moments = random.Random(0)
    arrived: asyncio.Queue[str] = asyncio.Queue()

    def stall(request: SpeechRequest) -> Act:
        if request.request_id == "warm-up" or request.request_id.startswith("last"):
            return Act(words=("done",))
        arrived.put_nowait(request.request_id)
        return Act(gate=asyncio.Event())

    engine = ScriptedEngine(stall)
    async with live(engine, server={"spool_dir": str(tmp_path)}) as client:
        (spool,) = files(tmp_path)

        def come() -> asyncio.Task[httpx.Response]:
            route, form = moments.choice(ROUTES), {"stream": moments.choice(["true", "false"])}
            return asyncio.create_task(client.post(route, files={"file": SPEECH}, data=form))

        for _ in range(4):
            clients = [come() for _ in range(6)]
            await arrived.get()  # one is with the engine, others upload, wait or are being decoded
            await asyncio.sleep(moments.uniform(0.0, 0.1))
            for leaving in clients:
                leaving.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
        await eventually(lambda: not engine.running and not files(spool), seconds=5)
        answer = await client.post(ROUTES[0], files={"file": SPEECH}, headers={"X-Request-ID": "last"})

    assert answer.json()["text"] == "done"
    assert len(engine.aborted) >= 4


async def test_leaving_while_decoding_ends_the_work(tmp_path: Path) -> None:
    long = wav(pcm16(np.tile(clip("harbor-story-long.flac"), 40)))
    engine = ScriptedEngine()
    async with live(engine, server={"spool_dir": str(tmp_path)}) as client:
        (spool,) = files(tmp_path)
        leaving = asyncio.create_task(client.post(ROUTES[0], files={"file": long}))
        await eventually(lambda: list(spool.rglob("*.waveform")), seconds=30)
        served = len(engine.requests)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await eventually(lambda: not files(spool), seconds=2)

    assert len(engine.requests) == served


@pytest.mark.parametrize("response_format", ["text", "srt", "vtt"])
async def test_only_json_streams(response_format: str, make_client: MakeClient) -> None:
    async with make_client() as client:
        form = {"stream": "true", "response_format": response_format}
        answer = await client.post(ROUTES[0], files={"file": SPEECH}, data=form)

    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == "response_format"


async def test_openais_asynchronous_sdk_streams() -> None:
    async with (
        live(ScriptedEngine(words_by_segment)) as client,
        openai.AsyncOpenAI(base_url=f"{client.base_url}/v1", api_key="none") as sdk,
    ):
        stream = await sdk.audio.transcriptions.create(model="whisper-1", file=("a.wav", STORY), stream=True)
        *deltas, done = [event async for event in stream]

    assert done.type == "transcript.text.done"
    assert all(event.type == "transcript.text.delta" for event in deltas)
    assert "".join(event.delta for event in deltas if event.type == "transcript.text.delta") == done.text
    assert done.usage is not None
    assert done.usage.output_tokens > 0


async def test_openais_synchronous_sdk_streams() -> None:
    async with live(ScriptedEngine(words_by_segment)) as client:

        def read_all() -> list[Any]:
            with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none") as sdk:
                return list(sdk.audio.transcriptions.create(model="whisper-1", file=("a.wav", SPEECH), stream=True))

        *deltas, done = await asyncio.to_thread(read_all)

    assert "".join(event.delta for event in deltas) == done.text


async def test_openais_sdk_raises_what_fails_after_the_start() -> None:
    engine = ScriptedEngine(lambda request: Act(words=("half", "way"), fail=request.request_id != "warm-up"))
    async with (
        live(engine) as client,
        openai.AsyncOpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as sdk,
    ):
        stream = await sdk.audio.transcriptions.create(model="whisper-1", file=("a.wav", SPEECH), stream=True)
        with pytest.raises(openai.APIError, match="engine failed"):
            async for _ in stream:
                pass
