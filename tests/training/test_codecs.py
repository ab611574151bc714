import numpy as np
import pytest

from tests.audio_factory import clip
from training.codecs import CODECS, through

SPEECH = np.round(clip("test-flite-male.wav") * 32767).astype(np.int16)


@pytest.mark.parametrize("name", CODECS)
def test_what_comes_back_is_the_same_speech_at_the_same_time_and_not_the_same_samples(name: str) -> None:
    coded = through(SPEECH, CODECS[name])

    assert coded.shape == SPEECH.shape
    assert coded.dtype == np.int16
    assert not np.array_equal(coded, SPEECH)
    assert np.corrcoef(coded, SPEECH)[0, 1] > 0.7
