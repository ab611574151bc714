"""Files whose writers did not know the length: sizes of 0, of -1, or of the largest number there is, in any container.

That is what FFmpeg, SoX and recorders leave when they write to a pipe or are killed; and tags put before a file.
"""

import struct

import numpy as np
import pytest

from engine.interface import SAMPLE_RATE
from tests import audio_factory as factory
from tests.app.transcription.test_audio import decode_all
from tests.hostile.layouts import layout

SINE = factory.sine(1.0)


def with_number(data: bytes, name: bytes, width: int, value: int, *, behind: int, little: bool = False) -> bytes:
    """The file with another number so many bytes behind the begin of `name`."""
    at = data.index(name) + behind
    number = (value % (1 << 8 * width)).to_bytes(width, "little" if little else "big")
    return data[:at] + number + data[at + width :]


def aiff(size: int, frames: int) -> bytes:
    data = factory.encode(SINE, "aiff")
    data = with_number(data, b"SSND", 4, size, behind=4)
    data = with_number(data, b"COMM", 4, frames, behind=10)
    return with_number(data, b"FORM", 4, size, behind=4)


def au(size: int) -> bytes:
    return with_number(factory.encode(SINE, "au"), b".snd", 4, size, behind=8)


def w64(size: int) -> bytes:
    data = factory.encode(SINE, "w64")
    return with_number(
        with_number(data, b"data", 8, size, behind=16, little=True), b"riff", 8, size, behind=16, little=True
    )


def rf64(size: int) -> bytes:
    """The sizes of 64 bits, which count, are those of a writer that did not come back to them."""
    data = factory.encode(SINE, "wav RF64")
    for behind in (8, 16, 24):  # of the file, of the data, number of samples
        data = with_number(data, b"ds64", 8, size, behind=behind, little=True)
    return data


def flac_of_unknown_length() -> bytes:
    data = bytearray(factory.encode(SINE, "flac"))
    data[21] &= 0xF0  # 36 bits of STREAMINFO: the number of samples; then 16 bytes of MD5
    data[22:42] = bytes(20)
    return bytes(data)


def mp4_up_to_the_end() -> bytes:
    flags = {"movflags": "frag_keyframe+empty_moov+skip_trailer"}
    data = factory.encode(SINE, factory.Format("mp4", "aac", pipe=True, container_options=flags))
    assert data.count(b"mdat") == 1
    return with_number(data, b"mdat", 4, 0, behind=-4)


def id3(n_bytes: int) -> bytes:
    """A tag with a picture of so many bytes."""
    frame = b"APIC" + struct.pack(">I", n_bytes) + b"\0\0" + b"\0image/jpeg\0\3\0"
    frame += b"\xff\xd8\xff\xe0" + bytes(n_bytes - 18)
    size = len(frame)
    return b"ID3\3\0\0" + bytes(size >> shift & 0x7F for shift in (21, 14, 7, 0)) + frame


def ogg_without_its_end() -> bytes:
    """The last page, which says that it is the last, is missing."""
    data = factory.encode(factory.sine(1.5), "opus")
    *_, (start, _) = layout("opus", data).units
    return data[:start]


EXACT = {
    "au, -1": au(-1),
    "au, 0": au(0),
    "au, largest": au(0x7FFFFFFF),
    "aiff, 0": aiff(0, 0),
    "aiff, -1": aiff(-1, -1),
    "aiff, as SoX": aiff(0x7F000008, 0x3F800000),
    "w64, 0": w64(0),
    "w64, -1": w64(-1),
    "w64, largest": w64(2**63 - 1),
    "RF64, 0": rf64(0),
    "RF64, -1": rf64(-1),
    "caf, -1": with_number(factory.encode(SINE, "caf"), b"data", 8, -1, behind=4),
    "flac": flac_of_unknown_length(),
    "flac behind ID3": id3(1000) + factory.encode(SINE, "flac"),
}
ABOUT = {
    "mp4": mp4_up_to_the_end(),
    "mp3 behind a large picture": id3(3_000_000) + factory.encode(SINE, "mp3"),
    "mp3 behind noise": bytes(range(1, 128)) * 8 + factory.encode(SINE, "mp3"),
    "aac behind ID3": id3(1000) + factory.encode(SINE, "aac"),
    "opus without its end": ogg_without_its_end(),
}


@pytest.mark.parametrize("name", EXACT)
def test_every_sample_is_there(name: str) -> None:
    decoded, _ = decode_all(EXACT[name])
    assert len(decoded) == SAMPLE_RATE
    assert np.abs(decoded - SINE).max() < 1e-3


@pytest.mark.parametrize("name", ABOUT)
def test_the_sound_is_there(name: str) -> None:
    decoded, _ = decode_all(ABOUT[name])
    assert len(decoded) / SAMPLE_RATE == pytest.approx(1.0, abs=0.3)
    assert decoded.std() == pytest.approx(SINE.std(), rel=0.2)
