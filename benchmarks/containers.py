"""Audio files in memory: what people upload."""

import io
import wave
from typing import Literal, get_args

import av
import numpy as np
from numpy.typing import NDArray

from engine.interface import SAMPLE_RATE

Container = Literal["wav", "mp3", "opus"]
CONTAINERS: tuple[Container, ...] = get_args(Container)
MEDIA_TYPES: dict[Container, str] = {"wav": "audio/wav", "mp3": "audio/mpeg", "opus": "audio/ogg"}

_ENCODERS: dict[Container, tuple[str, str]] = {"mp3": ("mp3", "libmp3lame"), "opus": ("ogg", "libopus")}
_BITS_PER_SECOND = 32_000  # as voice notes and podcasts of speech have
_FRAME = SAMPLE_RATE  # samples handed to the encoder at a time; it cuts its own frames


def encode(samples: NDArray[np.int16], container: Container) -> bytes:
    """Write samples, shape = (n,), 16 kHz mono, as a whole file."""
    file = io.BytesIO()
    if container == "wav":
        with wave.open(file, "wb") as writer:
            writer.setnchannels(1)
            writer.setsampwidth(2)
            writer.setframerate(SAMPLE_RATE)
            writer.writeframes(samples.astype("<i2").tobytes())
        return file.getvalue()
    form, codec = _ENCODERS[container]
    with av.open(file, "w", format=form) as output:
        stream = output.add_stream(codec, rate=SAMPLE_RATE, layout="mono")
        assert isinstance(stream, av.AudioStream)
        stream.bit_rate = _BITS_PER_SECOND
        for start in range(0, len(samples), _FRAME):
            part = np.ascontiguousarray(samples[start : start + _FRAME]).reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(part, format="s16", layout="mono")
            frame.sample_rate, frame.pts = SAMPLE_RATE, start
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return file.getvalue()
