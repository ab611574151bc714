"""Telling what bytes look like."""

import pytest

from app.transcription.sniffing import HEAD_BYTES, describe
from tests import audio_factory as factory


@pytest.mark.parametrize("name", [*factory.FORMATS, *factory.VARIANTS])
def test_no_served_format_is_taken_for_something_else(name: str) -> None:
    looks = describe(factory.encode(factory.sine(1.0), name)[:HEAD_BYTES])
    assert looks is None or looks.may_be_audio


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", "a JPEG image"),
        (b"GIF89a" + bytes(30), "a GIF image"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "a WebP image"),
        (b"RIFF\x00\x00\x00\x00AVI LIST", "an AVI film"),
        (b"\x00\x00\x00\x18ftypheic", "a HEIF image"),
        (b"%PDF-1.7\n", "a PDF document"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a Microsoft Office document"),
        (b"\x1f\x8b\x08\x00", "a gzip archive"),
        (bytes(257) + b"ustar\x0000", "a tar archive"),
        (b"\x7fELF\x02\x01\x01", "a program"),
        (b"MThd\x00\x00\x00\x06", "a MIDI file: notes, not sound"),
        (b"<html><body>404</body></html>", "an HTML page"),
        (b"\xef\xbb\xbf<!doctype HTML>", "an HTML page"),
        (b'<?xml version="1.0"?><x/>', "an XML document"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "an SVG image"),
        (b'{"error": "not found"}', "a JSON document"),
        (b"[1, 2]", "a JSON document"),
        (b"#EXTM3U\nhttp://example.org/a.mp3\n", "a playlist: send the sound itself"),
        (b"UklGRiQAAABXQVZFZm10IBAAAAABAAEA", "base64 text: send the bytes themselves"),
        (b"data:audio/wav;base64,UklGRiQAAABXQVZF", "base64 text: send the bytes themselves"),
        (b"just words", "plain text"),
        ("Grüße aus Köln\n".encode() * 500, "plain text"),
        ("Grüße aus Köln\n".encode("latin-1"), "plain text"),
        ("Grüße\n".encode("utf-16"), "plain text"),
        ("こんにちは".encode() * 500, "plain text"),
        (bytes(100), "a run of zero bytes"),
    ],
)
def test_other_kinds_of_files_are_named(head: bytes, name: str) -> None:
    looks = describe(head[:HEAD_BYTES])
    assert looks is not None
    assert (looks.name, looks.may_be_audio) == (name, False)


@pytest.mark.parametrize("head", [b"", b"\x01\x02\x03", bytes(range(256))])
def test_nothing_is_claimed_about_unknown_bytes(head: bytes) -> None:
    assert describe(head) is None
