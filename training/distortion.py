"""The sound of a batch, on the device: utterances put into clips, then rooms, lines, noise and bad levels."""

import math

import torch
from torch import Tensor

from engine.interface import SAMPLE_RATE
from training.batches import Plan
from training.configuration import Distortion
from training.corpus import Corpus
from training.sounds import ROOM_SAMPLES, SECONDS, Sounds

NOISES, ROOMS = 160, 256
OFF = 1e9  # Hz: an upper limit that limits nothing


class Sound:
    """Holds the corpus, noises and rooms where the network is."""

    def __init__(
        self, corpus: Corpus, device: torch.device, seed: int, *, noises: int = NOISES, rooms: int = ROOMS,
        seconds: float = SECONDS,
    ) -> None:  # fmt: skip
        self._device = device
        self._samples = torch.zeros(corpus.samples + 2, dtype=torch.int16, device=device)
        place = 0
        for wave in corpus.waves:
            self._samples[place : place + len(wave)] = torch.from_numpy(wave).to(device)
            place += len(wave)
        sounds = Sounds(device, seed, seconds)
        self._noises, self._rooms = sounds.bank(noises), sounds.rooms(rooms)

    @torch.no_grad()
    def clean(self, plan: Plan) -> Tensor:
        """Clips as planned; float32, shape = (n_clips, n_samples of the longest), silent where nothing is said."""
        clips, width = len(plan.samples), int(plan.samples.max())
        canvas = torch.zeros(clips, width, device=self._device)
        if not len(plan.source):
            return canvas
        length = plan.length.to(self._device)
        piece = torch.repeat_interleave(torch.arange(len(length), device=self._device), length)
        index = torch.arange(len(piece), device=self._device) - (length.cumsum(0) - length)[piece]
        exact = index * plan.speed.to(self._device, torch.float64)[piece]  # linear interpolation between samples
        whole = exact.floor().long()
        part = (exact - whole).float()
        source = plan.source.to(self._device)[piece] + whole
        value = self._samples[source].float() * (1 - part) + self._samples[source + 1].float() * part
        place = plan.place.to(self._device)[piece] + index
        inside = place < width  # a last word may outlast its clip by some samples
        rows = plan.row.to(self._device)[piece]
        gain = plan.gain.to(self._device)[piece] / 32768
        canvas[rows[inside], place[inside]] = (value * gain)[inside]
        return canvas

    @torch.no_grad()
    def distorted(self, clean: Tensor, plan: Plan, choices: Distortion, generator: torch.Generator) -> Tensor:
        """What a microphone and a line make of clips.

        Args:
            clean: shape = (n_clips, n_samples).
            generator: on the same device; all chance is from it.

        Returns:
            The same shape, within [-1, 1], zero behind each clip's samples.
        """
        clips, width = clean.shape
        samples = plan.samples.to(self._device)
        own = torch.arange(width, device=self._device) < samples[:, None]
        spoken = torch.zeros(clips, dtype=torch.bool, device=self._device)
        spoken[plan.row.to(self._device)] = True

        def chance(*shape: int) -> Tensor:
            return torch.rand(*(shape or (clips,)), generator=generator, device=self._device)

        sound = self._filtered(clean, choices, chance(), chance(8, clips), generator)
        peak = sound.abs().amax(1, keepdim=True).clamp_min(1e-4)
        sound = sound / peak * 10 ** (-25 * chance()[:, None] / 20) * spoken[:, None]
        level = ((sound**2).sum(1) / samples).sqrt()

        noise = self._noise(clips, width, generator)
        ratio = 3 + 30 * chance()  # dB
        loud = torch.where(spoken, level * 10 ** (-ratio / 20), 10 ** (-(5 + 75 * chance()) / 20))
        noisy = (chance() < choices.noise) | (~spoken & (chance() < 0.9))
        result = sound + noise * torch.where(noisy, loud, 0.0)[:, None]

        other = torch.roll(sound, 1, 0)
        other = other / (other**2).mean(1, keepdim=True).sqrt().clamp_min(1e-4)
        behind = torch.where((chance() < choices.babble) & spoken, level * 10 ** (-(14 + 14 * chance()) / 20), 0.0)
        result = result + other * behind[:, None]

        result = torch.where((chance() < choices.mulaw)[:, None], _companded(result), result)
        limit = torch.where(chance() < choices.clipping, 0.1 + 0.5 * chance(), 1.0) * result.abs().amax(1)
        limit = limit.clamp_max(1.0)[:, None]
        return torch.minimum(torch.maximum(result, -limit), limit) * own

    def _filtered(
        self, clean: Tensor, choices: Distortion, in_room: Tensor, chance: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Rooms, bands and tilts, in one pass through the frequency domain."""
        clips, width = clean.shape
        size = 1 << (width + ROOM_SAMPLES - 1).bit_length()
        spectrum = torch.fft.rfft(clean, size)
        which = torch.randint(len(self._rooms), (clips,), generator=generator, device=self._device)
        direct = torch.zeros(ROOM_SAMPLES, device=self._device)
        direct[0] = 1
        response = torch.where((in_room < choices.rooms)[:, None], self._rooms[which], direct)
        spectrum = spectrum * torch.fft.rfft(response, size)
        frequency = torch.linspace(0, SAMPLE_RATE / 2, spectrum.shape[1], device=self._device)
        telephone = chance[0] < choices.telephone
        banded = ~telephone & (chance[1] < choices.bands)
        high = torch.where(telephone, 3400.0, torch.where(banded, 3300 + 4200 * chance[2], OFF))
        low = torch.where(telephone, 300.0, torch.where(chance[3] < 0.2, 80 + 250 * chance[4], -OFF))
        spectrum = spectrum * torch.sigmoid((high[:, None] - frequency) / 80)
        spectrum = spectrum * torch.sigmoid((frequency - low[:, None]) / 20)
        tilt = torch.where(chance[5] < 0.4, (chance[6] - 0.5) * 1.2, 0.0)
        spectrum = spectrum * ((frequency + 200) / 1000) ** tilt[:, None]
        return torch.fft.irfft(spectrum, size)[:, :width]

    def _noise(self, clips: int, width: int, generator: torch.Generator) -> Tensor:
        """Other stretches of other noises; shape = (clips, width)."""
        which = torch.randint(len(self._noises), (clips, 1), generator=generator, device=self._device)
        length = self._noises.shape[1]
        start = torch.randint(length, (clips, 1), generator=generator, device=self._device)
        places = (start + torch.arange(width, device=self._device)) % length
        return self._noises[which, places].float()


def _companded(sound: Tensor) -> Tensor:
    """Through 8 bits of mu-law (ITU-T G.711) and back."""
    limited = sound.clamp(-1, 1)
    coded = torch.sign(limited) * torch.log1p(255 * limited.abs()) / math.log(256)
    coded = torch.round(coded * 128) / 128
    return torch.sign(coded) * (256 ** coded.abs() - 1) / 255
