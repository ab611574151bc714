"""Forms as they arrive: in any pieces, and from people who mean harm."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.types import Message

from app.settings import Limits
from app.transcription.exceptions import InvalidInputError
from app.upload import BatchUpload, read_batch, read_upload

BOUNDARY = "boundary"
Part = tuple[str, str | None, bytes]
"""Name, file name, content."""

CONTENT_TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def form(parts: Iterable[Part], boundary: str = BOUNDARY) -> bytes:
    body = b""
    for name, filename, content in parts:
        named = "" if filename is None else f'; filename="{filename}"'
        body += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'.encode()
        body += content + b"\r\n"
    return body + f"--{boundary}--\r\n".encode()


def request(pieces: Iterable[bytes], content_type: str = CONTENT_TYPE) -> Request:
    async def messages() -> AsyncIterator[Message]:
        for piece in pieces:
            yield {"type": "http.request", "body": piece, "more_body": True}
        yield {"type": "http.request", "body": b"", "more_body": False}

    arriving = messages()
    headers = [(b"content-type", content_type.encode("latin-1"))]
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}
    return Request(scope, lambda: anext(arriving))


Read = tuple[list[tuple[str, str | None, bytes]], tuple[tuple[str, str], ...]] | str
"""All audio parts and fields, or the class of the error."""


def read(pieces: Iterable[bytes], content_type: str = CONTENT_TYPE, limits: Limits | None = None) -> Read:
    with TemporaryDirectory() as folder:
        try:
            upload: BatchUpload = asyncio.run(
                read_batch(request(pieces, content_type), Path(folder), limits or Limits())
            )
        except InvalidInputError as error:
            return type(error).__name__
        files = [(file.field, file.name, file.path.read_bytes()) for file in upload.files]
        # Nothing is written but in the folder, under names of our own.
        assert {path.name for path in Path(folder).iterdir()} == {f"upload-{n}" for n in range(len(files))}
        return files, upload.fields


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand every piece on to the parser as it comes."""
    monkeypatch.setattr("app.upload._BLOCK", 1)


pieces_of_content = [b"\r\n", b"\n", b"\r", b"-", b"--boundary", b"--boundary--", b"boundary", b"\x00", b"\xff", b"a"]
contents = st.lists(st.sampled_from(pieces_of_content), max_size=12).map(b"".join)
# What no part may hold is the line that ends it.
contents = contents.filter(lambda content: b"\r\n--boundary" not in b"\r\n" + content + b"\r\n")
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20).map(str.encode)
texts = texts.filter(lambda text: b"\r\n--boundary" not in text)
parts = st.one_of(
    st.tuples(st.sampled_from(["audio", "file"]), st.sampled_from([None, "", "a.wav", "ü.wav", "../../x"]), contents),
    st.tuples(st.sampled_from(["language", "prompt", "hotwords[]"]), st.none(), texts),
)


@settings(max_examples=30)
@given(st.lists(parts, min_size=1, max_size=4), st.data())
def test_a_form_is_the_same_however_it_is_cut(given_parts: list[Part], data: st.DataObject) -> None:
    body = form(given_parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=12)))
    pieces = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]

    whole = read([body])

    files = [part for part in given_parts if part[0] in ("audio", "file")]
    if files:
        fields = tuple((name, content.decode()) for name, _, content in given_parts if name not in ("audio", "file"))
        assert whole == (files, fields)
    else:
        assert whole == "InvalidFieldError"
    assert read(pieces) == whole
    assert read([body[at : at + 1] for at in range(len(body))]) == whole


@given(st.data())
def test_a_form_with_damage_is_read_or_refused(data: st.DataObject) -> None:
    body = bytearray(form([("language", None, b"en"), ("audio", "a.wav", b"RIFF" * 20), ("prompt", None, b"words")]))
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(body) - 1))
        length = data.draw(st.integers(0, 6))
        body[at : at + length] = data.draw(st.sampled_from([b"", b"\r\n", b"--", b'"', b"\x00", b"\xff", b";", b"a"]))

    assert read([bytes(body)]) == read([bytes(body[:50]), bytes(body[50:])])


@given(st.binary(max_size=300))
@example(b"--boundary")
@example(b"--boundary--")
@example(b"--boundary\r\n\r\n")
@example(b"--boundary\r\n" * 100)
@example(b"\r\n" * 100 + b"--boundary--")
def test_what_is_no_form_is_refused(body: bytes) -> None:
    assert isinstance(read([body]), str)


def head(disposition: bytes, further: bytes = b"", content: bytes = b"RIFF") -> bytes:
    headers = b"Content-Disposition: " + disposition + b"\r\n" + further
    return b"--boundary\r\n" + headers + b"\r\n" + content + b"\r\n--boundary--\r\n"


@pytest.mark.parametrize(
    ("disposition", "name"),
    [
        (b'form-data; name="audio"; filename="a.wav"', "a.wav"),
        (b"form-data; name=audio; filename=a.wav", "a.wav"),
        (b'FORM-DATA; NAME="audio"; FILENAME="a.wav"', "a.wav"),
        (b'form-data; filename="a.wav"; name="audio"', "a.wav"),
        (b'form-data; name="audio"', None),
        (b'form-data; name="audio"; filename=""', ""),
        ('form-data; name="audio"; filename="ünï.wav"'.encode(), "ünï.wav"),
        (b'form-data; name="audio"; filename="a\\"b.wav"', 'a"b.wav'),
        (b'form-data; name="audio"; filename="a%22b.wav"', 'a"b.wav'),
        (b'form-data; name="audio"; filename="a;b=c.wav"', "a;b=c.wav"),
        (b'form-data; name="audio"; filename="C:\\\\calls\\\\a.wav"', "a.wav"),
    ],
)
def test_names_are_read_as_clients_write_them(disposition: bytes, name: str | None) -> None:
    assert read([head(disposition)]) == ([("audio", name, b"RIFF")], ())


