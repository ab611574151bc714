"""Mel features of a clip alone: the values of Transformers' WhisperFeatureExtractor, without padding to its 300 s."""

import math
from typing import Any

import numpy as np
from transformers.feature_extraction_utils import BatchFeature
from transformers.models.whisper import WhisperFeatureExtractor

from engine.interface import Waveform


class ClipFeatureExtractor(WhisperFeatureExtractor):
    """Pads a clip by as much as its own frames see.

    The reference pads every clip with zeros to `n_samples` (300 s) before the spectrogram: 130 ms of one core where the
    clip itself needs 2. A frame reaches n_fft / 2 samples past its centre, so that much zero behind the last frame
    gives the same values; the frames that the padding adds are cut off. They cannot move the maximum that the
    logarithm is clamped to: the least value there is is what silence has.
    """

    def __call__(self, raw_speech: Waveform | list[Waveform], **choices: Any) -> BatchFeature:
        """Compute features.

        Args:
            raw_speech: one clip or several, each of shape = (n_samples,).
            choices: as for the reference; `padding` and `max_length` have no effect.

        Returns:
            `input_features`, shape = (n_clips, feature_size, n_frames of the longest clip), and `attention_mask`,
            shape = (n_clips, n_frames), 1 in each clip's own frames.
        """
        clips = [raw_speech] if isinstance(raw_speech, np.ndarray) and raw_speech.ndim == 1 else list(raw_speech)
        longest = min(max(len(clip) for clip in clips), self.n_samples)
        n_frames = math.ceil(longest / self.hop_length)
        padding = math.ceil(self.n_fft / 2 / self.hop_length)  # frames
        room = min((n_frames + padding) * self.hop_length, self.n_samples)
        features = super().__call__(
            clips,
            **{**choices, "padding": "max_length", "max_length": room, "return_attention_mask": True},
        )
        for name in ("input_features", "attention_mask"):
            features[name] = features[name][..., :n_frames]
        return features
