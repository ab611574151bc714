"""Synthesizers: each says a sentence with a voice and a manner of chance."""

import io
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import soundfile
import soxr

from benchmarks.clips import demo_clips, read_recording
from benchmarks.packages import PackageError
from engine.interface import SAMPLE_RATE
from training.configuration import Voice
from training.shards import Samples, Spoken

KEPT_SECONDS = 0.08  # of the quiet around an utterance
QUIET = 0.02  # of the peak
SHORTEST_SECONDS, LONGEST_SECONDS = 0.25, 25.0
PROGRAM_SECONDS = 60

ESPEAK_ACCENTS = ("en-us", "en-gb", "en-gb-x-rp", "en-gb-scotland", "en-us-nyc")
ESPEAK_VARIANTS = ("", "+m1", "+m3", "+m7", "+f1", "+f2", "+f3", "+f4")
FLITE_VOICES = ("slt", "rms", "awb")


class Synthesizer(Protocol):
    """Something that speaks."""

    def say(self, text: str, voice: str, chance: random.Random) -> Samples:
        """Speak.

        Args:
            text: one sentence, in words.
            voice: one of `voices`.
            chance: for speed and pitch.

        Returns:
            16 kHz mono, with the quiet of the synthesizer around it.

        Raises:
            RuntimeError: it cannot say that.
        """
        ...

    @property
    def voices(self) -> Sequence[str]:
        """Names of all voices."""
        ...


class Flite:
    """CMU flite's clustergen voices: clear, vocoded."""

    voices = FLITE_VOICES

    def __init__(self) -> None:
        self._program = program("flite")

    def say(self, text: str, voice: str, chance: random.Random) -> Samples:
        """Through a file: flite's wav to a pipe has no length."""
        stretch = f"duration_stretch={chance.uniform(0.85, 1.2):.3f}"
        with tempfile.NamedTemporaryFile(suffix=".wav") as file:
            _call((self._program, "-voice", voice, "--setf", stretch, "-t", text, "-o", file.name))
            return at_16_khz(Path(file.name).read_bytes())


class Espeak:
    """espeak-ng: a formant synthesizer with accents; seasoning, not speech."""

    voices = tuple(accent + variant for accent in ESPEAK_ACCENTS for variant in ESPEAK_VARIANTS)

    def __init__(self) -> None:
        self._program = program("espeak-ng")

    def say(self, text: str, voice: str, chance: random.Random) -> Samples:
        """Words a minute and pitch of chance."""
        manner = ("-s", str(chance.randint(120, 190)), "-p", str(chance.randint(30, 70)))
        with tempfile.NamedTemporaryFile(suffix=".wav") as file:
            _call((self._program, "-v", voice, *manner, "-w", file.name, text))
            return at_16_khz(Path(file.name).read_bytes())


def make(voice: Voice, cache: Path) -> Synthesizer:
    """The synthesizer that a configuration names.

    Raises:
        SystemExit: its program or its package is missing; says what to install.
    """
    if voice.engine == "flite":
        return Flite()
    if voice.engine == "espeak":
        return Espeak()
    from training.kokoro import Kokoro  # onnxruntime, and 90 MB of weights

    try:
        return Kokoro(cache)
    except PackageError as error:
        raise SystemExit(str(error)) from error


def demo_speech() -> Iterator[Spoken]:
    """The synthetic demo clips that fit a batch, with their own words: speech where no synthesizer is installed."""
    for each in demo_clips():
        if each.seconds < LONGEST_SECONDS and "human" not in each.name:
            assert each.spoken is not None
            samples = read_recording(io.BytesIO(each.content))
            yield Spoken(samples=trim(samples), text=each.spoken, voice=f"clip {each.name}", source="demo")


def trim(samples: Samples) -> Samples:
    """Without most of the quiet around the speech; empty where there is nothing else."""
    loud = np.abs(samples.astype(np.int32))
    peak = int(loud.max(initial=0))
    if peak < 200:
        return samples[:0]
    voiced = np.flatnonzero(loud > QUIET * peak)
    kept = round(KEPT_SECONDS * SAMPLE_RATE)
    return samples[max(0, voiced[0] - kept) : voiced[-1] + kept]


def usable(samples: Samples) -> bool:
    """Whether an utterance has a length that training uses."""
    return SHORTEST_SECONDS < len(samples) / SAMPLE_RATE < LONGEST_SECONDS


def at_16_khz(wav: bytes) -> Samples:
    """Decode a wav file and resample it."""
    samples, rate = soundfile.read(io.BytesIO(wav), dtype="float32")
    return as_samples(soxr.resample(samples, rate, SAMPLE_RATE))


def as_samples(waveform: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]") -> Samples:
    """From float in [-1, 1]."""
    samples: Samples = np.round(np.clip(waveform, -1, 1) * 32_000).astype(np.int16)
    return samples


def program(name: str) -> str:
    """Where a program is.

    Raises:
        SystemExit: nowhere; says what to install.
    """
    found = shutil.which(name)
    if found is None:
        raise SystemExit(f"{name} is not installed: apt-get install {name}, or take it out of the configuration")
    return found


def _call(command: tuple[str, ...]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=PROGRAM_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"{command[0]} cannot say {command[-1]!r}: {error}") from error
