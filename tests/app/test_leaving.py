"""Clients that leave, at any moment and by the hundred: nothing of theirs stays."""

import asyncio
import logging
import random
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from app.runtime import Runtime
from engine.interface import SpeechRequest
from engine.scripted import Act
from tests.audio_factory import clip, pcm16, wav
from tests.conftest import Figure
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


def left_over(runtime: Runtime, engine: PacedEngine) -> dict[str, int]:
    return {
        "requests": runtime.admission.requests,
        "turns": runtime.turns.held + runtime.turns.waiting,
        "engine requests": len(engine.running) + engine.working,
        "busy workers": runtime.pool.busy + runtime.pool.waiting,
        "spool folders": len(list(runtime.spool.iterdir())),
    }


async def test_five_hundred_clients_that_leave_leave_nothing_behind(
    figure: Figure, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "app.access")
    moments = random.Random(0)
    before = asyncio.all_tasks()

    def slowly(request: SpeechRequest) -> Act:
        return Act(words=tuple(f"word{index} " for index in range(20)))

    engine = PacedEngine(slowly, solo_rate=30, gain=3)
    async with live_runtime(engine, server={"spool_dir": str(tmp_path)}) as (client, runtime):
        serving = asyncio.all_tasks()
        address = urlsplit(str(client.base_url))
        assert address.hostname is not None
        assert address.port is not None
        places = asyncio.Semaphore(AT_ONCE)
        how_far: Counter[str] = Counter()

        async def one(number: int) -> None:
            async with places:
                how_far[await come_and_leave(str(address.hostname), int(address.port or 0), number, moments)] += 1

        await asyncio.gather(*(one(number) for number in range(CLIENTS)))
        loop = asyncio.get_running_loop()
        left_at = loop.time()
        await eventually(lambda: not any(left_over(runtime, engine).values()), seconds=5)
        took = loop.time() - left_at
        await eventually(lambda: asyncio.all_tasks() <= serving | before, seconds=5)
        answer = await client.post("/v1/transcribe", files={"file": SPEECH})

    accesses = [record.__dict__ for record in caplog.records if record.name == "app.access"]
    statuses = Counter(access["status"] for access in accesses if access["request_id"].startswith("leaves-"))
    figure(
        f"{CLIENTS} clients left {dict(how_far)}, {runtime.pool.restarts} of them while a worker was decoding: "
        f"logged as {dict(statuses)}, all was free {took:.2f} s after the last"
    )
    assert answer.status_code == 200
    assert took < 1
    assert set(statuses) <= {200, 499}
    assert statuses[499] > CLIENTS / 2
    assert {"while uploading", "before an answer", "while it was told"} <= set(how_far)
    assert runtime.pool.restarts > 0  # some were being decoded
