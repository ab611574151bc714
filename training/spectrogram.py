"""Whisper's log-mel features of a batch, on the device: the values of Transformers' WhisperFeatureExtractor."""

import torch
from torch import Tensor, nn
from transformers import WhisperFeatureExtractor

FLOOR = 1e-10
RANGE = 8.0  # powers of ten below a clip's own maximum
MASKED = -0.5  # about the mean of what speech has


class Spectrogram(nn.Module):
    """Waveforms to features."""

    def __init__(self, extractor: WhisperFeatureExtractor) -> None:
        super().__init__()
        self.n_fft, self.hop = extractor.n_fft, extractor.hop_length
        filters = torch.as_tensor(extractor.mel_filters, dtype=torch.float32).t().contiguous()
        self.register_buffer("filters", filters, persistent=False)
        self.register_buffer("window", torch.hann_window(self.n_fft), persistent=False)

    @torch.no_grad()
    def forward(self, waveforms: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Compute.

        Args:
            waveforms: float32, shape = (n_clips, n_samples), zero from each clip's length on.
            lengths: samples of each clip, shape = (n_clips,).

        Returns:
            Features, shape = (n_clips, n_mels, n_frames), zero behind each clip's frames; and frames of each clip.
        """
        frames = (lengths + self.hop - 1) // self.hop
        longest = int(frames.max())
        missing = longest * self.hop + self.n_fft - waveforms.shape[1]
        padded = nn.functional.pad(waveforms, (0, max(0, missing)))
        spectrum = torch.stft(
            padded, self.n_fft, self.hop, window=self.window, center=True, pad_mode="reflect", return_complex=True
        )
        power = spectrum[..., :longest].abs() ** 2
        logarithm = torch.log10((self.filters @ power).clamp_min(FLOOR))
        own = (torch.arange(longest, device=frames.device) < frames[:, None])[:, None]
        peak = logarithm.masked_fill(~own, -99.0).amax((1, 2), keepdim=True)
        return (torch.maximum(logarithm, peak - RANGE) + 4.0) / 4.0 * own, frames


def mask(
    features: Tensor,
    frames: Tensor,
    *,
    time_masks: int,
    time_frames: int,
    frequency_masks: int,
    frequency_bins: int,
    generator: torch.Generator,
) -> Tensor:
    """SpecAugment (Park et al. 2019): bands of time and frequency are covered, each with a chance of one half.

    Args:
        features: shape = (n_clips, n_mels, n_frames).
        frames: of each clip.

    Returns:
        The same shape, zero behind each clip's frames as before.
    """
    clips, bins, longest = features.shape
    device = features.device

    def chance() -> Tensor:
        return torch.rand(clips, 1, generator=generator, device=device)

    times, frequencies = torch.arange(longest, device=device), torch.arange(bins, device=device)
    for _ in range(time_masks):
        start = chance() * frames[:, None]
        covered = (times >= start) & (times < start + chance() * time_frames) & (chance() < 0.5)
        features = features.masked_fill(covered[:, None], MASKED)
    for _ in range(frequency_masks):
        start = chance() * bins
        covered = (frequencies >= start) & (frequencies < start + chance() * frequency_bins) & (chance() < 0.5)
        features = features.masked_fill(covered[:, :, None], MASKED)
    return features * (times < frames[:, None])[:, None]
