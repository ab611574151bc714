import asyncio
import json
from collections.abc import Callable, Coroutine

import httpx
import numpy as np
import pytest

from benchmarks.answers import Load
from benchmarks.clips import Clip, Cuts, clip, read_recording
from benchmarks.dialects import Chat, Transcribe
from benchmarks.load import Limits, run, server_timing
from benchmarks.scenarios import Scenario
from tests.audio_factory import CLIPS

LIMITS = Limits()
SECOND = clip("ramp.wav", np.arange(16_000, dtype=np.int16))


@pytest.mark.parametrize(
    ("header", "stages"),
    [
        ("decode;dur=3.5, inference;dur=120", {"decode": 3.5, "inference": 120.0}),
        ('cache;desc="hit", db;desc="x";Dur="1.5"', {"db": 1.5}),
        ("miss", {}),
        ("", {}),
    ],
)
def test_server_timing_is_read(header: str, stages: dict[str, float]) -> None:
    assert server_timing(header) == stages


async def load_of(
    handler: Callable[[httpx.Request], Coroutine[None, None, httpx.Response]],
    scenario: str,
    *,
    requests: int,
    limits: Limits = LIMITS,
) -> Load:
    transport = httpx.MockTransport(handler)
    async with httpx.AsyncClient(transport=transport, base_url="http://peer") as client:
        return await run(client, Transcribe("en"), Scenario.parse(scenario), [SECOND] * requests, limits)


async def test_as_many_requests_are_on_their_way_as_there_are_callers() -> None:
    meeting = asyncio.Barrier(3)  # lets nobody through before the third is there
    present = peak = 0

    async def handler(_: httpx.Request) -> httpx.Response:
        nonlocal present, peak
        present += 1
        peak = max(peak, present)
        await meeting.wait()
        present -= 1
        return httpx.Response(200, json={"text": "heard"})

    load = await load_of(handler, "3", requests=9)

    assert (load.requests, load.words, load.errors) == (9, 9, {})
    assert peak == 3


async def test_arrivals_wait_for_nobody_and_their_latency_counts_from_when_they_were_due() -> None:
    everybody = asyncio.Barrier(5)

    async def handler(_: httpx.Request) -> httpx.Response:
        await everybody.wait()  # a closed loop would never get there
        return httpx.Response(200, json={"text": "heard"})

    load = await load_of(handler, "1000/s", requests=5)

    assert (load.requests, load.words, load.errors) == (5, 5, {})
    due = Scenario(rate=1000.0).arrivals(LIMITS.load_seconds)[:5]
    assert max(load.latencies) >= due[-1] - due[0]


async def test_a_load_ends_in_its_time_and_what_has_no_answer_is_an_error() -> None:
    async def handler(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    load = await load_of(handler, "2", requests=50, limits=Limits(load_seconds=0.01, drain_seconds=0.01))

    assert load.errors == {"unanswered": 2}


async def test_a_streamed_answer_is_read_to_its_end_whatever_its_text_holds() -> None:
    def event(delta: dict[str, str], **rest: object) -> str:
        return f"data: {json.dumps({'choices': [{'delta': delta}], **rest}, ensure_ascii=False)}\n\n"

    async def handler(_: httpx.Request) -> httpx.Response:
        last = 'data: {"choices": [], "usage": {"completion_tokens": 4}}\n\ndata: [DONE]\n\n'
        body = event({"content": ""}) + event({"content": "two\u2028"}) + event({"content": " words"}) + last
        return httpx.Response(200, text=body)

    transport = httpx.MockTransport(handler)
    async with httpx.AsyncClient(transport=transport, base_url="http://peer") as client:
        load = await run(client, Chat("en", "x"), Scenario(callers=1, stream=True), [SECOND] * 2, LIMITS)

    assert (load.errors, load.words, load.tokens) == ({}, 4, 4.0)
    assert load.first_text is not None
    assert load.latency is not None
    assert load.first_text.p50 <= load.latency.p50


async def test_a_stream_that_ends_in_an_error_is_one() -> None:
    async def handler(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text='event: error\ndata: {"type": "error"}\n\n')

    assert (await load_of(handler, "1:stream", requests=1)).errors == {"error event": 1}


async def test_a_server_that_is_away_is_an_error_by_name() -> None:
    async def handler(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    load = await load_of(handler, "1", requests=2)

    assert load.errors == {"ConnectError": 2}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"error": {"code": "queue_full"}}, "429 queue_full"),
        ({"error": {"code": 429}}, "429"),
        ({"detail": "no"}, "429"),
        ([], "429"),
    ],
)
async def test_a_refusal_is_an_error_by_status_and_code(body: object, error: str) -> None:
    async def handler(_: httpx.Request) -> httpx.Response:
        return httpx.Response(429, json=body)

    load = await load_of(handler, "1", requests=1)

    assert load.errors == {error: 1}


async def test_the_service_is_measured_with_its_stages(scripted_client: httpx.AsyncClient) -> None:
    clips = Cuts([read_recording(CLIPS / "jfk-human.wav")], 5.0).take(4)

    load = await run(scripted_client, Transcribe("en"), Scenario(callers=2), clips, LIMITS)

    assert (load.requests, load.errors, load.audio_seconds) == (4, {}, 20.0)
    assert load.words >= 16  # the scripted engine says "audio of ... seconds." for each segment
    assert load.rtfx == pytest.approx(5.0 * load.clips_per_second)
    assert set(load.stages) == {"decode", "segment", "queue", "inference"}


async def test_a_refusal_of_the_service_is_told_by_its_code(scripted_client: httpx.AsyncClient) -> None:
    poem = Clip(name="poem.wav", seconds=1.0, content=b"Whose woods these are I think I know. " * 20)

    load = await run(scripted_client, Transcribe("en"), Scenario(callers=1), [poem], LIMITS)

    (error,) = load.errors
    assert error.startswith("415 ")
