import pytest

from benchmarks.answers import Answer, Latency, Load
from benchmarks.scenarios import Scenario

SCENARIO = Scenario(callers=2)


def answered(seconds: float, *, text: str = "two words", **stages: float) -> Answer:
    return Answer(seconds=seconds, audio_seconds=10.0, text=text, stages=stages)


def failed(error: str) -> Answer:
    return Answer(seconds=0.001, audio_seconds=10.0, error=error, stages={})


def test_percentiles_between_two_measurements_are_interpolated() -> None:
    latency = Latency.of([number / 100 for number in range(100, -1, -1)])

    assert latency is not None
    assert (latency.p50, latency.p95, latency.p99, latency.mean) == pytest.approx((0.5, 0.95, 0.99, 0.5))
    three = Latency.of([1.0, 1.0, 2.0])
    assert three is not None
    assert (three.mean, three.p50, three.p95, three.p99) == pytest.approx((4 / 3, 1.0, 1.9, 1.98))
    assert Latency.of([]) is None
    assert Latency.of([3.0]) == Latency(mean=3.0, p50=3.0, p95=3.0, p99=3.0)


def test_what_failed_counts_neither_as_throughput_nor_as_latency() -> None:
    answers = [answered(1.0), answered(3.0), failed("503 loading"), failed("503 loading"), failed("ReadError")]

    load = Load.of(answers, SCENARIO, seconds=4.0)

    assert load.requests == 5
    assert load.errors == {"503 loading": 2, "ReadError": 1}
    assert load.clips_per_second == 0.5
    assert load.audio_seconds == 20.0
    assert load.rtfx == 5.0
    assert load.words == 4
    assert load.latencies == (1.0, 3.0)
    assert load.latency is not None
    assert load.latency.mean == 2.0


def test_a_server_that_answers_nothing_has_no_latency() -> None:
    load = Load.of([failed("500")], SCENARIO, seconds=1.0)

    assert load.latency is None
    assert load.rtfx == 0


def test_stages_are_means_over_the_answers_that_tell_them() -> None:
    answers = [answered(1.0, decode=4.0, inference=100.0), answered(1.0, decode=6.0), answered(1.0)]

    assert Load.of(answers, SCENARIO, seconds=1.0).stages == {"decode": 5.0, "inference": 100.0}


def test_first_texts_and_tokens_are_those_of_the_answers_that_have_them() -> None:
    answers = [
        Answer(seconds=1.0, first_seconds=0.2, audio_seconds=1.0, tokens=3, stages={}),
        Answer(seconds=1.0, audio_seconds=1.0, tokens=5, stages={}),
        failed("500"),
    ]

    load = Load.of(answers, SCENARIO, seconds=2.0, client_seconds=0.5)

    assert load.first_text == Latency(mean=0.2, p50=0.2, p95=0.2, p99=0.2)
    assert (load.tokens, load.client_busy) == (4.0, 0.25)
