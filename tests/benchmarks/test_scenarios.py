import numpy as np
import pytest

from benchmarks.scenarios import Scenario


@pytest.mark.parametrize(
    "text", ["1", "256", "20/s", "0.5/s", "8:mixed", "8:opus", "8:stream", "2.5/s:mixed:mp3:stream"]
)
def test_a_scenario_is_written_as_it_is_read(text: str) -> None:
    assert str(Scenario.parse(text)) == text


def test_the_order_of_what_follows_does_not_matter() -> None:
    assert Scenario.parse(" 8:stream:opus:mixed") == Scenario(callers=8, mixed=True, container="opus", stream=True)


@pytest.mark.parametrize("text", ["", "0", "-1", "0/s", "x", "8/m", "8:flac", "8:mp3:opus", "8:mixed:mixed", "1.5"])
def test_what_is_no_scenario_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no load: write 8 or 20/s"):
        Scenario.parse(text)


def test_arrivals_are_a_poisson_process_of_the_rate_and_the_same_every_time() -> None:
    arrivals = Scenario(rate=50.0).arrivals(40.0)
    gaps = np.diff(arrivals)

    assert arrivals == Scenario(rate=50.0).arrivals(40.0)
    assert 0 < arrivals[0] < arrivals[-1] < 40.0
    assert len(arrivals) == pytest.approx(2000, rel=0.07)  # three standard deviations
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(1.0, abs=0.1)  # of an exponential distribution


def test_there_are_clips_for_every_arrival_and_rounds_for_every_caller() -> None:
    assert Scenario(callers=2).clips(20, 10.0) == 20
    assert Scenario(callers=32).clips(20, 10.0) == 128
    assert Scenario(rate=3.0).clips(20, 10.0) == len(Scenario(rate=3.0).arrivals(10.0))
    assert Scenario(rate=0.001).clips(20, 1.0) == 1


def test_plain_is_a_closed_loop_of_equally_long_wav_files() -> None:
    assert Scenario.parse("8").plain
    assert not any(Scenario.parse(text).plain for text in ("8/s", "8:mixed", "8:mp3", "8:stream"))
