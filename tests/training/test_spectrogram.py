import numpy as np
import torch
from transformers import WhisperFeatureExtractor

from engine.models.feature_extractor import ClipFeatureExtractor
from tests.audio_factory import clip, noise
from training.spectrogram import MASKED, Spectrogram, mask

SPEECH = [clip("test-flite-male.wav"), clip("number-uk-male.wav")[:40_001], noise(0.3, -30)]


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([len(each) for each in SPEECH])
    waveforms = torch.zeros(len(SPEECH), int(lengths.max()))
    for row, each in enumerate(SPEECH):
        waveforms[row, : len(each)] = torch.from_numpy(each.copy())
    return waveforms, lengths


def test_features_are_those_of_the_service() -> None:
    features, frames = Spectrogram(WhisperFeatureExtractor(feature_size=80))(*batch())

    reference = ClipFeatureExtractor(feature_size=80)
    for got, count, speech in zip(features, frames, SPEECH, strict=True):
        expected = reference(speech, sampling_rate=16_000)["input_features"][0]
        assert int(count) == expected.shape[1]
        np.testing.assert_allclose(got[:, : int(count)].numpy(), expected, atol=2e-4)
        assert got[:, int(count) :].abs().max() == 0 if int(count) < got.shape[1] else True


def test_masks_cover_some_of_each_clip_and_leave_the_padding_empty() -> None:
    features = torch.ones(40, 80, 300)
    frames = torch.full((40,), 200)
    features[:, :, 200:] = 0

    masked = mask(
        features,
        frames,
        time_masks=2,
        time_frames=30,
        frequency_masks=2,
        frequency_bins=20,
        generator=torch.Generator().manual_seed(1),
    )

    covered = (masked == MASKED).float().mean((1, 2))
    assert 0.02 < covered.mean() < 0.4
    assert covered.std() > 0
    assert masked[:, :, 200:].abs().max() == 0
    assert set(masked[:, :, :200].unique().tolist()) == {1.0, MASKED}
