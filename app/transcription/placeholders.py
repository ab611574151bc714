"""Sizes that a writer did not know yet, and that FFmpeg takes at their word: 0, -1 or the largest number there is.

Who writes to a pipe cannot come back to fill them in. FFmpeg reads WAV and CAF up to the end of the file then; in other
formats it finds no sound, so it is shown what is there. A size that is merely wrong is left: the file is damaged.
"""

import io
from collections.abc import Iterator
from typing import BinaryIO, Final, Literal

_UNKNOWN: Final = 1 << 62  # at least that: no file is so large
_MOST_CHUNKS: Final = 64  # looked at before the sound
_WAVE64_DATA: Final = b"data\xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a"


def corrections(file: BinaryIO) -> dict[int, bytes]:
    """What FFmpeg shall read in place of what is there, by its offset; leaves the file at its start."""
    n_bytes = file.seek(0, io.SEEK_END)
    file.seek(0)
    head = file.read(16)
    found: dict[int, bytes] = {}
    if head[:4] == b".snd" and head[8:12] == bytes(4):
        found = {8: b"\xff" * 4}  # what the format has for "not known"
    elif head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        found = _aiff(file, n_bytes)
    elif head[:4] in (b"RF64", b"BW64"):
        found = _rf64(file, n_bytes)
    elif head == b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00":
        found = _wave64(file, n_bytes)
    file.seek(0)
    return found


def _aiff(file: BinaryIO, n_bytes: int) -> dict[int, bytes]:
    form: tuple[int, int] | None = None  # where the number of frames is, and the bytes of one
    for name, size, begin in _chunks(file, "big"):
        if name == b"COMM":
            fields = file.read(8)
            channels, bits = int.from_bytes(fields[:2], "big"), int.from_bytes(fields[6:8], "big")
            form = begin + 2, channels * -(-bits // 8)
        elif name == b"SSND" and size in (0, 0xFFFFFFFF):
            there = min(n_bytes - begin, 0xFFFFFFFE)
            frames = {form[0]: ((there - 8) // form[1]).to_bytes(4, "big")} if form and form[1] and there > 8 else {}
            whole = min(n_bytes - 8, 0xFFFFFFFE)
            return {4: whole.to_bytes(4, "big"), begin - 4: there.to_bytes(4, "big"), **frames}
    return {}


def _rf64(file: BinaryIO, n_bytes: int) -> dict[int, bytes]:
    """EBU Tech 3306: the chunk `ds64` has the sizes, of 64 bits, of file and sound, and the number of samples."""
    ds64 = 0
    for name, _, begin in _chunks(file, "little"):
        if name == b"ds64":
            sizes = file.read(16)
            if 0 < int.from_bytes(sizes[8:], "little") < _UNKNOWN:
                return {}
            ds64 = begin
        elif name == b"data" and ds64:
            samples = bytes(8)  # not known, and not needed
            return {ds64: (n_bytes - 8).to_bytes(8, "little") + (n_bytes - begin).to_bytes(8, "little") + samples}
    return {}


def _wave64(file: BinaryIO, n_bytes: int) -> dict[int, bytes]:
    """Names of 16 bytes, sizes of 8 that count their own header, all at multiples of 8."""
    at, found = 40, {16: n_bytes.to_bytes(8, "little")}
    for _ in range(_MOST_CHUNKS):
        file.seek(at)
        header = file.read(24)
        size = int.from_bytes(header[16:], "little")
        if header[:16] == _WAVE64_DATA:
            return found if 24 < size < _UNKNOWN else {**found, at + 16: (n_bytes - at).to_bytes(8, "little")}
        if len(header) < 24 or not 24 <= size < n_bytes:
            break
        at += size + -size % 8
    return {}


def _chunks(file: BinaryIO, order: Literal["little", "big"]) -> Iterator[tuple[bytes, int, int]]:
    """Name, size and begin of the content of the first chunks; the file is there."""
    at = 12
    for _ in range(_MOST_CHUNKS):
        file.seek(at)
        header = file.read(8)
        if len(header) < 8:
            return
        size = int.from_bytes(header[4:], order)
        yield header[:4], size, at + 8
        at += 8 + size + size % 2
