"""What came of requests, one by one and summed up."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.scenarios import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of one request.

    Attributes:
        seconds: from the first byte sent, or in an open loop from the moment it was due, to the last byte received.
        first_seconds: the same until the first text, where the answer was streamed.
        audio_seconds: of the clip.
        text: empty where there is an error.
        tokens: of the answer, where the server tells.
        error: status and error code, the name of the transport's exception, or "unanswered"; None for an answer.
        stages: milliseconds by stage, where the server tells (`Server-Timing`).
    """

    seconds: float
    audio_seconds: float
    first_seconds: float | None = None
    text: str = ""
    tokens: int | None = None
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
    def of(cls, seconds: Sequence[float]) -> "Latency | None":
        """Summary of some measurements, None of none."""
        if not seconds:
            return None
        p50, p95, p99 = (float(value) for value in np.percentile(seconds, (50, 95, 99)))
        return cls(mean=float(np.mean(seconds)), p50=p50, p95=p95, p99=p99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a server did under one load.

    Attributes:
        requests: sent, those that failed included.
        seconds: from the first request to the last answer.
        clips_per_second: answered without error.
        rtfx: seconds of answered audio per second.
        latency: of what was answered, None where nothing was.
        first_text: until the first text, of streamed answers that have one.
        latencies: of each answer, in the order in which they came.
        words: in all texts, so that a server that says less is seen.
        tokens: mean of the answers whose server tells.
        errors: how often each occurred.
        stages: mean milliseconds by stage, where the server tells.
        client_busy: processor time of this process, the caller of all, per second: near 1 it is the limit.
    """

    scenario: Scenario
    requests: int
    seconds: float
    audio_seconds: float
    clips_per_second: float
    rtfx: float
    latency: Latency | None
    first_text: Latency | None = None
    latencies: tuple[float, ...]
    words: int
    tokens: float | None = None
    errors: Mapping[str, int]
    stages: Mapping[str, float]
    client_busy: float = 0.0

    @classmethod
    def of(
        cls, answers: Sequence[Answer], scenario: Scenario, *, seconds: float, client_seconds: float = 0.0
    ) -> "Load":
        """Sum up a run of this many seconds."""
        good = [answer for answer in answers if answer.error is None]
        audio_seconds = sum(answer.audio_seconds for answer in good)
        latencies = tuple(answer.seconds for answer in good)
        names = dict.fromkeys(name for answer in good for name in answer.stages)  # in the order of the server
        stages = {name: [answer.stages[name] for answer in good if name in answer.stages] for name in names}
        tokens = [answer.tokens for answer in good if answer.tokens is not None]
        return cls(
            scenario=scenario,
            requests=len(answers),
            seconds=seconds,
            audio_seconds=audio_seconds,
            clips_per_second=len(good) / seconds,
            rtfx=audio_seconds / seconds,
            latency=Latency.of(latencies),
            first_text=Latency.of([answer.first_seconds for answer in good if answer.first_seconds is not None]),
            latencies=latencies,
            words=sum(len(answer.text.split()) for answer in good),
            tokens=sum(tokens) / len(tokens) if tokens else None,
            errors=dict(Counter(answer.error for answer in answers if answer.error is not None)),
            stages={name: sum(values) / len(values) for name, values in stages.items()},
            client_busy=client_seconds / seconds,
        )
