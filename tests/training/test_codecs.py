import numpy as np
import pytest

from tests.audio_factory import clip
from training.codecs import CODECS, through

SPEECH = np.round(clip("test-flite-male.wav") * 32767).astype(np.int16)


def loudness(samples: "np.ndarray[tuple[int], np.dtype[np.int16]]") -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Of each 20 ms."""
    frames = samples[: len(samples) // 320 * 320].astype(np.float64).reshape(-1, 320)
    return np.sqrt((frames**2).mean(1))


@pytest.mark.parametrize("name", CODECS)
def test_what_comes_back_is_the_same_speech_at_the_same_time_and_not_the_same_samples(name: str) -> None:
    coded = through(SPEECH, CODECS[name])

    assert coded.shape == SPEECH.shape
    assert coded.dtype == np.int16
    assert not np.array_equal(coded, SPEECH)
    assert np.corrcoef(loudness(coded), loudness(SPEECH))[0, 1] > 0.95
    assert np.corrcoef(coded, SPEECH)[0, 1] > 0.5  # half of the phases; AMR keeps the least
