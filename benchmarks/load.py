"""Closed-loop load: so many callers, each of whom sends its next clip when it has its answer."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import httpx
import numpy as np

from benchmarks.clips import Clip
from benchmarks.dialects import Dialect


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of one request.

    Attributes:
        seconds: from the first byte sent to the last byte received.
        audio_seconds: of the clip.
        text: empty where there is an error.
        error: status and error code, or the name of the transport's exception; None for an answer.
        stages: milliseconds by stage, where the server tells (`Server-Timing`).
    """

    seconds: float
    audio_seconds: float
    text: str = ""
    error: str | None = None
    stages: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds from request to answer. Percentiles between two measurements are interpolated linearly."""

    mean: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Latency":
        """Summary of at least one measurement."""
        p50, p95, p99 = (float(value) for value in np.percentile(seconds, (50, 95, 99)))
        return cls(mean=float(np.mean(seconds)), p50=p50, p95=p95, p99=p99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a server did under one load.

    Attributes:
        concurrency: callers.
        requests: sent, those that failed included.
        seconds: from the first request to the last answer.
        clips_per_second: answered without error.
        rtfx: seconds of answered audio per second.
        latency: of what was answered, None where nothing was.
        latencies: of each answer, in the order in which they came.
        words: in all texts, so that a server that says less is seen.
        errors: how often each occurred.
        stages: mean milliseconds by stage, where the server tells.
    """

    concurrency: int
    requests: int
    seconds: float
    audio_seconds: float
    clips_per_second: float
    rtfx: float
    latency: Latency | None
    latencies: tuple[float, ...]
    words: int
    errors: Mapping[str, int]
    stages: Mapping[str, float]

    @classmethod
    def of(cls, answers: Sequence[Answer], *, concurrency: int, seconds: float) -> "Load":
        """Sum up a run of this many seconds."""
        good = [answer for answer in answers if answer.error is None]
        audio_seconds = sum(answer.audio_seconds for answer in good)
        latencies = tuple(answer.seconds for answer in good)
        stages = {name: [answer.stages[name] for answer in good if name in answer.stages] for name in _names(good)}
        return cls(
            concurrency=concurrency,
            requests=len(answers),
            seconds=seconds,
            audio_seconds=audio_seconds,
            clips_per_second=len(good) / seconds,
            rtfx=audio_seconds / seconds,
            latency=Latency.of(latencies) if good else None,
            latencies=latencies,
            words=sum(len(answer.text.split()) for answer in good),
            errors=dict(Counter(answer.error for answer in answers if answer.error is not None)),
            stages={name: sum(values) / len(values) for name, values in stages.items()},
        )


async def closed_loop(client: httpx.AsyncClient, dialect: Dialect, clips: Sequence[Clip], concurrency: int) -> Load:
    """Send every clip once, `concurrency` at a time.

    The last answers come while fewer than `concurrency` are on their way, and count: a server is not flattered by
    leaving out its slowest.
    """
    # Made before the clock starts: encoding a body is the caller's work, not the server's.
    waiting = iter([(clip, dialect.request(client, clip)) for clip in clips])
    answers: list[Answer] = []

    async def caller(waiting: Iterator[tuple[Clip, httpx.Request]]) -> None:
        for clip, request in waiting:
            answers.append(await send(client, dialect, clip, request))  # several callers append

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as callers:
        for _ in range(concurrency):
            callers.create_task(caller(waiting))
    return Load.of(answers, concurrency=concurrency, seconds=time.perf_counter() - begun)


async def send(client: httpx.AsyncClient, dialect: Dialect, clip: Clip, request: httpx.Request | None = None) -> Answer:
    """Ask for one clip; a failure is an answer with an error."""
    request = request or dialect.request(client, clip)
    begun = time.perf_counter()
    try:
        response = await client.send(request)
    except httpx.TransportError as error:
        seconds = time.perf_counter() - begun
        return Answer(seconds=seconds, audio_seconds=clip.seconds, error=type(error).__name__, stages={})
    seconds = time.perf_counter() - begun
    if not response.is_success:
        return Answer(seconds=seconds, audio_seconds=clip.seconds, error=_error(response), stages={})
    return Answer(
        seconds=seconds,
        audio_seconds=clip.seconds,
        text=dialect.text(response),
        stages=server_timing(response.headers.get("Server-Timing", "")),
    )


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


def _names(answers: Sequence[Answer]) -> list[str]:
    """Stages in the order in which the servers tell them."""
    return list(dict.fromkeys(name for answer in answers for name in answer.stages))
