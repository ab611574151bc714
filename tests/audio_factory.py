"""Makes audio files in memory, right and wrong ones, with the encoders that come with PyAV."""

import functools
import io
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import soxr
from numpy.typing import NDArray

CLIPS = Path(__file__).parent.parent / "examples" / "audio"
TRANSCRIPTS: dict[str, str] = {
    name: entry["text"] for name, entry in json.loads((CLIPS / "transcripts.json").read_text()).items()
}
RATE = 16_000

Samples = NDArray[np.float32]
"""Mono, shape = (n,), or of several channels, shape = (n_channels, n)."""


@functools.cache
def clip(name: str) -> Samples:
    """A demo clip, 16 kHz mono; not to be written to."""
    with av.open(CLIPS / name) as container:
        samples = np.concatenate([frame.to_ndarray().reshape(-1) for frame in container.decode(audio=0)])
    waveform: Samples = samples.astype(np.float32) / np.float32(32768)
    waveform.setflags(write=False)
    return waveform


def sine(seconds: float = 1.0, *, rate: int = RATE, frequency: float = 440.0, amplitude: float = 0.5) -> Samples:
    time = np.arange(round(seconds * rate)) / rate
    return (amplitude * np.sin(2 * np.pi * frequency * time)).astype(np.float32)


def silence(seconds: float = 1.0, *, rate: int = RATE) -> Samples:
    return np.zeros(round(seconds * rate), np.float32)


def noise(seconds: float, decibels: float, *, rate: int = RATE, seed: int = 0) -> Samples:
    """White noise of the given level in dBFS."""
    scale = 10 ** (decibels / 20)
    return np.random.default_rng(seed).normal(0, scale, round(seconds * rate)).astype(np.float32)


def resample(samples: Samples, to_rate: int, from_rate: int = RATE) -> Samples:
    resampled: Samples = soxr.resample(samples.T, from_rate, to_rate).T.astype(np.float32)
    return resampled


@dataclass(frozen=True, slots=True)
class Format:
    """How to make one kind of file: container, encoder, their options, and a sample rate that the encoder takes."""

    container: str
    codec: str
    rate: int = RATE
    layout: str = "mono"
    bit_rate: int = 64_000
    codec_options: Mapping[str, str] = field(default_factory=dict)
    container_options: Mapping[str, str] = field(default_factory=dict)
    film: bool = False
    pipe: bool = False


