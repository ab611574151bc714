import asyncio
from itertools import pairwise

import pytest
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from app.metrics import AUDIO_EDGES, REQUEST_EDGES, RTFX_EDGES, STAGE_EDGES
from app.transcription.transcript import StageSeconds
from engine.interface import EncoderUsage
from engine.scripted import Act, ScriptedEngine
from tests.audio_factory import clip, pcm16, wav
from tests.conftest import Client, MakeClient
from tests.holding import Holding
from tests.live import eventually, live

SPEECH = wav(pcm16(clip("library-us-female.wav")))  # 6.225 s

GONE = (
    "omnihear_requests_total",
    frozenset({"route": "/v1/transcribe", "status": "499", "code": "client_gone"}.items()),
)

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(client: Client) -> Samples:
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


@pytest.mark.parametrize("edges", [AUDIO_EDGES, REQUEST_EDGES, RTFX_EDGES, *STAGE_EDGES.values()])
def test_edges_ascend(edges: tuple[float, ...]) -> None:
    assert all(low < high for low, high in pairwise(edges))


def test_there_is_a_histogram_for_every_stage_that_server_timing_tells() -> None:
    assert set(STAGE_EDGES) == set(StageSeconds.__dataclass_fields__)


async def test_an_upload_is_counted_by_route_status_and_stage(make_client: MakeClient) -> None:
    async with make_client() as client:
        timing = (await client.post("/v1/transcribe", files={"file": SPEECH})).headers["Server-Timing"]
        samples = await scrape(client)

    assert value(samples, "omnihear_requests_total", route="/v1/transcribe", status="200", code="") == 1
    assert value(samples, "omnihear_request_seconds_count", route="/v1/transcribe") == 1
    assert value(samples, "omnihear_audio_seconds_sum") == pytest.approx(6.225)
    assert value(samples, "omnihear_audio_seconds_bucket", le="5.0") == 0
    assert value(samples, "omnihear_audio_seconds_bucket", le="10.0") == 1
    told = {name: float(text) for name, text in (entry.split(";dur=") for entry in timing.split(", "))}
    for stage in STAGE_EDGES:
        assert value(samples, f"omnihear_{stage}_seconds_count") == 1
        assert value(samples, f"omnihear_{stage}_seconds_sum") == pytest.approx(told[stage] / 1000, abs=1e-4)
    worked = (told["decode"] + told["segment"] + told["inference"]) / 1000
    assert value(samples, "omnihear_rtfx_sum") == pytest.approx(6.225 / worked, rel=0.05)


async def test_errors_are_counted_by_code_and_unknown_paths_as_one(make_client: MakeClient) -> None:
    async with make_client() as client:
        await client.post("/v1/transcribe", files={"file": b"text, no sound"})
        await client.post("/v1/transcribe", files={"file": SPEECH}, data={"nonsense": "1"})
        await client.get("/first-unknown")
        await client.get("/second-unknown")
        samples = await scrape(client)

    assert value(samples, "omnihear_requests_total", route="/v1/transcribe", status="415", code="not_audio") == 1
    assert value(samples, "omnihear_requests_total", route="/v1/transcribe", status="422", code="unknown_field") == 1
    assert value(samples, "omnihear_requests_total", route="unmatched", status="404", code="not_found") == 2


async def test_what_failed_after_its_stages_has_been_through_them(make_client: MakeClient) -> None:
    engine = ScriptedEngine(lambda request: Act(fail=request.request_id != "warm-up"))
    async with make_client(engine) as client:
        await client.post("/v1/transcribe", files={"file": SPEECH})
        samples = await scrape(client)

    assert value(samples, "omnihear_requests_total", route="/v1/transcribe", status="500", code="engine_failed") == 1
    assert value(samples, "omnihear_audio_seconds_sum") == pytest.approx(6.225)
    assert value(samples, "omnihear_decode_seconds_count") == 1
    assert value(samples, "omnihear_inference_seconds_count") == 0
    assert value(samples, "omnihear_rtfx_count") == 0


async def test_an_error_in_a_stream_is_counted_though_its_status_was_200(make_client: MakeClient) -> None:
    engine = ScriptedEngine(lambda request: Act(words=("half", "way"), fail=request.request_id != "warm-up"))
    async with make_client(engine) as client:
        answer = await client.post("/v1/transcribe", files={"file": SPEECH}, data={"stream": "true"})
        samples = await scrape(client)

    assert answer.status_code == 200
    assert value(samples, "omnihear_requests_total", route="/v1/transcribe", status="500", code="engine_failed") == 1


