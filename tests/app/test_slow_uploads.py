"""Clients that send slowly, or stop: told so, and their place is free again."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.audio_factory import pcm16, sine, wav
from tests.live import eventually, live_runtime

ROUTES = ("/v1/transcribe", "/v1/audio/transcriptions", "/v1/transcribe/batch")
AUDIO = wav(pcm16(sine(1.0)))


async def send(url: str, route: str, pieces: AsyncIterator[bytes]) -> tuple[int, dict[str, str], Any]:
    """Announce 10 MB and send what there is; returns when the server closes the connection."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    content_type = "application/octet-stream" if route == "/v1/transcribe" else "multipart/form-data; boundary=b"
    head = f"POST {route} HTTP/1.1\r\nHost: x\r\nContent-Type: {content_type}\r\nContent-Length: 10000000\r\n\r\n"
    writer.write(head.encode())

    async def upload() -> None:
        async for piece in pieces:
            writer.write(piece)

    uploading = asyncio.create_task(upload())
    try:
        answer = await reader.read()
    finally:
        uploading.cancel()
        writer.transport.abort()
    top, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = top.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(status.split()[1]), headers, json.loads(body)


async def nothing_more() -> AsyncIterator[bytes]:
    yield AUDIO


async def a_byte_now_and_then() -> AsyncIterator[bytes]:
    while True:
        yield b"-"
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("route", ROUTES)
async def test_an_upload_that_stops_is_closed_with_a_code(route: str) -> None:
    async with live_runtime(limits={"upload_idle_seconds": 0.3}) as (client, runtime):
        status, headers, body = await send(str(client.base_url), route, nothing_more())
        await eventually(lambda: runtime.admission.requests == 0, seconds=5)
        left = list(runtime.spool.iterdir())

    assert status == 408
    assert headers["connection"] == "close"
    assert body["error"]["code"] == "slow_upload"
    assert body["error"]["limit"] == {
        "name": "seconds without upload",
        "value": 0.3,
        "setting": "OMNIHEAR_LIMITS_UPLOAD_IDLE_SECONDS",
    }
    assert left == []


async def test_an_upload_that_drips_is_closed_with_a_code() -> None:
    async with live_runtime(limits={"upload_idle_seconds": 1.0, "min_upload_rate": 10_000}) as (client, _):
        status, _, body = await send(str(client.base_url), "/v1/transcribe", a_byte_now_and_then())

    assert status == 408
    assert body["error"]["limit"]["setting"] == "OMNIHEAR_LIMITS_MIN_UPLOAD_RATE"


async def test_speech_may_be_sent_as_it_is_spoken() -> None:
    async def spoken() -> AsyncIterator[bytes]:
        for start in range(0, len(AUDIO), 1600):
            yield AUDIO[start : start + 1600]
            await asyncio.sleep(0.1)  # twice as long as the idle limit in all

    async with live_runtime(limits={"upload_idle_seconds": 1.0, "min_upload_rate": 10_000}) as (client, _):
        answer = await client.post("/v1/transcribe", content=spoken())

    assert answer.status_code == 200
