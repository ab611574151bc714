"""Finding speech and cutting it."""

import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.transcription.segmentation import (
    CONTEXT,
    LONG_PAUSE,
    MAX_SEGMENT,
    MIN_SEGMENT,
    MIN_SPEECH,
    OVERLAP,
    PAD,
    THRESHOLD,
    THRESHOLD_END,
    WINDOW,
    SpeechActivity,
    SpeechDetector,
    cut,
)
from app.transcription.types import SegmentSpan
from engine.config import ROOT
from engine.interface import SAMPLE_RATE
from tests import audio_factory as factory
from tests.audio_factory import Samples

SPEECH = [name for name in factory.TRANSCRIPTS if name.endswith(".wav")]
LONG = "harbor-story-long.flac"
PER_SECOND = SAMPLE_RATE / WINDOW


def detect(samples: Samples, block: int = 8_000) -> SpeechActivity:
    detector = SpeechDetector()
    for at in range(0, len(samples), block):
        detector.feed(samples[at : at + block])
    return detector.finish()


def telephone(samples: Samples) -> Samples:
    """Through 8 kHz mu-law and back."""
    narrow = np.clip(factory.resample(samples, 8_000), -1, 1)
    companded = np.round(127 * np.sign(narrow) * np.log1p(255 * np.abs(narrow)) / np.log(256)) / 127
    expanded = np.sign(companded) * (256 ** np.abs(companded) - 1) / 255
    return factory.resample(expanded.astype(np.float32), SAMPLE_RATE, 8_000)


def covered(spans: tuple[SegmentSpan, ...], n_samples: int) -> NDArray[np.bool_]:
    mask = np.zeros(n_samples, np.bool_)
    for span in spans:
        mask[span.start : span.end] = True
    return mask


def activity(*pieces: tuple[float, float]) -> SpeechActivity:
    """Made of pieces, each of seconds and a probability of speech; levels follow the probability."""
    probabilities = np.concatenate([np.full(round(seconds * PER_SECOND), p, np.float32) for seconds, p in pieces])
    return SpeechActivity(probabilities, 40 * probabilities - 60, len(probabilities) * WINDOW)


def test_probabilities_equal_those_of_the_streaming_model() -> None:
    samples = factory.clip(SPEECH[0])
    spec = importlib.util.find_spec("silero_vad")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    path = Path(spec.submodule_search_locations[0]) / "data" / "silero_vad.onnx"
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    state, padded = np.zeros((2, 1, 128), np.float32), np.concatenate([np.zeros(CONTEXT), samples, np.zeros(WINDOW)])
    expected = []
    for at in range(0, len(samples), WINDOW):
        window = padded[None, at : at + CONTEXT + WINDOW].astype(np.float32)
        probability, state = session.run(None, {"input": window, "state": state, "sr": np.array(SAMPLE_RATE)})
        expected.append(probability.item())
    heard = detect(samples)
    assert heard.n_samples == len(samples)
    assert np.abs(heard.probabilities - np.array(expected)).max() < 1e-5


@settings(max_examples=30)
@given(st.lists(st.integers(0, 20_000), min_size=1, max_size=20))
def test_the_size_of_the_blocks_makes_no_difference(sizes: list[int]) -> None:
    samples = factory.clip(SPEECH[1])
    detector = SpeechDetector()
    at = 0
    for size in sizes:
        detector.feed(samples[at : at + size])
        at += size
    detector.feed(samples[at:])
    heard, expected = detector.finish(), detect(samples)
    assert np.abs(heard.probabilities - expected.probabilities).max() < 1e-5
    assert np.allclose(heard.levels, expected.levels, atol=1e-3)
    assert heard.n_samples == expected.n_samples


def chords(seconds: float) -> Samples:
    """Music-like: struck chords with overtones that die away."""
    time = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    root = 220 * 2 ** (np.floor(2 * time) % 5 / 12)
    tones = sum(np.sin(2 * np.pi * root * ratio * k * time) / k for ratio in (1, 1.26, 1.5) for k in (1, 2, 3))
    return np.asarray(0.15 * tones * np.exp(-3 * (2 * time % 1)), np.float32)


