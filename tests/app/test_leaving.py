"""Clients that leave, at any moment and by the hundred: nothing of theirs stays."""

import asyncio
import logging
import random
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from app.runtime import Runtime
from engine.engine_process import EngineProcess
from engine.scripted import Act
from tests.audio_factory import clip, pcm16, wav
from tests.conftest import Figure, settings_with
from tests.engine.family import engine_core
from tests.live import eventually, live_runtime
from tests.paced import PacedEngine

SPEECH = wav(pcm16(clip("library-us-female.wav")))
STORY = wav(pcm16(clip("harbor-story-long.flac")))
CLIENTS = 500
AT_ONCE = 25


async def come_and_leave(host: str, port: int, number: int, moments: random.Random) -> str:
    """Send a request, all of it or not, and close the connection at some moment; says how far it came."""
    audio = STORY if moments.random() < 0.2 else SPEECH
    stream = moments.choice(["true", "false"])
    head = (
        f"POST /v1/transcribe?stream={stream} HTTP/1.1\r\nHost: {host}\r\nX-Request-ID: leaves-{number}\r\n"
        f"Content-Length: {len(audio)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(host, port)
    try:
        whole = moments.random() < 0.7
        writer.write(head.encode() + (audio if whole else audio[: moments.randrange(len(audio))]))
        try:
            async with asyncio.timeout(moments.uniform(0, 1.5) ** 2):
                answered = b""
                while b"data: " not in answered and (part := await reader.read(65536)):
                    answered += part
                return "while it was told" if stream == "true" else "after the answer"
        except TimeoutError:
            return "before an answer" if whole else "while uploading"
    finally:
        writer.transport.abort()


async def is_free(runtime: Runtime) -> bool:
    held = {
        "requests": runtime.admission.requests,
        "turns": runtime.turns.held + runtime.turns.waiting,
        "engine requests": (await runtime.engine.describe()).requests,
        "busy workers": runtime.pool.busy + runtime.pool.waiting,
        "spool folders": len(list(runtime.spool.iterdir())),
    }
    return not any(held.values())


async def has_at_least(requests: int, engine: EngineProcess) -> bool:
    return (await engine.describe()).requests >= requests


async def leave_all(client: httpx.AsyncClient, clients: int, at_once: int) -> Counter[str]:
    """Let so many come and leave; says how far they came."""
    address = urlsplit(str(client.base_url))
    moments = random.Random(0)
    places = asyncio.Semaphore(at_once)
    how_far: Counter[str] = Counter()

    async def one(number: int) -> None:
        async with places:
            how_far[await come_and_leave(str(address.hostname), address.port or 0, number, moments)] += 1

    await asyncio.gather(*(one(number) for number in range(clients)))
    return how_far


async def seconds_until_free(runtime: Runtime) -> float:
    begun = time.monotonic()
    await eventually(lambda: is_free(runtime), seconds=5)
    return time.monotonic() - begun


def statuses_in(caplog: pytest.LogCaptureFixture) -> Counter[int]:
    accesses = [record.__dict__ for record in caplog.records if record.name == "app.access"]
    return Counter(access["status"] for access in accesses if access["request_id"].startswith("leaves-"))


async def test_five_hundred_clients_that_leave_leave_nothing_behind(
    figure: Figure, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "app.access")
    before = asyncio.all_tasks()
    engine = PacedEngine(lambda _: Act(words=("word",) * 20), solo_rate=30, gain=3)
    async with live_runtime(engine, server={"spool_dir": str(tmp_path)}) as (client, runtime):
        serving = asyncio.all_tasks()
        how_far = await leave_all(client, CLIENTS, AT_ONCE)
        took = await seconds_until_free(runtime)
        await eventually(lambda: asyncio.all_tasks() <= serving | before, seconds=5)
        answer = await client.post("/v1/transcribe", files={"file": SPEECH})

    statuses = statuses_in(caplog)
    figure(
        f"{CLIENTS} clients left {dict(how_far)}, {runtime.pool.restarts} of them while a worker was decoding: "
        f"logged as {dict(statuses)}, all was free {took:.2f} s after the last"
    )
    assert answer.status_code == 200
    assert took < 1
    assert set(statuses) <= {200, 499}
    assert statuses[499] > CLIENTS / 2
    assert {"while uploading", "before an answer", "while it was told"} <= set(how_far)
    assert runtime.pool.restarts > 0


@pytest.mark.engine
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("default")  # what vLLM and torch warn of while they load is theirs
async def test_clients_leave_the_real_engine_idle_and_its_death_answers_those_that_wait(
    figure: Figure, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "app.access")
    engine = EngineProcess(settings_with().engine)
    async with live_runtime(engine) as (client, runtime):
        how_far = await leave_all(client, 40, 8)
        took = await seconds_until_free(runtime)
        alone = await client.post("/v1/transcribe", content=SPEECH)

        waiting = [asyncio.create_task(client.post("/v1/transcribe", content=STORY)) for _ in range(6)]
        await eventually(lambda: has_at_least(4, engine), seconds=60)
        killed = time.monotonic()
        engine_core(engine).kill()
        answers = await asyncio.gather(*waiting)
        answered = time.monotonic() - killed

    figure(
        f"40 clients left the real engine {dict(how_far)}: logged as {dict(statuses_in(caplog))}, free {took:.2f} s "
        f"after the last; its death was answered after {answered:.2f} s"
    )
    assert alone.json()["text"].startswith("Good morning")
    assert took < 1
    assert {answer.status_code for answer in answers} == {503}
    assert {answer.json()["error"]["code"] for answer in answers} == {"engine_dead"}
    assert answered < 5
    assert runtime.life.failed
