"""Where the lengths, counts and offsets of each container are: enough of every format to break it in its own terms.

A layout is read from a sound file of our own making, so it may trust what it reads; what it is used for need not.
"""

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a file: `width` bytes from `at` on."""

    at: int
    width: int
    order: Literal["little", "big"]

    def read(self, data: bytes | bytearray) -> int:
        return int.from_bytes(data[self.at : self.at + self.width], self.order)

    def write(self, data: bytearray, value: int) -> None:
        wrapped = value % (1 << 8 * self.width)
        data[self.at : self.at + self.width] = wrapped.to_bytes(self.width, self.order)


@dataclass(frozen=True, slots=True)
class Layout:
    """What a file consists of.

    Attributes:
        numbers: lengths, counts, offsets and parameters.
        units: boxes, chunks, pages or frames as (start, end), those inside of others too.
    """

    numbers: tuple[Number, ...]
    units: tuple[tuple[int, int], ...]


Parts = Iterator[Number | tuple[int, int]]


def _fields(at: int, widths: str, order: Literal["little", "big"]) -> Iterator[Number]:
    """Numbers one after the other, each of as many bytes as its digit says; a space skips a byte."""
    for width in widths:
        if width != " ":
            yield Number(at, int(width), order)
        at += 1 if width == " " else int(width)


def _riff(data: bytes, order: Literal["little", "big"] = "little") -> Parts:
    """RIFF (EA IFF 85): name, 4 bytes of size, content padded to even."""
    yield Number(4, 4, order)
    at = 12
    while at + 8 <= len(data):
        size = Number(at + 4, 4, order)
        end = at + 8 + size.read(data)
        yield size
        yield at, min(len(data), end + end % 2)
        if data[at : at + 4] == b"fmt ":
            yield from _fields(at + 8, "224422", "little")
        elif data[at : at + 4] == b"COMM":  # channels, frames, bits, rate as an 80-bit float
            yield from _fields(at + 8, "24228", "big")
        elif data[at : at + 4] == b"ds64":
            yield from _fields(at + 8, "888", "little")
        elif data[at : at + 4] == b"SSND":
            yield from _fields(at + 8, "44", "big")
        at = end + end % 2


def _w64(data: bytes) -> Parts:
    """Sony Wave64: names of 16 bytes, sizes of 8 that include their own header, aligned to 8."""
    yield Number(16, 8, "little")
    at = 40
    while at + 24 <= len(data):
        size = Number(at + 16, 8, "little")
        end = at + max(24, size.read(data))
        yield size
        yield at, min(len(data), end)
        if data[at : at + 4] == b"fmt ":
            yield from _fields(at + 24, "224422", "little")
        at = end + -end % 8


def _caf(data: bytes) -> Parts:
    """Core Audio: name, 8 bytes of size, -1 for up to the end."""
    at = 8
    while at + 12 <= len(data):
        size = Number(at + 4, 8, "big")
        end = min(len(data), at + 12 + size.read(data))
        yield size
        yield at, end
        if (
            data[at : at + 4] == b"desc"
        ):  # rate as a 64-bit float, codec, flags, bytes and frames a packet, channels, bits
            yield from _fields(at + 12, "8444444", "big")
        elif data[at : at + 4] == b"pakt":
            yield from _fields(at + 12, "8844", "big")
        at = end


def _au(data: bytes) -> Parts:
    """Offset of the data, its size, encoding, rate, channels."""
    yield from _fields(4, "44444", "big")
    yield 24, len(data)


def _flac(data: bytes) -> Parts:
    """Metadata blocks with 3 bytes of size; the first has block and frame sizes, rate, channels and length in bits."""
    at, last = 4, False
    while not last:
        last = data[at] >= 0x80
        size = Number(at + 1, 3, "big")
        end = at + 4 + size.read(data)
        yield from (Number(at, 1, "big"), size)
        yield at, end
        if at == 4:
            yield from _fields(at + 4, "2233233", "big")
        at = end
    yield from _synced(data, re.compile(rb"\xff[\xf8\xf9]"), at, header=6)


def _synced(data: bytes, mark: re.Pattern[bytes], begin: int, header: int) -> Parts:
    """Frames that begin with a mark; each byte of their headers counts. Not all that look like a frame are one."""
    starts = [found.start() for found in mark.finditer(data, begin)]
    for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
        yield start, end
        yield from _fields(start, "1" * header, "big")


def _ogg(data: bytes) -> Parts:
    """Pages (RFC 3533): version, flags, granule, serial, sequence, checksum, number of segments, their sizes."""
    at = 0
    while data[at : at + 4] == b"OggS":
        n_segments = data[at + 26]
        body = at + 27 + n_segments
        end = body + sum(data[at + 27 : body])
        yield at, end
        yield from _fields(at + 4, "1184441" + "1" * min(n_segments, 4), "little")
        if at == 0:  # OpusHead or the identification of Vorbis
            yield from _fields(body + 8, "112421" if data[body : body + 8] == b"OpusHead" else "41444", "little")
        at = end


_BOXES: Final = frozenset(
    {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"dinf", b"moof", b"traf", b"mvex", b"udta"}
)


def _mp4(data: bytes, at: int = 0, end: int | None = None) -> Parts:
    """Boxes (ISO/IEC 14496-12): 4 bytes of size, name; of tables the count and the first entries."""
    end = len(data) if end is None else end
    while at + 8 <= end:
        size = Number(at, 4, "big")
        stop = min(end, at + max(8, size.read(data)))
        name = data[at + 4 : at + 8]
        yield size
        yield at, stop
        if name in _BOXES:
            yield from _mp4(data, at + 8, stop)
        elif name != b"mdat":
            yield from _fields(at + 8, "4" * min(6, (stop - at - 8) // 4), "big")
        if name == b"stsd" and stop - at > 44:  # the first entry: its size, channels, bits, rate
            yield Number(at + 16, 4, "big")
            yield from _fields(at + 40, "22  4", "big")
            yield from _fields(at + 52, "1" * min(24, stop - at - 52), "big")  # esds: descriptors of one byte each
        at = stop


_EBML: Final = frozenset(
    {
        b"\x18\x53\x80\x67",
        b"\x16\x54\xae\x6b",
        b"\xae",
        b"\xe1",
        b"\x1f\x43\xb6\x75",
        b"\x1a\x45\xdf\xa3",
        b"\x11\x4d\x9b\x74",
    }
)


def _matroska(data: bytes, at: int = 0, end: int | None = None) -> Parts:
    """Elements (RFC 8794): an id, a size of 1 to 8 bytes whose first bits tell how many, content."""
    end = len(data) if end is None else end
    while at + 2 <= end and data[at]:
        n_id = 9 - data[at].bit_length()
        name, size_at = data[at : at + n_id], at + n_id
        if size_at >= end or not data[size_at]:
            return
        n_size = 9 - data[size_at].bit_length()
        body = size_at + n_size
        size = int.from_bytes(data[size_at:body], "big") & (1 << 7 * n_size) - 1
        stop = end if size == (1 << 7 * n_size) - 1 else min(end, body + size)
        yield Number(size_at, n_size, "big")
        yield at, stop
        if name in _EBML:
            yield from _matroska(data, body, stop)
        elif 0 < stop - body <= 8:
            yield Number(body, stop - body, "big")
        else:
            yield from _fields(body, "121"[: stop - body], "big")  # of a block: track, time, flags
        at = stop


def _asf(data: bytes) -> Parts:
    """Objects: a name of 16 bytes, a size of 8; the header holds others, then come packets of fixed size."""
    at, end = 0, len(data)
    while at + 24 <= end:
        size = Number(at + 16, 8, "little")
        stop = min(end, at + max(24, size.read(data)))
        yield size
        yield at, stop
        if at == 0:
            yield Number(24, 4, "little")
            at = 30
            continue
        yield from _fields(at + 24, "4" * min(16, (stop - at - 24) // 4), "little")
        at = stop
    for packet in re.finditer(rb"\x82\x00\x00", data):
        yield from _fields(packet.start(), "111112", "little")


def _mp3(data: bytes) -> Parts:
    if data[:3] == b"ID3":
        yield from _fields(3, "1111111", "big")
        yield 0, 10
    yield from _synced(data, re.compile(rb"\xff[\xe2-\xff]"), 0, header=4)


def _adts(data: bytes) -> Parts:
    yield from _synced(data, re.compile(rb"\xff[\xf0\xf1\xf8\xf9]"), 0, header=7)


def _amr(data: bytes) -> Parts:
    """Frames of narrow band whose size is told by four bits of their first byte (RFC 4867, 5.3)."""
    sizes = (13, 14, 16, 18, 20, 21, 27, 32, 6, 1, 1, 1, 1, 1, 1, 1)
    at = 6
    while at < len(data):
        end = at + sizes[data[at] >> 3 & 15]
        yield at, min(end, len(data))
        yield Number(at, 1, "big")
        at = end


READERS: dict[str, Callable[[bytes], Parts]] = {
    "wav": _riff,
    "flac": _flac,
    "mp3": _mp3,
    "ogg": _ogg,
    "opus": _ogg,
    "m4a": _mp4,
    "mp4": _mp4,
    "webm": _matroska,
    "aac": _adts,
    "amr": _amr,
    "wma": _asf,
    "aiff": lambda data: _riff(data, "big"),
    "caf": _caf,
    "au": _au,
    # Variants of these, which take other ways through FFmpeg.
    "w64": _w64,
    "wav RF64": _riff,
    "wav ADPCM": _riff,
    "wav float": _riff,
    "m4a ALAC": _mp4,
    "mp4 fragmented, to a pipe": _mp4,
    "mov": _mp4,
    "3gp": _mp4,
    "mkv": _matroska,
    "webm with short clusters": _matroska,
    "caf ALAC": _caf,
}
"""By the name of a format in `tests.audio_factory`."""


def layout(name: str, data: bytes) -> Layout:
    """Read a file of a format of `READERS`."""
    parts = list(READERS[name](data))
    numbers = (part for part in parts if isinstance(part, Number) and part.at + part.width <= len(data))
    units = (part for part in parts if not isinstance(part, Number) and part[0] < part[1])
    return Layout(tuple(numbers), tuple(units))


def seal_ogg(data: bytearray) -> None:
    """Give each page the checksum of what it holds now, so that FFmpeg reads on."""
    at = 0
    while (at := data.find(b"OggS", at)) >= 0 and at + 27 <= len(data):
        body = at + 27 + data[at + 26]
        end = body + sum(data[at + 27 : body])
        struct.pack_into("<I", data, at + 22, 0)
        struct.pack_into("<I", data, at + 22, _crc(bytes(data[at:end])))
        at = max(end, at + 27)


def _crc(page: bytes) -> int:
    """CRC-32 of Ogg: polynomial 0x04c11db7, not reflected, without a final xor."""
    crc = 0
    for byte in page:
        crc = (crc << 8 & 0xFFFFFFFF) ^ _TABLE[crc >> 24 ^ byte]
    return crc


def _table_entry(index: int) -> int:
    crc = index << 24
    for _ in range(8):
        crc = crc << 1 ^ (0x04C11DB7 if crc & 1 << 31 else 0)
    return crc & 0xFFFFFFFF


_TABLE: Final = tuple(map(_table_entry, range(256)))