# Every format that is served, by the name it is advertised under, and variants of some.
FORMATS: dict[str, Format] = {
    "wav": Format("wav", "pcm_s16le"),
    "flac": Format("flac", "flac"),
    "mp3": Format("mp3", "libmp3lame"),
    "ogg": Format("ogg", "vorbis", 44_100, "stereo", 128_000, {"strict": "experimental"}),
    "opus": Format("opus", "libopus", 48_000),
    "m4a": Format("ipod", "aac"),
    "mp4": Format("mp4", "aac", 48_000, "stereo", 128_000, film=True),
    "webm": Format("webm", "libopus", 48_000),
    "aac": Format("adts", "aac"),
    "amr": Format("amr", "libopencore_amrnb", 8_000, bit_rate=12_200),
    "wma": Format("asf", "wmav2", 44_100, "stereo", 128_000),
    "aiff": Format("aiff", "pcm_s16be"),
    "caf": Format("caf", "pcm_s16le"),
    "au": Format("au", "pcm_s16be"),
}
VARIANTS: dict[str, Format] = {
    "wav 8-bit": Format("wav", "pcm_u8"),
    "wav 24-bit 44.1 kHz": Format("wav", "pcm_s24le", 44_100),
    "wav 32-bit": Format("wav", "pcm_s32le", 48_000, "stereo"),
    "wav float": Format("wav", "pcm_f32le"),
    "wav double": Format("wav", "pcm_f64le"),
    "wav 64-bit": Format("wav", "pcm_s64le"),
    "wav mu-law": Format("wav", "pcm_mulaw", 8_000),
    "wav A-law stereo": Format("wav", "pcm_alaw", 8_000, "stereo"),
    "wav ADPCM": Format("wav", "adpcm_ima_wav", 22_050),
    "wav 4 kHz": Format("wav", "pcm_s16le", 4_000),
    "wav 192 kHz": Format("wav", "pcm_s16le", 192_000),
    "wav 5.1": Format("wav", "pcm_s16le", 48_000, "5.1"),
    "wav to a pipe": Format("wav", "pcm_s16le", pipe=True),
    "w64": Format("w64", "pcm_s16le"),
    "wav RF64": Format("wav", "pcm_s16le", container_options={"rf64": "always"}),
    "flac 7.1": Format("flac", "flac", layout="7.1"),
    "m4a ALAC": Format("ipod", "alac"),
    "mp4 fragmented, to a pipe": Format(
        "mp4", "aac", 44_100, film=True, pipe=True, container_options={"movflags": "frag_keyframe+empty_moov"}
    ),
    "mov": Format("mov", "pcm_s16le"),
    "3gp": Format("3gp", "libopencore_amrnb", 8_000, bit_rate=12_200),
    "mkv": Format("matroska", "aac", film=True),
    "mka": Format("matroska", "pcm_s16le"),
    "webm to a pipe": Format("webm", "libopus", 48_000, pipe=True),
    "webm with short clusters": Format(
        "webm", "libopus", 48_000, pipe=True, container_options={"cluster_time_limit": "100"}
    ),
    "aiff 8 kHz": Format("aiff", "pcm_s16be", 8_000),
    "caf ALAC": Format("caf", "alac"),
    "mp3 stereo": Format("mp3", "libmp3lame", 48_000, "stereo", 128_000),
}


class _Pipe:
    """A file that can only be written on."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def getvalue(self) -> bytes:
        return b"".join(self._parts)


def encode(samples: Samples, to: Format | str, *, from_rate: int = RATE) -> bytes:
    """Encode mono or multi-channel samples; mono ones become all channels of the format's layout."""
    to = (FORMATS | VARIANTS)[to] if isinstance(to, str) else to
    file = _Pipe() if to.pipe else io.BytesIO()
    with av.open(file, "w", format=to.container, container_options=dict(to.container_options)) as container:
        film = _add_film(container) if to.film else None
        stream = container.add_stream(to.codec, rate=to.rate, options=dict(to.codec_options), layout=to.layout)
        assert isinstance(stream, av.AudioStream)
        stream.bit_rate = to.bit_rate
        n_channels = stream.layout.nb_channels
        wide = np.broadcast_to(samples, (n_channels, samples.shape[-1]))
        wide = resample(wide, to.rate, from_rate) if to.rate != from_rate else wide
        frame = av.AudioFrame.from_ndarray(wide.T.reshape(1, -1), "flt", to.layout)
        frame.sample_rate = to.rate
        frame.pts, frame.time_base = 0, Fraction(1, to.rate)
        stream.codec_context.open()
        resampler = av.AudioResampler(stream.format, to.layout, to.rate, stream.codec_context.frame_size or 4096)
        for part in (*resampler.resample(frame), *resampler.resample(None), None):
            container.mux(stream.encode(part))
        if film is not None:
            seconds = samples.shape[-1] / from_rate
            _shoot(container, film, seconds)
    return file.getvalue()


