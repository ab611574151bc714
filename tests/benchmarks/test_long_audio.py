import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.long_audio import Measured, Seams, numbered_seams, spoken_seams, time_errors, write
from benchmarks.long_speech import (
    BREATHLESS,
    CLEAR_EDGES,
    GAP_SECONDS,
    WORD_SECONDS,
    Passage,
    assemble,
    gap,
    hear_numbers,
    mark,
    numbers_spoken,
    place_of,
    recordings,
)
from engine.interface import SAMPLE_RATE, SpeechRequest

SECOND = (np.random.default_rng(0).normal(0, 3000, SAMPLE_RATE)).astype(np.int16)
WORD = round(WORD_SECONDS * SAMPLE_RATE)


@given(st.integers(0, 4 * 3600 * SAMPLE_RATE), st.integers(0, SAMPLE_RATE - 64))
def test_samples_tell_their_place(start: int, cut: int) -> None:
    marked = mark(SECOND, start)

    assert place_of((marked[cut:] / 32768).astype(np.float32)) == start + cut
    assert np.abs(marked.astype(int) - SECOND).max() <= 3


def test_a_word_that_is_cut_is_a_scrap() -> None:
    waveform = (mark(SECOND, 10 * WORD + 100) / 32768).astype(np.float32)

    words = hear_numbers(SpeechRequest(request_id="r", waveform=waveform)).words

    assert words == ("ord", "word11", "wo")
    assert hear_numbers(SpeechRequest(request_id="warm-up", waveform=np.zeros(1600, np.float32))).words == ()


def test_passages_are_where_they_are_said_to_be() -> None:
    sources = recordings()
    parts = list(assemble(sources, 400))
    whole = np.concatenate([samples for _, samples in parts])

    assert 300 * SAMPLE_RATE < len(whole) <= 400 * SAMPLE_RATE
    assert BREATHLESS in {passage.name for passage, _ in parts}
    for passage, _ in parts:
        np.testing.assert_array_equal(whole[passage.start : passage.end], sources[passage.name])
        assert not whole[passage.start - len(gap()) : passage.start].any()


def test_words_in_pauses_may_be_lost() -> None:
    speech = np.concatenate([SECOND, np.zeros(SAMPLE_RATE, np.int16), SECOND])

    assert numbers_spoken(speech, 0) == [0, 1, 5, 6]
    assert numbers_spoken(speech, WORD - 100) == [1, 2, 6, 7]


@pytest.mark.parametrize(
    ("text", "seams"),
    [
        ("word0 word1 word5 word6", Seams(words=4, lost=0, doubled=0)),
        ("word0 ord word5 word6 word6", Seams(words=4, lost=1, doubled=1)),
    ],
)
def test_numbers_that_are_missing_or_come_twice_are_counted(text: str, seams: Seams) -> None:
    speech = np.concatenate([SECOND, np.zeros(SAMPLE_RATE, np.int16), SECOND])

    assert numbered_seams(text, [Passage("a", 0, len(speech))], {"a": speech}) == seams


@pytest.mark.parametrize(("text", "lost", "doubled"), [("a b c d", 0, 0), ("a b d", 1, 0), ("a b b c d", 0, 1)])
def test_words_are_counted_against_those_of_each_passage_alone(text: str, lost: int, doubled: int) -> None:
    passages = [Passage("one", 0, 1), Passage("two", 1, 2)]
    alone = {"one": {"text": "a b"}, "two": {"text": "c d"}}

    assert spoken_seams(text, passages, alone) == Seams(words=4, lost=lost, doubled=doubled)


def test_times_are_compared_with_those_of_each_passage_alone() -> None:
    name = CLEAR_EDGES[0]
    alone = {name: {"segments": [{"start": GAP_SECONDS, "end": GAP_SECONDS + 2}]}}
    passages = [Passage(name, 10 * SAMPLE_RATE, 12 * SAMPLE_RATE), Passage("noisy", 20 * SAMPLE_RATE, 21 * SAMPLE_RATE)]

    (error,) = time_errors([{"start": 10.1, "end": 12.25}], passages, alone)

    assert error == pytest.approx(0.25)


def test_the_report_has_every_figure() -> None:
    measured = Measured(
        engine="numbers",
        hours=4,
        segments=1234,
        time_error=0.027,
        time_error_at_end=0.021,
        seams=Seams(words=999, lost=7, doubled=5, other=3),
        stream_is_whole=False,
        seconds=100.0,
        idle_mib={"service": (128, 64)},
        peak_mib={"service": (134, 69), "decode worker": (116, 44)},
    )

    report = write(measured)

    for figure in ("1234", "0.027 s", "0.021 s", "999; 7, 5, 3", "NO", "144 x", "| service | 128 | 64 | 134 | 69 |"):
        assert figure in report
