"""What Prometheus is told: every name, label and bucket edge.

Each service has a registry of its own, so that two in one process (as in tests) do not add up; what the process-wide
registry holds, the process's own numbers, is passed on beside it.
"""

from collections.abc import Iterable
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from app.transcription.observing import Stage
from app.transcription.transcript import Transcript

PREFIX: Final = "omnihear"

# Uploads: voice commands of seconds; 30 s is the longest segment, where files begin to be cut; then calls, meetings
# and the default limit of 4 h.
AUDIO_EDGES: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400)

STAGE_EDGES: Final[dict[Stage, tuple[float, ...]]] = {
    # Nobody waits on an idle service; from 1 s a person notices, 30 to 60 s is where clients and proxies give up.
    "queue": (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
    # Some milliseconds for a clip, 5 to 20 s for an hour of a compressed codec; the default limit is 300 s.
    "decode": (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
    # The speech detector runs some hundred times faster than the speech: 20 ms for 6 s, 10 s for an hour.
    "segment": (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    # 0.1 to 1 s for a clip, minutes for an hour; the default limit is 3600 s.
    "inference": (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2.5, 5, 10, 30, 60, 300, 900, 3600),
}
# From first byte to last: fine where clips are, then the time limits of clients and proxies (30, 60, 300 s).
REQUEST_EDGES: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2.5, 5, 10, 30, 60, 300, 900, 3600)
# Seconds of audio for a second of work. Below 1 a service cannot keep up with a live source; one clip alone on two
# processor cores has about 20, long files on a GPU hundreds.
RTFX_EDGES: Final = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class Metrics:
    """Counts; implements `app.transcription.observing.Observer`."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            f"{PREFIX}_requests",
            "Answers by route template, status and error code; status 499 where the client left.",
            ("route", "status", "code"),
            registry=registry,
        )
        self._request_seconds = Histogram(
            f"{PREFIX}_request_seconds",
            "From the head of a request to the end of its answer.",
            ("route",),
            buckets=REQUEST_EDGES,
            registry=registry,
        )
        self._refusals = Counter(
            f"{PREFIX}_refusals",
            "Requests, or files of a batch, refused with 429 or 503 by error code.",
            ("reason",),
            registry=registry,
        )
        self._audio = Histogram(
            f"{PREFIX}_audio_seconds",
            "Length of the audio of each upload that was decoded; its sum is the audio taken in.",
            buckets=AUDIO_EDGES,
            registry=registry,
        )
        self._stages = {
            stage: Histogram(
                f"{PREFIX}_{stage}_seconds",
                f"Time of each upload in the stage `{stage}`, as Server-Timing tells it.",
                buckets=edges,
                registry=registry,
            )
            for stage, edges in STAGE_EDGES.items()
        }
        self._rtfx = Histogram(
            f"{PREFIX}_rtfx",
            "Seconds of audio for each second of decoding, segmenting and inference, of each transcript.",
            buckets=RTFX_EDGES,
            registry=registry,
        )

    def ended(self, route: str, status: int, code: str, seconds: float) -> None:
        """A request has been answered, or its client has left."""
        self._requests.labels(route, str(status), code).inc()
        self._request_seconds.labels(route).observe(seconds)

    def refused(self, reason: str) -> None:
        """An upload was not taken in."""
        self._refusals.labels(reason).inc()

    def stage(self, stage: Stage, seconds: float) -> None:
        """An upload has left a stage."""
        self._stages[stage].observe(seconds)

    def decoded(self, seconds: float) -> None:
        """An upload turned out to be so long."""
        self._audio.observe(seconds)

    def transcribed(self, transcript: Transcript) -> None:
        """A transcript is complete."""
        stages = transcript.stages
        if (worked := stages.decode + stages.segment + stages.inference) > 0:
            self._rtfx.observe(transcript.duration / worked)

    def render(self, standing: Iterable[Metric]) -> tuple[bytes, str]:
        """All numbers and their media type: Prometheus' text format, whoever asks.

        OpenMetrics, which Prometheus prefers, has no name for some of vLLM's metrics: two would clash there.

        Args:
            standing: what is no count of ours: see `app.gauges`, and what the engine says.
        """
        everything = CollectorRegistry()
        everything.register(_Collected([*self._registry.collect(), *standing, *REGISTRY.collect()]))
        return generate_latest(everything), CONTENT_TYPE_PLAIN_0_0_4


class _Collected(Collector):
    def __init__(self, collected: Iterable[Metric]) -> None:
        self._collected = collected

    def collect(self) -> Iterable[Metric]:
        return self._collected
