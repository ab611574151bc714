"""Sends hostile inputs to a running service, while somebody else asks it for the same clean clip again and again."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from tests import audio_factory as factory
from tests.hostile.mutations import Input
from tests.hostile.requests import RawRequest

ANSWER_SECONDS: Final = 90.0  # a request without an answer for so long is a hang
CLEAN: Final = factory.wav(factory.pcm16(factory.clip("library-us-female.wav")))
NO_ANSWER: Final = "no answer"
HANG: Final = "hang"
EXPLAINED: Final = ("503", "504")  # by design: loading or draining, and what took too long

# What the service is to be started with: limits that make a slow input show, and an engine that needs no model.
ENVIRONMENT: Final = {
    "OMNIHEAR_ENGINE_BACKEND": "scripted",
    "OMNIHEAR_LIMITS_DECODE_TIMEOUT_SECONDS": "30",
    "OMNIHEAR_LIMITS_UPLOAD_IDLE_SECONDS": "3",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """An answer that no input should bring about, and what brought it about."""

    what: str
    source: str
    detail: str


@dataclass(slots=True)
class Outcome:
    """What came of all.

    Attributes:
        answers: by (container or kind of request, status); "200 with an error" is a stream or a batch that says so.
        findings: 5xx, hangs, and requests that were complete and had no answer.
        slowest: seconds and source of the slowest answer.
        clean: answers to the clean clip, and seconds of each.
    """

    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")
    clean_texts: Counter[str] = field(default_factory=Counter)
    clean_seconds: list[float] = field(default_factory=list)

    @property
    def sent(self) -> int:
        """Hostile inputs."""
        return self.answers.total()

    def note(self, group: str, status: str, source: str, seconds: float, detail: str = "") -> None:
        self.answers[group, status] += 1
        self.slowest = max(self.slowest, (seconds, source))
        if status[0] == "5" or status in (NO_ANSWER, HANG):
            self.findings.append(Finding(status, source, detail[:500]))

    def unexplained(self) -> list[Finding]:
        """Findings that are not by design."""
        return [finding for finding in self.findings if finding.what not in EXPLAINED]


async def attack(url: str, files: Iterable[Input], raw: Sequence[RawRequest], *, at_once: int = 8) -> Outcome:
    """Send everything, so many at a time."""
    outcome = Outcome()
    waiting = iter([*((index, each) for index, each in enumerate(raw))])
    numbered = enumerate(files)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=ANSWER_SECONDS, limits=limits) as client:

        async def sender() -> None:
            for index, file in numbered:
                await _send_file(client, index, file, outcome)
            for index, request in waiting:
                await _send_raw(url, index, request, outcome)

        async with _asking_for_the_clean_clip(client, outcome), asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(sender())
    return outcome


@asynccontextmanager
async def _asking_for_the_clean_clip(client: httpx.AsyncClient, outcome: Outcome) -> AsyncIterator[None]:
    """Ask over and over until the block ends; once before, alone."""
    over = asyncio.Event()

    async def ask() -> None:
        begun = time.monotonic()
        answer = await client.post("/v1/transcribe", files={"audio": ("clean.wav", CLEAN)})
        outcome.clean_seconds.append(time.monotonic() - begun)
        outcome.clean_texts[answer.json()["text"] if answer.status_code == 200 else answer.text] += 1

    async def keep_asking() -> None:
        while not over.is_set():
            await ask()

    await ask()
    asking = asyncio.create_task(keep_asking())
    try:
        yield
    finally:
        over.set()
        await asking


async def _send_file(client: httpx.AsyncClient, index: int, file: Input, outcome: Outcome) -> None:
    """One of the ways in which a file can be sent, in turn."""
    name = {"file": ("clip", file.data)}
    ways: tuple[dict[str, Any], ...] = (
        {"url": "/v1/transcribe", "content": file.data},
        {"url": "/v1/audio/transcriptions", "files": name, "data": {"response_format": "verbose_json"}},
        {"url": "/v1/transcribe?channels=separate", "files": name},
        {"url": "/v1/transcribe?stream=true", "content": file.data},
        {"url": "/v1/transcribe/batch", "files": [("audio", ("clip", file.data)), ("audio", ("clean", CLEAN))]},
    )
    way = ways[(index + index // 10) % len(ways)]
    source = f"{file.container}, {file.kind}, seed {file.seed}, {way['url']}"
    begun = time.monotonic()
    try:
        answer = await client.post(**way)
    except httpx.TimeoutException as error:
        status, detail = HANG, repr(error)
    except httpx.TransportError as error:
        status, detail = NO_ANSWER, repr(error)
    else:
        status, detail = _status(answer), answer.text
    outcome.note(file.container, status, source, time.monotonic() - begun, detail)


def _status(answer: httpx.Response) -> str:
    """Of the answer, or of the error that a stream or a batch tells of."""
    if answer.status_code != 200:
        return str(answer.status_code)
    if answer.headers["content-type"].startswith("text/event-stream"):
        *_, last = [line for line in answer.text.splitlines() if line.startswith("data: ")]
        event = json.loads(last.removeprefix("data: "))
        if event["type"] == "error":
            return "500 in a stream" if event["error"]["type"] == "server_error" else "200 with an error"
    if "/batch" in str(answer.url):
        bad, clean = (result["status"] for result in answer.json()["results"])
        if clean != 200:
            return f"500 beside a clean file: {clean}"
        return "200" if bad == 200 else "200 with an error" if bad < 500 else str(bad)
    return "200"


async def _send_raw(url: str, index: int, request: RawRequest, outcome: Outcome) -> None:
    address = urlsplit(url)
    begun = time.monotonic()
    answer = b""
    status = ""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            try:
                writer.write(request.data)
                while part := await reader.read(65536):  # up to the end: each asks for the connection to be closed
                    answer += part
                    if answer.startswith(b"HTTP/1.1 100 "):
                        answer = answer.partition(b"\r\n\r\n")[2]
            finally:
                writer.transport.abort()
    except TimeoutError:
        status = HANG
    except ConnectionError:
        pass  # it may have answered and closed before all was sent
    if not status:
        first = answer.split(b" ", 2)
        status = first[1].decode("latin-1") if len(first) > 1 and first[0] == b"HTTP/1.1" else NO_ANSWER
    if status == NO_ANSWER and not request.finished:
        status = "closed"
    source = f"{request.kind}, number {index}"
    outcome.note(request.kind, status, source, time.monotonic() - begun, answer.decode("latin-1"))
