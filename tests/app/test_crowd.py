"""Many more clients than the service takes: each is answered, and those who are taken do not wait long."""

import asyncio
import time
from collections import Counter

import httpx
import numpy as np

from tests.audio_factory import clip, pcm16, wav
from tests.conftest import Figure
from tests.live import live_runtime
from tests.paced import PacedEngine

CLIENTS = 200
SECONDS = 5.0
SPEECH = wav(pcm16(clip("library-us-female.wav")[:24_000]))
PLACES, RATE = 16, 200.0


async def test_two_hundred_clients_are_served_or_told_when_to_come_back(figure: Figure) -> None:
    """Clients that ask again at once, whatever they are told: the worst there are."""
    statuses: Counter[int] = Counter()
    waits: list[float] = []
    odd: list[httpx.Response] = []
    over = asyncio.Event()

    async def keep_asking(service: httpx.URL) -> None:
        async with httpx.AsyncClient(base_url=service, timeout=60, verify=False) as client:  # no TLS: no certificates
            while not over.is_set():
                begun = time.monotonic()
                answer = await client.post("/v1/transcribe", content=SPEECH)
                statuses[answer.status_code] += 1
                if answer.status_code == 200:
                    waits.append(time.monotonic() - begun)
                elif answer.status_code != 429 or not 1 <= int(answer.headers["Retry-After"]) <= 60:
                    odd.append(answer)
                await asyncio.sleep(0.2)

    engine = PacedEngine(solo_rate=RATE, gain=2)
    async with live_runtime(engine, concurrency={"max_requests": PLACES}) as (one, runtime):
        async with asyncio.TaskGroup() as group:  # which no reset connection gets past
            for _ in range(CLIENTS):
                group.create_task(keep_asking(one.base_url))
            await asyncio.sleep(SECONDS)
            over.set()
        left = runtime.admission.requests

    p95 = float(np.percentile(waits, 95))
    figure(f"{CLIENTS} clients for {SECONDS:g} s on {PLACES} places: {dict(statuses)}, p95 of those served {p95:.2f} s")
    assert odd == []
    assert statuses[200] > PLACES
    assert statuses[429] > 0
    assert left == 0
    assert p95 < 10  # sixteen clips are done in a tenth of a second on a machine that does nothing else
