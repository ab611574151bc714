"""What stands at the moment somebody asks for metrics."""

from collections.abc import Iterator
from importlib.metadata import version

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from app.metrics import PREFIX
from app.runtime import Runtime
from engine.interface import ENCODER_MODES, EncoderUsage


def standing(runtime: Runtime, encoder: EncoderUsage | None) -> Iterator[Metric]:
    """All of them.

    Args:
        encoder: what the engine says of it, None where it does not answer.
    """
    settings, admission, turns = runtime.settings, runtime.admission, runtime.turns
    info = GaugeMetricFamily(f"{PREFIX}_info", "What serves.", labels=("version", "profile", "model"))
    info.add_metric((version("omnihear"), settings.profile, settings.model_name), 1)
    yield info
    yield _gauge("ready", "1 while requests are served.", runtime.life.ready)
    yield _gauge("admitted_requests", "Requests that are uploaded, worked on or wait.", admission.requests)
    yield _gauge("admitted_requests_limit", "Such requests at once.", settings.concurrency.max_requests)
    yield _gauge("admitted_audio_seconds", "Audio of those that is left to transcribe.", admission.audio_seconds)
    yield _gauge("admitted_audio_seconds_limit", "Such audio at once.", settings.concurrency.max_audio_seconds)
    yield _gauge("decode_workers_busy", "Decode workers at an upload.", runtime.pool.busy)
    yield _gauge("waiting_uploads", "Uploads that wait for a decode worker.", runtime.transcriber.preparer.waiting)
    yield _gauge("waiting_segments", "Segments that wait for a place in the engine.", turns.waiting)
    yield _counter("decode_workers_lost", "Decode workers that died or were killed.", runtime.pool.restarts)
    if encoder is not None:
        yield from _encoder(encoder)


def _encoder(usage: EncoderUsage) -> Iterator[Metric]:
    yield _counter("encoder_graph_hits", "Clips encoded by a CUDA graph.", usage.graph_hits)
    misses = "Clips that no CUDA graph holds, encoded eagerly; 0 where graphs are off."
    yield _counter("encoder_graph_misses", misses, usage.graph_misses)
    fallback = GaugeMetricFamily(
        f"{PREFIX}_encoder_fallback", "1 where the encoder runs without a mode that was asked for.", labels=("mode",)
    )
    for mode in ENCODER_MODES:
        fallback.add_metric((mode,), mode in usage.fallbacks)
    yield fallback


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"{PREFIX}_{name}", text, value)