def film(seconds: float = 1.0) -> bytes:
    """An MP4 film of a test picture, without sound."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        _shoot(container, _add_film(container), seconds)
    return file.getvalue()


def _add_film(container: av.container.OutputContainer) -> av.VideoStream:
    stream = container.add_stream("mpeg4", rate=5, width=64, height=48, pix_fmt="yuv420p")
    assert isinstance(stream, av.VideoStream)
    return stream


def _shoot(container: av.container.OutputContainer, stream: av.VideoStream, seconds: float) -> None:
    for index in range(max(1, round(seconds * 5))):
        picture = np.full((48, 64, 3), index % 256, np.uint8)
        container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
    container.mux(stream.encode(None))


def pcm16(samples: Samples) -> bytes:
    """Little-endian 16-bit samples, channels interleaved."""
    return (np.clip(samples, -1, 1) * 32767).round().astype("<i2").T.tobytes()


def wav(
    data: bytes,
    *,
    rate: int = RATE,
    channels: int = 1,
    bits: int = 16,
    tag: int = 1,
    riff_size: int | None = None,
    data_size: int | None = None,
    before_fmt: bytes = b"",
    before_data: bytes = b"",
    extensible: bool = False,
) -> bytes:
    """A WAV file by hand, so that any of its fields can lie."""
    block = channels * bits // 8
    fmt = struct.pack("<HHIIHH", 0xFFFE if extensible else tag, channels, rate, (rate * block) % 2**32, block, bits)
    if extensible:
        guid = struct.pack("<H", tag) + bytes.fromhex("000000001000800000aa00389b71")
        fmt += struct.pack("<HHI", 22, bits, (1 << channels) - 1) + guid
    body = before_fmt + chunk(b"fmt ", fmt) + before_data
    body += b"data" + struct.pack("<I", len(data) if data_size is None else data_size) + data
    return b"RIFF" + struct.pack("<I", len(body) + 4 if riff_size is None else riff_size) + b"WAVE" + body


def chunk(name: bytes, content: bytes) -> bytes:
    """A RIFF chunk."""
    return name + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)


# The first bytes of every served container, to grow garbage on.
MAGICS: tuple[bytes, ...] = (
    b"RIFF\x24\x00\x00\x80WAVE",
    b"RIFF\x24\x00\x00\x80WAVEfmt \x10\x00\x00\x00\x01\x00",
    b"fLaC",
    b"fLaC\x00\x00\x00\x22",
    b"OggS\x00\x02",
    b"ID3\x04\x00\x00\x00\x00\x00\x00",
    b"\xff\xfb\x90\x00",
    b"\xff\xf1\x50\x80",
    b"\x00\x00\x00\x20ftypM4A ",
    b"\x00\x00\x00\x20ftypisom",
    b"\x1aE\xdf\xa3",
    b"\x1aE\xdf\xa3\x9fB\x86\x81\x01B\xf7\x81\x01",
    b"#!AMR\n",
    b"#!AMR-WB\n",
    bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c"),
    b"FORM\x00\x00\x10\x00AIFF",
    b"caff\x00\x01\x00\x00",
    b".snd\x00\x00\x00\x20",
)


def garbage(n_files: int = 200, *, seed: int = 0) -> list[tuple[str, bytes]]:
    """Broken files, named: random bytes behind each magic number, and real files cut at every power of two."""
    random = np.random.default_rng(seed)
    files = [
        (f"{size} random bytes behind {magic[:12]!r}", magic + random.bytes(size))
        for size in (100, 3_000, 60_000)
        for magic in MAGICS
    ]
    second = sine(1.0)
    cuts: list[tuple[str, bytes]] = []
    for name in FORMATS:
        whole = encode(second, name)
        cuts += [(f"{name} cut at {1 << power}", whole[: 1 << power]) for power in range(len(whole).bit_length())]
        # One byte in fifty replaced, header included.
        struck = np.frombuffer(whole, np.uint8).copy()
        places = random.integers(0, len(struck), max(1, len(struck) // 50))
        struck[places] = random.integers(0, 256, len(places))
        files.append((f"{name} with damage", struck.tobytes()))
    chosen: Sequence[int] = random.permutation(len(cuts))[: max(0, n_files - len(files))].tolist()
    return files + [cuts[index] for index in sorted(chosen)]
