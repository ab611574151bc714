"""A client of a running service, over the events of `/v1/transcribe`."""

import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import httpx

from app.command.outputs import STANDARD
from app.command.wishes import Wishes
from app.transcription.transcript import Segment, Transcript
from app.transcription.types import AudioWarning

_BLOCK: Final = 256 * 1024
ATTEMPTS: Final = 8  # while the service is full or loading
LONGEST_WAIT: Final = 60.0  # seconds

Heard = Callable[[float], None]
"""Takes the second of the audio up to which there is text."""


class RemoteError(Exception):
    """The service did not give a transcript; the message is for people."""


async def transcribe(client: httpx.AsyncClient, source: Path, wishes: Wishes, heard: Heard) -> Transcript:
    """Send one file and read what comes of it; waits while the service is full.

    Args:
        client: its base URL is the service's.
        source: a file, or STANDARD.

    Raises:
        RemoteError: the service refused, failed, or cannot be reached.
        OSError: the file cannot be read.
    """
    attempts = 1 if source == STANDARD else ATTEMPTS  # what came in on standard input is gone
    for attempt in range(1, attempts + 1):
        try:
            request = client.build_request("POST", "/v1/transcribe", params=wishes.query(), content=_blocks(source))
            response = await client.send(request, stream=True)
            try:
                if response.status_code in (429, 503) and attempt < attempts:
                    await anyio.sleep(min(float(response.headers.get("Retry-After", 1)), LONGEST_WAIT))
                    continue
                return await _read(response, heard)
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            msg = f"{client.base_url}: {str(error) or type(error).__name__}"
            raise RemoteError(msg) from error
    raise AssertionError  # the last attempt returns or raises


async def _blocks(source: Path) -> AsyncIterator[bytes]:
    if source == STANDARD:
        while block := await anyio.to_thread.run_sync(sys.stdin.buffer.read, _BLOCK):
            yield block
        return
    async with await anyio.open_file(source, "rb") as file:
        while block := await file.read(_BLOCK):
            yield block


async def _read(response: httpx.Response, heard: Heard) -> Transcript:
    if response.status_code != 200:
        raise RemoteError(_message(await response.aread(), response))
    segments: list[Segment] = []
    async for line in response.aiter_lines():
        if not line.startswith("data: "):
            continue
        event = json.loads(line.removeprefix("data: "))
        match event["type"]:
            case "transcript.text.segment":
                segments.append(_segment(event))
                heard(segments[-1].end)
            case "transcript.text.done":
                heard(event["duration"])
                return _transcript(event, segments)
            case "error":
                raise RemoteError(event["error"]["message"])
    msg = "the answer broke off"
    raise RemoteError(msg)


def _message(body: bytes, response: httpx.Response) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{response.url.copy_with(query=None)} answered {response.status_code}; is this an omnihear service?"


def _segment(event: dict[str, Any]) -> Segment:
    channel = int(event["speaker"].rsplit(" ", 1)[1]) if event["speaker"] else None
    return Segment(index=int(event["id"]), start=event["start"], end=event["end"], text=event["text"], channel=channel)


def _transcript(done: dict[str, Any], segments: list[Segment]) -> Transcript:
    return Transcript(
        text=done["text"],
        language=done["language"],
        duration=done["duration"],
        n_channels=len(done.get("channels", ())),
        segments=tuple(segments),
        warnings=tuple(AudioWarning(each["code"], each["message"]) for each in done["warnings"]),
    )