async def test_admitted_and_refused_uploads_are_told(make_client: MakeClient) -> None:
    holding = Holding()
    async with make_client(ScriptedEngine(holding), concurrency={"max_requests": 2}) as client:
        running = asyncio.create_task(client.post("/v1/transcribe", files={"file": SPEECH}))
        await holding.arrived.wait()
        waiting = asyncio.create_task(client.post("/v1/transcribe", files={"file": SPEECH}))
        while value(busy := await scrape(client), "omnihear_admitted_requests") != 2:
            pass
        refused = await client.post("/v1/transcribe", files={"file": SPEECH})
        batch = await client.post("/v1/transcribe/batch", files={"audio": SPEECH})
        holding.gate.set()
        await asyncio.gather(running, waiting)
        samples = await scrape(client)

    assert refused.status_code == 429
    assert batch.status_code == 429
    assert value(busy, "omnihear_admitted_requests_limit") == 2
    assert value(busy, "omnihear_admitted_audio_seconds") > 0
    assert value(samples, "omnihear_admitted_requests") == 0
    assert value(samples, "omnihear_refusals_total", reason="overloaded") == 2
    assert value(samples, "omnihear_queue_seconds_count") == 2


async def test_clients_that_leave_are_counted() -> None:
    engine = ScriptedEngine(Holding())
    async with live(engine) as client:
        leaving = asyncio.create_task(client.post("/v1/transcribe", files={"file": SPEECH}))
        await eventually(lambda: engine.running, seconds=20)
        leaving.cancel()
        await eventually(lambda: not engine.running, seconds=20)
        async with asyncio.timeout(20):
            while GONE not in (samples := await scrape(client)):
                pass

    assert samples[GONE] == 1


async def test_readiness_and_what_serves_are_told(make_client: MakeClient) -> None:
    gate = asyncio.Event()
    async with make_client(ScriptedEngine(start_gate=gate), wait=False) as client:
        loading = await scrape(client)
        await client.post("/v1/transcribe", files={"file": SPEECH})
        gate.set()
        while value(ready := await scrape(client), "omnihear_ready") != 1:
            pass

    assert value(loading, "omnihear_ready") == 0
    assert value(ready, "omnihear_refusals_total", reason="not_ready") == 1
    (info,) = [labels for name, labels in ready if name == "omnihear_info"]
    assert ("profile", "cpu") in info
    assert ("model", "omni-tiny-en") in info


async def test_the_encoder_is_told_and_left_out_where_the_engine_does_not_answer(make_client: MakeClient) -> None:
    engine = ScriptedEngine(usage=EncoderUsage(graph_hits=5, graph_misses=2, fallbacks=("compile",)))
    async with make_client(engine) as client:
        samples = await scrape(client)
        engine.usage = None
        without = await scrape(client)

    assert value(samples, "omnihear_encoder_graph_hits_total") == 5
    assert value(samples, "omnihear_encoder_graph_misses_total") == 2
    assert value(samples, "omnihear_encoder_fallback", mode="compile") == 1
    assert value(samples, "omnihear_encoder_fallback", mode="graphs") == 0
    assert not [name for name, _ in without if "encoder" in name]


class Counting(ScriptedEngine):
    """Counts as vLLM does, in its own process."""

    async def metrics(self) -> list[Metric]:
        return [CounterMetricFamily("vllm:test_things", "Of vLLM.", 3)]


async def test_what_the_engine_and_the_process_count_is_passed_on(make_client: MakeClient) -> None:
    async with make_client(Counting()) as client:
        samples = await scrape(client)

    assert value(samples, "vllm:test_things_total") == 3
    assert value(samples, "process_resident_memory_bytes") > 0


async def test_two_services_in_one_process_do_not_add_up(make_client: MakeClient) -> None:
    async with make_client() as one, make_client() as other:
        await one.get("/v1/models")
        mine, theirs = await scrape(one), await scrape(other)

    assert value(mine, "omnihear_requests_total", route="/v1/models", status="200", code="") == 1
    assert not [labels for _, labels in theirs if ("route", "/v1/models") in labels]


async def test_metrics_of_vllm_keep_their_names_whoever_asks(make_client: MakeClient) -> None:
    """Prometheus asks for OpenMetrics first, in which some of vLLM's names clash."""
    async with make_client(Counting()) as client:
        answer = await client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})

    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    names = {family.name for family in text_string_to_metric_families(answer.text)}
    assert {"omnihear_ready", "vllm:test_things"} <= names