@pytest.mark.parametrize(
    "disposition",
    [
        b"form-data; name=\"audio\"; filename*=UTF-8''%e9%9f%b3.wav",
        b'form-data; name="audio"; filename="x.wav"; filename*=UTF-8\'\'%e9%9f%b3.wav',
        b"form-data; name=\"audio\"; filename*=iso-8859-1'en'%A3.wav",
        b"form-data; name=\"audio\"; filename*=nonsense''%zz",
        b'form-data; name="audio"; filename*0="a"; filename*1=".wav"',
        b'form-data; name="audio"; filename="' + b"x" * 3000 + b'.wav"',
    ],
)
def test_an_unusual_name_costs_no_audio(disposition: bytes) -> None:
    result = read([head(disposition)])

    assert not isinstance(result, str)
    assert [content for _, _, content in result[0]] == [b"RIFF"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (head(b"form-data"), "InvalidFieldError"),
        (head(b"form-data; name="), "InvalidFieldError"),
        (head(b'attachment; name="audio"'), "MalformedRequestError"),
        (head(b""), "MalformedRequestError"),
        (b"--boundary\r\nX-Other: 1\r\n\r\nRIFF\r\n--boundary--\r\n", "MalformedRequestError"),
        (b"--boundary\r\n\r\nRIFF\r\n--boundary--\r\n", "MalformedRequestError"),
        (b"--boundary\r\nno colon\r\n\r\nRIFF\r\n--boundary--\r\n", "MalformedRequestError"),
        (head(b'form-data; name="audio"', b"X-Bomb: " + b"a" * 1_000_000 + b"\r\n"), "MalformedRequestError"),
        (head(b'form-data; name="audio"', b"X-Bomb: a\r\n" * 10_000), "MalformedRequestError"),
        (b"--boundary\r\n" + b"a" * 1_000_000, "MalformedRequestError"),
        (b"a" * 1_000_000, "MalformedRequestError"),
        (form([("language", None, b"en")] * 10_000), "MalformedRequestError"),
        (form([("audio", "a.wav", b"RIFF")] * 1_000), "MalformedRequestError"),
        (form([("prompt", None, b"x" * 100_000)]), "InvalidFieldError"),
        (form([("prompt", None, b"\xff\xfe")]), "InvalidFieldError"),
        (form([("prompt", "words.txt", b"words")]), "InvalidFieldError"),
        (form([("audio", "a.wav", b"RIFF")])[:-4], "MalformedRequestError"),
        (form([("audio", "a.wav", b"RIFF")])[:60], "MalformedRequestError"),
        (form([("audio", "a.wav", b"RIFF")], "other"), "MalformedRequestError"),
    ],
    ids=range(19),
)
def test_a_hostile_form_is_refused(body: bytes, error: str) -> None:
    assert read([body]) == error


@pytest.mark.parametrize(
    "content_type",
    [
        'multipart/form-data; boundary="boundary"',
        "Multipart/Form-Data; BOUNDARY=boundary",
        "multipart/form-data;charset=utf-8;boundary=boundary",
        "multipart/form-data; boundary=boundary; boundary=boundary",
    ],
)
def test_the_boundary_may_be_written_in_many_ways(content_type: str) -> None:
    assert read([form([("audio", "a", b"RIFF")])], content_type) == ([("audio", "a", b"RIFF")], ())


@pytest.mark.parametrize(
    "content_type",
    [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        'multipart/form-data; boundary=""',
        f"multipart/form-data; boundary={'b' * 5000}",
        "multipart/form-data; boundary=bound\x01ary",
        "multipart/mixed; boundary=boundary",
        "multipart/form-data boundary=boundary",
        "text/plain",
        "",
    ],
)
def test_a_form_without_its_boundary_is_refused(content_type: str) -> None:
    assert read([form([("audio", "a", b"RIFF")])], content_type) == "MalformedRequestError"


def test_a_form_in_a_part_is_its_content() -> None:
    inner = form([("audio", "b.wav", b"inner")], "inner")
    nested = head(b'form-data; name="audio"', b"Content-Type: multipart/mixed; boundary=inner\r\n", inner)

    assert read([nested]) == ([("audio", None, inner)], ())


def test_a_transfer_encoding_of_a_part_is_not_undone() -> None:
    """RFC 7578, 4.7: there is none in forms; what is not decoded cannot grow."""
    encoded = head(b'form-data; name="audio"; filename="a"', b"Content-Transfer-Encoding: base64\r\n", b"UklGRg==")

    assert read([encoded]) == ([("audio", "a", b"UklGRg==")], ())


def test_what_stands_before_and_after_a_form_does_not_count() -> None:
    body = b"preamble\r\n" + form([("audio", "a", b"RIFF")]) + b"epilogue"

    assert read([body]) == ([("audio", "a", b"RIFF")], ())


async def test_a_file_in_the_spool_folder_is_all_that_is_written(tmp_path: Path) -> None:
    upload = await read_upload(request([form([("audio", "/etc/passwd", b"RIFF")])]), tmp_path, Limits())

    assert upload.path.parent == tmp_path
    assert upload.path.read_bytes() == b"RIFF"
