"""From the decoder's samples to one channel of float32."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.interface import Waveform

Channels = NDArray[np.float32]
"""Samples of all channels, shape = (n_channels, n_samples)."""

HOP_SECONDS = 0.1  # between decisions of `Downmix`
MEMORY = 0.8  # share of the past energy that counts in the next decision: half gone after 0.3 s
GLIDE_SECONDS = 0.02  # from one decision to the next, so that there is no click
CANCELS_BELOW = 0.4  # energy of the sum over the sum of the energies: two equal channels with correlation -0.6
CANCELS_AT_ONCE_BELOW = 0.1  # in one hop alone, correlation -0.9: no chance of two voices
MIXES_ABOVE = 0.7  # correlation -0.3: the gap to CANCELS_BELOW keeps the decision from flapping
LOUDER_BY = 2.0  # another channel takes over when its energy is so many times (3 dB) higher
SILENCE = 1e-8  # mean power under which nothing is decided: -80 dBFS

_INTEGER_SCALES = (2.0**15, 2.0**31)  # of float samples that someone forgot to divide


class Normaliser:
    """Turns decoded samples of any type into float32 around [-1, 1].

    Attributes:
        n_invalid: samples that were no numbers (NaN, infinite or beyond 32-bit range), set to 0.
        scale: what float samples have been divided by, above 1 where they came in integer units.
    """

    def __init__(self, *, may_be_unscaled: bool = True) -> None:
        self.n_invalid = 0
        self.scale = 1.0
        self._may_be_unscaled = may_be_unscaled  # float PCM, as a program wrote it; no codec does that

    def __call__(self, samples: NDArray[Any]) -> Channels:
        """Convert uint8, int16, int32, int64, float32 or float64, shape = (n_channels, n_samples)."""
        if samples.dtype == np.uint8:
            return samples.astype(np.float32) / np.float32(128) - np.float32(1)
        if samples.dtype.kind == "i":
            return samples.astype(np.float32) / np.float32(2.0 ** (8 * samples.dtype.itemsize - 1))
        peak = float(np.abs(samples).max(initial=0))
        if not peak <= 2 * _INTEGER_SCALES[-1]:  # NaN included
            valid = np.abs(samples) <= 2 * _INTEGER_SCALES[-1]
            self.n_invalid += int(valid.size - np.count_nonzero(valid))
            samples = np.where(valid, samples, 0)
            peak = float(np.abs(samples).max(initial=0))
        # Lossy codecs overshoot and masters run hot, but not by 12 dB. Once seen, the scale stays.
        if self._may_be_unscaled and peak > 4 * self.scale:
            self.scale = next((scale for scale in _INTEGER_SCALES if peak <= 4 * scale), _INTEGER_SCALES[-1])
        return (samples if self.scale == 1 else samples / self.scale).astype(np.float32, copy=False)


class Downmix:
    """Mixes channels to one by their mean, or takes the louder channel where they cancel each other.

    Out-of-phase stereo (a miswired balanced microphone, "vocal remover" effects) has a mean of nothing, or of nothing
    but the noise in which channels differ. The measure is the energy of the sum over the sum of the energies, with a
    memory of some tenths of a second: n for n equal channels, 1 for unrelated ones or where one alone sounds, 0 for
    cancellation. It decides in steps of HOP_SECONDS, with hysteresis; plain cancellation within a step needs no memory.
    Silence decides nothing. Bounded memory, and no look ahead.

    Attributes:
        cancelled: whether the mix has cancelled anywhere so far.
    """

    def __init__(self, n_channels: int, rate: int) -> None:
        self.cancelled = False
        self._hop = max(1, round(rate * HOP_SECONDS))
        self._glide = max(1, round(rate * GLIDE_SECONDS))
        self._mean = np.full(n_channels, 1 / n_channels, np.float32)
        self._weights: NDArray[np.float32] | None = None
        self._chosen: int | None = None  # the channel taken instead of the mean
        self._energies = np.zeros(n_channels)
        self._energy_of_sum = 0.0

    def __call__(self, block: Channels) -> Waveform:
        """Mix shape = (n_channels, n_samples) to (n_samples,)."""
        if len(block) == 1:
            mono: Waveform = block[0]
            return mono
        hops = range(0, block.shape[1], self._hop)
        return np.concatenate([np.zeros(0, np.float32), *(self._mix(block[:, at : at + self._hop]) for at in hops)])

    def _mix(self, hop: Channels) -> Waveform:
        before, after = self._weights, self._decide(hop)
        self._weights = after
        mixed: Waveform = (self._mean if after is None else after) @ hop
        if before is not None and after is not None and not np.array_equal(before, after):
            glide = hop[:, : self._glide]
            ramp = np.linspace(0, 1, glide.shape[1], dtype=np.float32)
            mixed[: self._glide] = ramp * mixed[: self._glide] + (1 - ramp) * (before @ glide)
        return mixed

    def _decide(self, hop: Channels) -> NDArray[np.float32] | None:
        """Weights for this step; the last ones again in silence, None before the first sound."""
        energies = np.einsum("cn,cn->c", hop, hop, dtype=np.float64)
        if energies.sum() <= SILENCE * hop.size:
            return self._weights
        total = hop.sum(axis=0)
        energy_of_sum = float(total @ total)
        self._energies = MEMORY * self._energies + energies
        self._energy_of_sum = MEMORY * self._energy_of_sum + energy_of_sum
        share = self._energy_of_sum / self._energies.sum()
        cancels = share < (CANCELS_BELOW if self._chosen is None else MIXES_ABOVE)
        if not cancels and energy_of_sum / energies.sum() >= CANCELS_AT_ONCE_BELOW:
            self._chosen = None
            return self._mean
        self.cancelled = True
        loudest = int(self._energies.argmax())
        if self._chosen is None or self._energies[loudest] > LOUDER_BY * self._energies[self._chosen]:
            self._chosen = loudest
        weights = np.zeros_like(self._mean)
        weights[self._chosen] = 1
        return weights
