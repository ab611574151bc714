from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.config import MODELS
from engine.interface import Waveform
from engine.models.feature_extractor import ClipFeatureExtractor
from tests.audio_factory import clip, silence

HOP, N_FFT = 160, 400


@pytest.fixture(scope="module")
def reference() -> Any:
    from transformers.models.whisper import WhisperFeatureExtractor

    return WhisperFeatureExtractor.from_pretrained(MODELS / "omni-tiny-en")


@pytest.fixture(scope="module")
def ours(reference: Any) -> ClipFeatureExtractor:
    return ClipFeatureExtractor(**reference.to_dict())


def loud(n_samples: int) -> Waveform:
    """Ends at full level, so that the last frames tell zeros from a reflection."""
    return np.random.default_rng(n_samples).uniform(-1, 1, n_samples).astype(np.float32)


def expected(reference: Any, waveform: Waveform) -> NDArray[np.float32]:
    """As Qwen2.5-Omni's processor calls the reference: padded to 300 s, then cut by the mask."""
    features = reference(
        [waveform], sampling_rate=16_000, padding="max_length", return_attention_mask=True, return_tensors="np"
    )
    own: NDArray[np.float32] = features["input_features"][0][:, features["attention_mask"][0].astype(bool)]
    return own


EDGES = [multiple * HOP + offset for multiple in (3, 10, 100, 1000) for offset in (-1, 0, 1, HOP // 2, N_FFT // 2)]


@pytest.mark.parametrize("n_samples", [201, 399, 400, 401, *EDGES, 80_000, 480_000])
def test_values_are_those_of_the_reference_around_every_edge(
    n_samples: int, reference: Any, ours: ClipFeatureExtractor
) -> None:
    waveform = loud(n_samples)

    features = ours([waveform], sampling_rate=16_000, return_tensors="np")

    assert features["attention_mask"].all()
    np.testing.assert_allclose(features["input_features"][0], expected(reference, waveform), rtol=0, atol=1e-5)


@pytest.mark.parametrize("waveform", [clip("jfk-human.wav"), silence(1.0), silence(1.0) + np.float32(1e-6)])
def test_speech_and_silence_have_the_values_of_the_reference(
    waveform: Waveform, reference: Any, ours: ClipFeatureExtractor
) -> None:
    features = ours(waveform, sampling_rate=16_000, return_tensors="np")

    np.testing.assert_allclose(features["input_features"][0], expected(reference, waveform), rtol=0, atol=1e-5)


def test_clips_of_a_batch_do_not_change_each_other(reference: Any, ours: ClipFeatureExtractor) -> None:
    waveforms = [loud(16_000), loud(4_001), loud(9_600)]

    features = ours(waveforms, sampling_rate=16_000, return_tensors="np")

    for values, mask, waveform in zip(features["input_features"], features["attention_mask"], waveforms, strict=True):
        np.testing.assert_allclose(values[:, mask.astype(bool)], expected(reference, waveform), rtol=0, atol=1e-5)


def test_what_is_longer_than_the_reference_takes_is_cut_as_there(reference: Any, ours: ClipFeatureExtractor) -> None:
    waveform = loud(300 * 16_000 + 5_000)

    features = ours([waveform], sampling_rate=16_000, return_tensors="np")

    assert features["input_features"].shape[-1] == 30_000
    np.testing.assert_allclose(features["input_features"][0], expected(reference, waveform), rtol=0, atol=1e-5)
