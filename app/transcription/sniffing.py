"""What bytes look like, by their first kilobytes: for messages, and to keep other kinds of files from the decoder.

Sources: the magic numbers of file(1), RFC 4867 (AMR), RFC 9559 (Matroska), ISO/IEC 14496-12 (boxes).
"""

import re
from dataclasses import dataclass

HEAD_BYTES = 4096  # enough for `describe`

_EBML = b"\x1aE\xdf\xa3"
_ASF = bytes.fromhex("3026b2758e66cf11")

# (offset, bytes, name), the first match counts
_AUDIO = (
    (0, b"RIFF", "RIFF"),  # WAVE is told from other RIFF files below
    (0, b"RF64", "a WAV file"),
    (0, b"riff", "a Wave64 file"),
    (0, b"fLaC", "a FLAC file"),
    (0, b"OggS", "an Ogg file"),
    (4, b"ftyp", "an MP4 file"),
    (4, b"moov", "a QuickTime file"),
    (4, b"moof", "an MP4 fragment"),
    (4, b"mdat", "an MP4 file"),
    (0, _EBML, "a WebM or Matroska file"),
    (0, b"#!AMR", "an AMR file"),
    (0, _ASF, "a WMA file"),
    (0, b"FORM", "an AIFF file"),
    (0, b"caff", "a Core Audio file"),
    (0, b".snd", "an AU file"),
    (0, b"ID3", "an MP3 file"),
)

_OTHER = (
    (0, b"RIFX", "a big-endian WAV file (RIFX)"),  # FFmpeg reads its header, and its samples the wrong way round
    (0, b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"GIF8", "a GIF image"),
    (0, b"II*\x00", "a TIFF image"),
    (0, b"MM\x00*", "a TIFF image"),
    (0, b"8BPS", "a Photoshop image"),
    (0, b"%PDF-", "a PDF document"),
    (0, b"{\\rtf", "an RTF document"),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a Microsoft Office document"),
    (0, b"PK\x03\x04", "a zip archive"),  # docx, xlsx, epub and jar are zip archives too
    (0, b"PK\x05\x06", "a zip archive"),
    (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"BZh", "a bzip2 archive"),
    (0, b"\xfd7zXZ\x00", "an xz archive"),
    (0, b"(\xb5/\xfd", "a zstd archive"),
    (0, b"7z\xbc\xaf'\x1c", "a 7-Zip archive"),
    (0, b"Rar!\x1a\x07", "a RAR archive"),
    (257, b"ustar", "a tar archive"),
    (0, b"\x7fELF", "a program"),
    (0, b"\xcf\xfa\xed\xfe", "a program"),
    (0, b"\x00asm", "a WebAssembly program"),
    (0, b"SQLite format 3\x00", "a SQLite database"),
    (0, b"MThd", "a MIDI file: notes, not sound"),
    (0, b"\x93NUMPY", "a NumPy array"),
    (0, b"FLV\x01", "a Flash video"),
    (0, b"\x00\x00\x01\xba", "an MPEG program stream"),
)

_RIFF_KINDS = {b"AVI ": "an AVI film", b"WEBP": "a WebP image"}
_IMAGE_BRANDS = (b"heic", b"heix", b"mif1", b"avif", b"avis")
_MARKUP = (
    (re.compile(rb"<!doctype html|<html|<head|<body", re.IGNORECASE), "an HTML page"),
    (re.compile(rb"<svg", re.IGNORECASE), "an SVG image"),
    (re.compile(rb"<\?xml|<[a-z][\w:-]*[ >]", re.IGNORECASE), "an XML document"),
    (re.compile(rb"#EXTM3U|\[playlist\]|ffconcat "), "a playlist: send the sound itself"),
    (re.compile(rb"data:[a-z]+/[\w.+-]+[;,]|UklGR|T2dnUw|SUQz|GkXfo|ZkxhQ"), "base64 text: send the bytes themselves"),
    (re.compile(rb"[{\[]\s*([\"{\[\d\]}-]|true|false|null)"), "a JSON document"),
)
_TEXT = re.compile(rb"[\x09\x0a\x0c\x0d\x1b\x20-\x7e\x80-\xff]*")


@dataclass(frozen=True, slots=True)
class Looks:
    """What bytes look like.

    Attributes:
        name: with its article, such as "a PNG image".
        may_be_audio: whether the decoder should try it.
    """

    name: str
    may_be_audio: bool


def describe(head: bytes) -> Looks | None:
    """Tell what a file is by its first HEAD_BYTES bytes (all, if it has fewer), None if nothing is known about them."""
    name = _match(_AUDIO, head)
    if name == "RIFF":
        kind = head[8:12]
        return (
            Looks("a WAV file", True)
            if b"WAVE".startswith(kind)
            else Looks(_RIFF_KINDS.get(kind, "a RIFF file"), False)
        )
    if name is not None:
        if head[4:8] == b"ftyp" and head[8:12] in _IMAGE_BRANDS:
            return Looks("a HEIF image", False)
        return Looks(name, True)
    name = _match(_OTHER, head) or _text(head)
    if name is not None:
        return Looks(name, False)
    if head and not any(head):
        return Looks("a run of zero bytes", False)
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0:
        return Looks("an MP3 or AAC stream", True)
    return None


def _match(table: tuple[tuple[int, bytes, str], ...], head: bytes) -> str | None:
    return next((name for offset, magic, name in table if head.startswith(magic, offset)), None)


def _text(head: bytes) -> str | None:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) and len(head) > 3 and head[2:].count(0) * 3 > len(head):
        return "plain text"
    body = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not body or not _TEXT.fullmatch(body):
        return None
    try:
        body.decode()
    except UnicodeDecodeError as error:
        # A character may be cut in two at the end of the head. Latin-1 text has few bytes above 0x7F.
        if error.start < len(body) - 4 and sum(byte > 0x7F for byte in body) * 4 > len(body):
            return None
    return next((name for pattern, name in _MARKUP if pattern.match(body)), "plain text")
