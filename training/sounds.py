"""Sounds that are no speech, and rooms: made from a seed, on the device."""

import math

import torch
from torch import Tensor

from engine.interface import SAMPLE_RATE

SECONDS = 30
ROOM_SAMPLES = SAMPLE_RATE // 2
SCALE = (0, 2, 4, 5, 7, 9, 11, 12)  # semitones


class Sounds:
    """Makes sounds of chance, each of shape = (n_samples,), standard deviation 1."""

    def __init__(self, device: torch.device, seed: int, seconds: float = SECONDS) -> None:
        self._device = device
        self._generator = torch.Generator(device).manual_seed(seed)
        self._samples = round(seconds * SAMPLE_RATE)
        self._time = torch.arange(self._samples, device=device) / SAMPLE_RATE

    def bank(self, count: int) -> Tensor:
        """Noises of several colours, tones, hums, music-like and impulsive sounds in turn; (count, n_samples), half."""
        makers = (self.coloured, self.tones, self.coloured, self.hum, self.coloured, self.music, self.impulses)
        sounds = [makers[index % len(makers)]() for index in range(count)]
        return torch.stack([(sound / sound.std().clamp_min(1e-6)).half() for sound in sounds])

    def rooms(self, count: int) -> Tensor:
        """Impulse responses of rooms with reverberation times of 0.12 to 0.72 s; shape = (count, ROOM_SAMPLES)."""
        chance = torch.rand(count, 2, generator=self._generator, device=self._device)
        decay = torch.exp(-6.9 * self._time[:ROOM_SAMPLES] / (0.12 + 0.6 * chance[:, :1]))  # 60 dB
        late = torch.randn(count, ROOM_SAMPLES, generator=self._generator, device=self._device) * decay
        late[:, :16] = 0
        late = late / late.norm(dim=1, keepdim=True) * 10 ** (-14 * chance[:, 1:] / 20)
        late[:, 0] = 1
        return late

    def coloured(self) -> Tensor:
        """Noise that falls by 0 to 12 dB an octave, half of the time in a band, half of the time swelling."""
        spectrum = torch.fft.rfft(self._noise())
        frequency = torch.fft.rfftfreq(self._samples, 1 / SAMPLE_RATE, device=self._device).clamp_min(20)
        spectrum = spectrum * frequency ** -self._between(0, 1.5)
        if self._between(0, 1) < 0.5:
            band = (frequency.log() - self._between(5, 8.5)) / self._between(0.3, 1.2)
            spectrum = spectrum * torch.exp(-(band**2))
        sound = torch.fft.irfft(spectrum, self._samples)
        if self._between(0, 1) < 0.5:
            sound = sound * (0.55 + 0.45 * torch.sin(2 * math.pi * self._between(0.1, 6) * self._time))
        return sound

    def tones(self) -> Tensor:
        """One to three steady tones, as lines and devices give them."""
        sound = 0.01 * self._noise()
        for _ in range(1 + int(self._between(0, 3))):
            angle = 2 * math.pi * self._between(80, 3000) * self._time + self._between(0, 6)
            sound = sound + torch.sin(angle) * self._between(0.1, 1)
        return sound

    def hum(self) -> Tensor:
        """Mains and its harmonics."""
        base = (50, 60, 100, 120)[int(self._between(0, 4))]
        harmonics = [torch.sin(2 * math.pi * base * number * self._time) / number for number in range(1, 7)]
        return torch.stack(harmonics).sum(0) + 0.05 * self._noise()

    def music(self) -> Tensor:
        """Notes of a scale, one to three at a time, with harmonics and decay."""
        sound = torch.zeros(self._samples, device=self._device)
        base, step, place = self._between(110, 330), self._between(0.12, 0.5), 0.0
        ring = self._time[:SAMPLE_RATE]
        while round(place * SAMPLE_RATE) < self._samples:
            start = round(place * SAMPLE_RATE)
            for _ in range(1 + int(self._between(0, 3))):
                pitch = base * 2 ** (SCALE[int(self._between(0, len(SCALE)))] / 12 + int(self._between(0, 2)))
                waves = [torch.sin(2 * math.pi * pitch * n * ring) / n**1.5 for n in range(1, 6)]
                note = torch.stack(waves).sum(0) * torch.exp(-ring * self._between(2, 8))
                sound[start : start + SAMPLE_RATE] += note[: self._samples - start]
            place += step * (1 + int(self._between(0, 2)))
        return sound

    def impulses(self) -> Tensor:
        """Clicks, knocks and bursts, one to eight a second."""
        chance = torch.rand(self._samples, generator=self._generator, device=self._device)
        times = (chance < self._between(1, 8) / SAMPLE_RATE).float()
        shape = torch.exp(-torch.arange(4000, device=self._device) / self._between(40, 900))
        shape = shape * torch.randn(4000, generator=self._generator, device=self._device)
        size = 2 * self._samples
        sound = torch.fft.irfft(torch.fft.rfft(times, size) * torch.fft.rfft(shape, size), size)[: self._samples]
        return sound + 0.003 * self._noise()

    def _noise(self) -> Tensor:
        return torch.randn(self._samples, generator=self._generator, device=self._device)

    def _between(self, low: float, high: float) -> float:
        chance = torch.rand(1, generator=self._generator, device=self._device).item()
        return low + (high - low) * min(chance, 0.999_999)
