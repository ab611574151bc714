import asyncio
from collections.abc import Callable, Coroutine

import httpx
import numpy as np
import pytest

from benchmarks.clips import Clip, Cuts, clip, read_recording
from benchmarks.dialects import Transcribe
from benchmarks.load import Answer, Latency, Load, closed_loop, server_timing
from tests.audio_factory import CLIPS

SECOND = clip("ramp.wav", np.arange(16_000, dtype=np.int16))


def answered(seconds: float, *, text: str = "two words", **stages: float) -> Answer:
    return Answer(seconds=seconds, audio_seconds=10.0, text=text, stages=stages)


def failed(error: str) -> Answer:
    return Answer(seconds=0.001, audio_seconds=10.0, error=error, stages={})


def test_percentiles_between_two_measurements_are_interpolated() -> None:
    latency = Latency.of([number / 100 for number in range(100, -1, -1)])

    assert (latency.p50, latency.p95, latency.p99, latency.mean) == pytest.approx((0.5, 0.95, 0.99, 0.5))
    assert Latency.of([1.0, 2.0]).p95 == pytest.approx(1.95)
    assert Latency.of([3.0]) == Latency(mean=3.0, p50=3.0, p95=3.0, p99=3.0)


def test_what_failed_counts_neither_as_throughput_nor_as_latency() -> None:
    answers = [answered(1.0), answered(3.0), failed("503 loading"), failed("503 loading"), failed("ReadError")]

    load = Load.of(answers, concurrency=2, seconds=4.0)

    assert load.requests == 5
    assert load.errors == {"503 loading": 2, "ReadError": 1}
    assert load.clips_per_second == 0.5
    assert load.audio_seconds == 20.0
    assert load.rtfx == 5.0
    assert load.words == 4
    assert load.latencies == (1.0, 3.0)
    assert load.latency is not None
    assert load.latency.mean == 2.0


def test_a_server_that_answers_nothing_has_no_latency() -> None:
    load = Load.of([failed("500")], concurrency=1, seconds=1.0)

    assert load.latency is None
    assert load.rtfx == 0


def test_stages_are_means_over_the_answers_that_tell_them() -> None:
    answers = [answered(1.0, decode=4.0, inference=100.0), answered(1.0, decode=6.0), answered(1.0)]

    assert Load.of(answers, concurrency=1, seconds=1.0).stages == {"decode": 5.0, "inference": 100.0}


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
    handler: Callable[[httpx.Request], Coroutine[None, None, httpx.Response]], *, requests: int, concurrency: int
) -> Load:
    transport = httpx.MockTransport(handler)
    async with httpx.AsyncClient(transport=transport, base_url="http://peer") as client:
        return await closed_loop(client, Transcribe("en"), [SECOND] * requests, concurrency)


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

    load = await load_of(handler, requests=9, concurrency=3)

    assert (load.requests, load.words, load.errors) == (9, 9, {})
    assert peak == 3


async def test_a_server_that_is_away_is_an_error_by_name() -> None:
    async def handler(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    load = await load_of(handler, requests=2, concurrency=1)

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

    load = await load_of(handler, requests=1, concurrency=1)

    assert load.errors == {error: 1}


async def test_the_service_is_measured_with_its_stages(scripted_client: httpx.AsyncClient) -> None:
    clips = Cuts([read_recording(CLIPS / "jfk-human.wav")], 5.0).take(4)

    load = await closed_loop(scripted_client, Transcribe("en"), clips, 2)

    assert (load.requests, load.errors, load.audio_seconds) == (4, {}, 20.0)
    assert load.words >= 16  # the scripted engine says "audio of ... seconds." for each segment
    assert load.rtfx == pytest.approx(5.0 * load.clips_per_second)
    assert set(load.stages) == {"decode", "segment", "queue", "inference"}


async def test_a_refusal_of_the_service_is_told_by_its_code(scripted_client: httpx.AsyncClient) -> None:
    poem = Clip(name="poem.wav", seconds=1.0, wav=b"Whose woods these are I think I know. " * 20)

    load = await closed_loop(scripted_client, Transcribe("en"), [poem], 1)

    (error,) = load.errors
    assert error.startswith("415 ")