def hum(seconds: float) -> Samples:
    tones = [factory.sine(seconds, frequency=50.0 * k, amplitude=0.1 / k) for k in range(1, 10)]
    return np.asarray(sum(tones), np.float32)


NO_SPEECH: dict[str, Samples] = {
    "zero": factory.silence(5),
    "long zero": factory.silence(30),
    "faintest noise": factory.noise(5, -80),
    "faint noise": factory.noise(30, -60),
    "noise": factory.noise(30, -40),
    "strong noise": factory.noise(30, -20),
    "deafening noise": factory.noise(5, -6),
    "tone": factory.sine(10, frequency=1_000, amplitude=0.9),
    "faint tone": factory.sine(10, frequency=200, amplitude=0.001),
    "square wave": np.sign(factory.sine(10, frequency=200)) * np.float32(0.3),
    "dialling tone": factory.sine(10, frequency=697) + factory.sine(10, frequency=1_209),
    "beeps": factory.sine(10) * (np.arange(10 * SAMPLE_RATE) % SAMPLE_RATE < SAMPLE_RATE // 2),
    "chords": chords(20),
    "faint chords": chords(20) / np.float32(100),
    "mains hum": hum(10),
    "faint mains hum": hum(10) / np.float32(100),
    "10 ms of zero": factory.silence(0.01),
    "10 ms of tone": factory.sine(0.01),
    "one sample": np.zeros(1, np.float32),
    "nothing": np.zeros(0, np.float32),
}


@pytest.mark.parametrize("name", NO_SPEECH)
def test_what_is_no_speech_gives_no_segments(name: str) -> None:
    assert cut(detect(NO_SPEECH[name].astype(np.float32))) == ()


@pytest.mark.parametrize("name", NO_SPEECH)
def test_without_skipping_silence_all_sound_is_covered(name: str) -> None:
    samples = NO_SPEECH[name].astype(np.float32)
    spans = cut(detect(samples), skip_silence=False)
    assert covered(spans, len(samples)).all()
    assert all(span.end - span.start <= MAX_SEGMENT for span in spans)


@pytest.mark.parametrize("name", SPEECH)
@pytest.mark.parametrize("condition", ["clean", "telephone", "40 dB quieter", "noise 15 dB below"])
def test_speech_is_found_under_bad_conditions(name: str, condition: str) -> None:
    samples = factory.clip(name)
    level = 20 * np.log10(samples.std())
    heard = {
        "clean": samples,
        "telephone": telephone(samples),
        "40 dB quieter": samples / np.float32(100),
        "noise 15 dB below": samples + factory.noise(len(samples) / SAMPLE_RATE, level - 15)[: len(samples)],
    }[condition]
    mask = covered(cut(detect(heard)), len(samples))
    # Whatever is within 25 dB of the loudest 20 ms is speech in these clips.
    frames = samples[: len(samples) // 320 * 320].reshape(-1, 320).std(axis=1)
    loud = np.repeat(frames > frames.max() * 10 ** (-25 / 20), 320)
    # The recording of 1961 is noisy itself.
    assert mask[: len(loud)][loud].mean() > (0.95 if "human" in name else 0.99)


def test_a_long_story_is_cut_in_its_pauses() -> None:
    samples = factory.clip(LONG)
    for target in (None, 15 * SAMPLE_RATE, 8 * SAMPLE_RATE):
        spans = cut(detect(samples), MAX_SEGMENT, target)
        assert len(spans) >= 2
        for left, right in itertools.pairwise(spans):
            edge = samples[left.end - 800 : left.end], samples[right.start : right.start + 800]
            assert max(np.abs(part).max() for part in edge) < 0.02
        assert all(span.end - span.start <= (target or MAX_SEGMENT) * 1.3 for span in spans)


def test_a_pause_of_some_seconds_ends_a_segment() -> None:
    spans = cut(activity((1, 0), (3, 1), (2.5, 0), (3, 1), (1, 0)))
    assert len(spans) == 2
    assert spans[1].start - spans[0].end > LONG_PAUSE - 2 * PAD


def test_short_pauses_do_not_end_a_segment() -> None:
    assert len(cut(activity((1, 0), (3, 1), (0.5, 0), (3, 1), (0.2, 0), (3, 1), (1, 0)))) == 1


def test_of_two_pauses_the_longer_one_is_cut() -> None:
    (first, second) = cut(activity((15, 1), (0.8, 0), (12, 1), (0.15, 0), (10, 1)))
    assert first.end < 16 * SAMPLE_RATE
    assert second.start > 15 * SAMPLE_RATE


def test_speech_without_a_pause_is_cut_where_it_is_quietest_near_the_limit() -> None:
    endless = activity((45, 1))
    dip = round(22 * PER_SECOND)
    endless.levels[dip - 2 : dip + 2] -= 15
    (first, second) = cut(endless)
    assert first.end - OVERLAP // 2 == second.start + OVERLAP // 2 == dip * WINDOW


def test_a_word_on_its_own_gets_a_second_of_sound() -> None:
    (span,) = cut(activity((5, 0), (0.2, 1), (5, 0)))
    assert span.end - span.start >= MIN_SEGMENT
    assert span.start < 5 * SAMPLE_RATE < 5.2 * SAMPLE_RATE < span.end
    (span,) = cut(activity((0.1, 0), (0.2, 1), (0.1, 0)))
    assert span == SegmentSpan(0, round(0.1 * PER_SECOND) * 2 * WINDOW + round(0.2 * PER_SECOND) * WINDOW)


def test_a_target_shortens_segments_without_cutting_words_apart() -> None:
    sentences = activity(*[(4, 1), (0.6, 0)] * 12)
    assert len(cut(sentences)) == 2
    assert len(cut(sentences, MAX_SEGMENT, 10 * SAMPLE_RATE)) == 6
    hurried = activity(*[(2, 1), (0.1, 0)] * 6)
    assert len(cut(hurried, MAX_SEGMENT, 10 * SAMPLE_RATE)) == 1


def test_limits_below_four_seconds_are_refused() -> None:
    with pytest.raises(ValueError, match="max_samples"):
        cut(activity((1, 1)), 3 * SAMPLE_RATE)


pieces = st.lists(
    st.tuples(st.floats(0.032, 40.0), st.sampled_from([0.0, 0.1, 0.4, 0.6, 1.0])), min_size=1, max_size=30
)


@given(pieces, st.integers(0, WINDOW - 1), st.sampled_from([4, 10, 30]), st.sampled_from([None, 4, 8, 30]))
def test_spans_cover_all_speech_in_order_within_the_limit(
    parts: list[tuple[float, float]], missing: int, limit: int, target: int | None
) -> None:
    whole = activity(*parts)
    n_samples = len(whole.probabilities) * WINDOW - missing
    heard = SpeechActivity(whole.probabilities, whole.levels, n_samples)
    spans = cut(heard, limit * SAMPLE_RATE, target and target * SAMPLE_RATE)
    assert all(0 <= span.start < span.end <= n_samples for span in spans)
    assert all(span.end - span.start <= limit * SAMPLE_RATE for span in spans)
    speaks = np.append(heard.probabilities >= THRESHOLD_END, False)
    for left, right in itertools.pairwise(spans):
        assert left.start < right.start
        assert left.end < right.end
        if left.end > right.start:  # inside speech, and around the cut
            cut_at = (left.end + right.start) // 2
            assert left.end - right.start <= OVERLAP
            assert speaks[cut_at // WINDOW] or speaks[cut_at // WINDOW - 1]
    mask = covered(spans, n_samples)
    speech = np.repeat(heard.probabilities >= THRESHOLD, WINDOW)
    runs = np.flatnonzero(np.diff(np.concatenate([[0], speech, [0]]))).reshape(-1, 2)
    for start, end in runs:
        if end - start >= MIN_SPEECH:  # shorter ones may be dropped, if they stand alone
            assert mask[start:end].all()
    assert len(runs) or spans == ()


def test_nothing_is_collected_for_the_makers_of_onnxruntime(tmp_path: Path) -> None:
    """Its builds write an identifier and events to the home folder, and send them; not so in continuous integration."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CI", "ORT_", "XDG_"))}
    code = "from app.transcription.segmentation import SpeechDetector; SpeechDetector()"
    subprocess.run([sys.executable, "-c", code], env=environment | {"HOME": str(tmp_path)}, check=True, cwd=ROOT)
    assert list(tmp_path.rglob("*")) == []
