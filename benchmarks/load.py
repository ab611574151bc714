"""Puts a server under load: callers who wait for their answers, or arrivals that wait for nobody."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import httpx

from benchmarks.answers import Answer, Load
from benchmarks.clips import Clip
from benchmarks.dialects import Dialect
from benchmarks.scenarios import Scenario

UNANSWERED = "unanswered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a load may take.

    Attributes:
        load_seconds: after the first request no request is sent that is later than this.
        drain_seconds: after that; what has no answer then is given up and counts as an error.
    """

    load_seconds: float = 60.0
    drain_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of the requests of a load, or of one turn of it.

    Attributes:
        seconds: from the first request to the last answer.
        client_seconds: processor time of this process meanwhile.
    """

    answers: list[Answer]
    seconds: float
    client_seconds: float

    def __add__(self, later: "Asked") -> "Asked":
        """Both turns; the time between them does not count."""
        return Asked(
            self.answers + later.answers, self.seconds + later.seconds, self.client_seconds + later.client_seconds
        )

    def load(self, scenario: Scenario) -> Load:
        """All of it in figures."""
        return Load.of(self.answers, scenario, seconds=self.seconds, client_seconds=self.client_seconds)


async def run(
    client: httpx.AsyncClient, dialect: Dialect, scenario: Scenario, clips: Sequence[Clip], limits: Limits
) -> Load:
    """`ask` in figures."""
    return (await ask(client, dialect, scenario, clips, limits)).load(scenario)


async def ask(
    client: httpx.AsyncClient, dialect: Dialect, scenario: Scenario, clips: Sequence[Clip], limits: Limits
) -> Asked:
    """Send every clip once, as the scenario has it, unless the time is over before.

    In a closed loop the last answers come while fewer callers are on their way, and count: a server is not flattered
    by leaving out its slowest.
    """
    # Made before the clock starts: encoding a body is the caller's work, not the server's.
    requests = [dialect.request(client, clip, stream=scenario.stream) for clip in clips]
    answers: list[Answer] = []
    processor = time.process_time()
    begun = time.monotonic()
    given_up = begun + limits.load_seconds + limits.drain_seconds

    async def one(clip: Clip, request: httpx.Request, due: float | None = None) -> None:
        answers.append(await send(client, dialect, clip, request, due=due, given_up=given_up, stream=scenario.stream))

    async with asyncio.TaskGroup() as asking:
        waiting = iter(zip(clips, requests, strict=True))
        if scenario.callers is not None:

            async def caller() -> None:
                for clip, request in waiting:  # all callers take from the same
                    await one(clip, request)
                    if time.monotonic() > begun + limits.load_seconds:
                        break

            for _ in range(scenario.callers):
                asking.create_task(caller())
        for due, (clip, request) in zip(scenario.arrivals(limits.load_seconds), waiting, strict=False):
            await asyncio.sleep(begun + due - time.monotonic())
            asking.create_task(one(clip, request, begun + due))
    return Asked(answers, time.monotonic() - begun, time.process_time() - processor)


async def send(
    client: httpx.AsyncClient,
    dialect: Dialect,
    clip: Clip,
    request: httpx.Request | None = None,
    *,
    due: float | None = None,
    given_up: float | None = None,
    stream: bool = False,
) -> Answer:
    """Ask for one clip; a failure is an answer with an error.

    Args:
        request: for the clip; made here when None.
        due: when it should have been sent, now when None; on the monotonic clock.
        given_up: when nobody waits for it any more; on the monotonic clock, which asyncio's is.
        stream: whether the request asks for a streamed answer.
    """
    request = request or dialect.request(client, clip, stream=stream)
    begun = time.monotonic() if due is None else due
    try:
        async with asyncio.timeout_at(given_up):
            response = await client.send(request, stream=True)
            try:
                if stream and response.is_success:
                    return await _follow(response, dialect, clip, begun)
                await response.aread()
            finally:
                await response.aclose()
    except (httpx.TransportError, TimeoutError) as error:
        name = UNANSWERED if isinstance(error, TimeoutError) else type(error).__name__
        return Answer(seconds=time.monotonic() - begun, audio_seconds=clip.seconds, error=name, stages={})
    seconds = time.monotonic() - begun
    if not response.is_success:
        return Answer(seconds=seconds, audio_seconds=clip.seconds, error=_error(response), stages={})
    told = dialect.answer(response.json())
    return Answer(
        seconds=seconds,
        audio_seconds=clip.seconds,
        text=told.text,
        tokens=told.tokens,
        stages=server_timing(response.headers.get("Server-Timing", "")),
    )


async def _follow(response: httpx.Response, dialect: Dialect, clip: Clip, begun: float) -> Answer:
    """Read server-sent events to their end."""
    text, tokens, first_seconds, error = "", None, None, None
    async for line in _lines(response):
        field, _, value = line.partition(b":")
        if field == b"event" and value.strip() == b"error":
            error = "error event"
        if field != b"data" or value.strip() == b"[DONE]":
            continue
        told = dialect.event(json.loads(value))
        text += told.text
        tokens = told.tokens if told.tokens is not None else tokens
        if first_seconds is None and told.text.strip():
            first_seconds = time.monotonic() - begun
    return Answer(
        seconds=time.monotonic() - begun,
        first_seconds=first_seconds,
        audio_seconds=clip.seconds,
        text=text.strip(),
        tokens=tokens,
        error=error,
        stages={},
    )


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """Split at line feeds alone: httpx also splits at U+2028 and the like, which JSON may hold as they are."""
    rest = b""
    async for chunk in response.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    yield rest


def server_timing(header: str) -> dict[str, float]:
    """Milliseconds by name from a W3C `Server-Timing` header; entries without a duration are left out."""
    stages = {}
    for entry in header.split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip().lower() == "dur":
                stages[name] = float(value.strip().strip('"'))
    return stages


def _error(response: httpx.Response) -> str:
    """Status and, where there is an envelope with one, its code: `429 queue_full`."""
    try:
        code = response.json()["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return str(response.status_code)
    return f"{response.status_code} {code}".removesuffix(f" {response.status_code}")
