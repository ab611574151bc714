"""From many channels to one."""

import math

import numpy as np
import pytest

from app.transcription.mixing import Downmix, Normaliser
from tests import audio_factory as factory
from tests.audio_factory import RATE, Samples

VOICE = factory.clip("library-us-female.wav")


def mix(channels: Samples, block: int = 8_000) -> tuple[Samples, Downmix]:
    downmix = Downmix(len(channels), RATE)
    parts = [downmix(channels[:, at : at + block]) for at in range(0, channels.shape[1], block)]
    return np.concatenate(parts), downmix


def signal_to_noise(mixed: Samples, voice: Samples) -> float:
    """In decibels, with the gain of the voice left free."""
    gain = float(mixed @ voice) / float(voice @ voice)
    rest = mixed - gain * voice
    return 10 * math.log10(gain**2 * float(voice @ voice) / float(rest @ rest))


@pytest.mark.parametrize("level", [-60, -40, -30])
def test_opposite_channels_keep_the_voice_above_their_noise(level: float) -> None:
    noises = np.stack([factory.noise(len(VOICE) / RATE, level, seed=seed) for seed in (1, 2)])
    mixed, downmix = mix(np.stack([VOICE, -VOICE]) + noises)
    assert downmix.cancelled
    alone = 10 * np.log10(VOICE.var() / noises[0].var())
    assert signal_to_noise(mixed, VOICE) > alone - 1


def test_the_louder_of_two_cancelling_channels_is_taken() -> None:
    mixed, _ = mix(np.stack([-0.5 * VOICE, VOICE, -0.5 * VOICE]))
    assert np.abs(mixed - VOICE).max() < 1e-3  # silence before the first word is the mean


def test_unequal_opposite_channels_are_heard_one_way_or_the_other() -> None:
    for gain in (0.1, 0.3, 0.6, 0.9):
        mixed, _ = mix(np.stack([VOICE, -gain * VOICE]))
        assert mixed.std() > 0.3 * VOICE.std()
        assert signal_to_noise(mixed, VOICE) > 20


def test_a_phase_switch_in_the_middle_makes_no_gap_and_no_click() -> None:
    tone = factory.sine(4.0, frequency=200.0)
    other = tone.copy()
    other[2 * RATE :] *= -1
    mixed, _ = mix(np.stack([tone, other]))
    levels = mixed[: len(mixed) // 160 * 160].reshape(-1, 160).std(axis=1)
    quiet = levels < 0.25 * tone.std()
    assert quiet.sum() * 0.01 <= 0.5  # the memory has to forget the part in phase
    assert not quiet[-100:].any()
    # Neighbours of a 200 Hz tone differ by 0.04 at most, but where the input itself jumps.
    steps = np.abs(np.diff(mixed))
    steps[2 * RATE - 2 : 2 * RATE + 2] = 0
    assert steps.max() < 0.05


def test_wide_stereo_does_not_count_as_cancellation() -> None:
    channels = np.stack([factory.noise(3, -20, seed=1), factory.noise(3, -20, seed=2)])
    mixed, downmix = mix(channels)
    assert not downmix.cancelled
    assert np.abs(mixed - channels.mean(axis=0)).max() < 1e-6


def test_noise_of_an_open_input_decides_nothing() -> None:
    hiss = factory.noise(2, -90)
    _, downmix = mix(np.stack([hiss, -hiss]))
    assert not downmix.cancelled


def test_one_channel_passes_unchanged() -> None:
    assert np.array_equal(mix(VOICE[None])[0], VOICE)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        (np.array([[0, 128, 255]], np.uint8), [-1, 0, 127 / 128]),
        (np.array([[-(2**15), 0, 2**14]], np.int16), [-1, 0, 0.5]),
        (np.array([[-(2**31), 0, 2**30]], np.int32), [-1, 0, 0.5]),
        (np.array([[-(2**63), 0, 2**62]], np.int64), [-1, 0, 0.5]),
        (np.array([[-1.25, 0, 1.25]], np.float64), [-1.25, 0, 1.25]),
    ],
)
def test_every_sample_type_comes_to_the_same_scale(samples: np.ndarray, expected: list[float]) -> None:
    assert Normaliser()(samples).tolist() == [expected]


def test_codecs_that_overshoot_are_not_rescaled() -> None:
    normalise = Normaliser(may_be_unscaled=False)
    assert normalise(np.array([[8.0]], np.float32)).tolist() == [[8.0]]
