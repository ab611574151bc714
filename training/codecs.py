"""Through a codec and back: what telephones and messengers do to speech, by FFmpeg's own encoders."""

import io
from dataclasses import dataclass

import av
import numpy as np
import soxr

from benchmarks.clips import read_recording
from engine.interface import SAMPLE_RATE
from training.shards import Samples


@dataclass(frozen=True, slots=True)
class Codec:
    """An encoder, a container that takes it, and how they are used.

    Attributes:
        rate: of the samples it is given.
        bit_rate: where it has a choice.
    """

    encoder: str
    container: str
    rate: int
    bit_rate: int | None = None


CODECS: dict[str, Codec] = {
    "mulaw": Codec("pcm_mulaw", "wav", 8_000),  # ITU-T G.711
    "alaw": Codec("pcm_alaw", "wav", 8_000),
    "adpcm": Codec("adpcm_ima_wav", "wav", 8_000),
    "g722": Codec("g722", "g722", 16_000),
    "amr": Codec("libopencore_amrnb", "amr", 8_000, 12_200),  # 3GPP TS 26.071
    "opus-12": Codec("libopus", "ogg", 16_000, 12_000),  # RFC 6716
    "opus-24": Codec("libopus", "ogg", 16_000, 24_000),
    "mp3-24": Codec("libmp3lame", "mp3", 16_000, 24_000),
    "aac-32": Codec("aac", "adts", 16_000, 32_000),
}


def through(samples: Samples, codec: Codec) -> Samples:
    """Encode and decode; the same length, moved back by the delay of the codec where its file does not tell it.

    Args:
        samples: 16 kHz mono, shape = (n,).
    """
    file = io.BytesIO()
    narrow = soxr.resample(samples, SAMPLE_RATE, codec.rate)
    with av.open(file, "w", format=codec.container) as output:
        stream = output.add_stream(codec.encoder, rate=codec.rate, layout="mono")
        assert isinstance(stream, av.AudioStream)
        if codec.bit_rate is not None:
            stream.bit_rate = codec.bit_rate
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(narrow).reshape(1, -1), "s16", "mono")
        frame.sample_rate, frame.pts = codec.rate, 0
        stream.codec_context.open()
        resampler = av.AudioResampler(stream.format, "mono", codec.rate, stream.codec_context.frame_size or 4096)
        for part in (*resampler.resample(frame), *resampler.resample(None), None):
            output.mux(stream.encode(part))
    file.seek(0)
    decoded = read_recording(file, codec.container)
    delay = _delay(samples, decoded)
    aligned: Samples = np.resize(np.pad(decoded[delay:], (0, len(samples))), len(samples))
    return aligned


def _delay(samples: Samples, decoded: Samples) -> int:
    """Where the correlation is largest, from 0 to 0.2 s."""
    most = SAMPLE_RATE // 5
    size = len(samples) + len(decoded)
    spectrum = np.fft.rfft(decoded.astype(np.float64), size) * np.conj(np.fft.rfft(samples.astype(np.float64), size))
    return int(np.argmax(np.fft.irfft(spectrum, size)[:most]))
