import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from app import logs, tracing
from app.settings import SettingsError
from engine.interface import SpeechRequest
from engine.scripted import Act, ScriptedEngine
from tests.audio_factory import clip, pcm16, wav
from tests.conftest import MakeClient

SPEECH = wav(pcm16(clip("library-us-female.wav")))
STORY = wav(pcm16(clip("harbor-story-long.flac")))


@pytest.fixture(scope="module")
def exporter() -> Iterator[InMemorySpanExporter]:
    """The process's provider, which can be set but once; shut down at the end, it exports no more."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    yield exporter
    provider.shutdown()


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> InMemorySpanExporter:
    exporter.clear()
    return exporter


def tree(exporter: InMemorySpanExporter) -> dict[str, list[Any]]:
    """Finished spans by name, those of probes left out."""
    found: dict[str, list[Any]] = {}
    for span in exporter.get_finished_spans():
        if span.name != "GET /health/ready":
            found.setdefault(span.name, []).append(span)
    return found


async def test_one_trace_runs_through_decode_segments_and_engine(
    spans: InMemorySpanExporter, make_client: MakeClient
) -> None:
    async with make_client() as client:
        spans.clear()
        answer = await client.post("/v1/transcribe", files={"file": STORY}, headers={"X-Request-ID": "traced"})
    found = tree(spans)

    assert answer.status_code == 200
    (root,), (decode,), (inference,) = found["POST /v1/transcribe"], found["decode"], found["inference"]
    assert {span.context.trace_id for each in found.values() for span in each} == {root.context.trace_id}
    assert root.kind is SpanKind.SERVER
    assert root.parent is None
    assert decode.parent.span_id == inference.parent.span_id == root.context.span_id
    assert len(found["segment"]) == inference.attributes["segments"] > 1
    assert {span.parent.span_id for span in found["segment"]} == {inference.context.span_id}
    assert {span.parent.span_id for span in found["engine"]} == {span.context.span_id for span in found["segment"]}
    assert root.attributes["omnihear.request_id"] == "traced"
    assert root.attributes["http.response.status_code"] == 200
    assert decode.attributes["audio_seconds"] > 40
    assert all(span.attributes["output_tokens"] > 0 for span in found["engine"])
    assert all(span.status.status_code is StatusCode.UNSET for each in found.values() for span in each)


async def test_a_callers_trace_goes_on_here(spans: InMemorySpanExporter, make_client: MakeClient) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with make_client() as client:
        spans.clear()
        await client.get("/v1/models", headers={"traceparent": parent})
    (root,) = tree(spans)["GET /v1/models"]

    assert f"{root.context.trace_id:032x}" == parent.split("-")[1]
    assert f"{root.parent.span_id:016x}" == parent.split("-")[2]


async def test_the_access_log_names_the_trace(
    spans: InMemorySpanExporter, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "app.access")
    caplog.handler.addFilter(logs.RequestFilter())
    async with make_client() as client:
        spans.clear()
        await client.get("/v1/models", headers={"X-Request-ID": "traced"})
    (root,) = tree(spans)["GET /v1/models"]
    (record,) = [record for record in caplog.records if record.name == "app.access"]

    assert record.__dict__["trace_id"] == f"{root.context.trace_id:032x}"
    assert record.__dict__["request_id"] == "traced"


async def test_failures_are_marked_and_nothing_of_the_caller_is_in_a_span(
    spans: InMemorySpanExporter, make_client: MakeClient
) -> None:
    def script(request: SpeechRequest) -> Act:
        if request.request_id == "warm-up":
            return Act()
        raise RuntimeError(f"unexpected {request.context}")

    form = {"prompt": "secret-prompt"}
    async with make_client(ScriptedEngine(script)) as client:
        spans.clear()
        await client.post("/v1/transcribe", params=form, content=SPEECH)
        await client.post("/v1/transcribe", files={"file": ("secret-name", b"no sound")}, data=form)
        await client.get("/secret-path")
    found = tree(spans)

    failed, refused = found["POST /v1/transcribe"]
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.attributes["error.type"] == "internal_error"
    assert refused.status.status_code is StatusCode.UNSET
    assert refused.attributes["error.type"] == "not_audio"
    assert found["engine"][0].status.description == "RuntimeError"
    assert "secret" not in "".join(span.to_json() for each in found.values() for span in each)


ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "true"}, False),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_tracing_is_off_unless_an_exporter_is_configured(environment: dict[str, str], expected: bool) -> None:
    assert tracing.wanted(environment) is expected


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[TracerProvider]]:
    """What `configure` would set for the whole process."""
    providers: list[TracerProvider] = []
    monkeypatch.setattr(trace, "set_tracer_provider", providers.append)
    yield providers
    for provider in providers:
        provider.shutdown()


def test_without_configuration_no_provider_is_set(chosen: list[TracerProvider]) -> None:
    tracing.configure()

    assert not chosen


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize(("name", "shown"), [(None, "omnihear"), ("speech", "speech")])
def test_the_environment_chooses_protocol_and_name(
    protocol: str, name: str | None, shown: str, monkeypatch: pytest.MonkeyPatch, chosen: list[TracerProvider]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    if name is not None:
        monkeypatch.setenv("OTEL_SERVICE_NAME", name)

    tracing.configure()

    (provider,) = chosen
    assert provider.resource.attributes[SERVICE_NAME] == shown


def test_an_unknown_protocol_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier-pigeon")

    with pytest.raises(SettingsError, match=r"OTEL_EXPORTER_OTLP_PROTOCOL = 'carrier-pigeon'.*grpc"):
        tracing.configure()
