"""Requests that no client library would send: bytes for a socket, made by hypothesis."""

from dataclasses import dataclass
from typing import Final, TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from tests import audio_factory as factory

Drawn = TypeVar("Drawn")

ROUTES: Final = ("/v1/transcribe", "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/transcribe/batch")
SPEECH: Final = factory.wav(factory.pcm16(factory.sine(0.5)))

_line = st.text(st.characters(codec="latin-1", exclude_characters="\r\n"), max_size=40)
_value = st.one_of(
    _line,
    st.sampled_from(
        ["", " ", "0", "-1", "1e308", "NaN", "true", "null", "[]", "{}", "en", "de-CH", "auto", "json", "srt"]
    ),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=60),
    st.integers(1, 70_000).map(lambda length: "x" * length),
)
_field = st.sampled_from(
    [
        *("audio", "file", "url", "model", "language", "prompt", "hotwords", "hotwords[]", "response_format", "stream"),
        *(
            "temperature",
            "channels",
            "timestamp_granularities[]",
            "include[]",
            "chunking_strategy",
            "no_such_field",
            "",
        ),
    ]
)
_content = st.one_of(
    st.just(SPEECH),
    st.just(SPEECH),
    st.binary(max_size=300),
    _value.map(lambda text: text.encode("utf-8", "replace")),
    st.sampled_from([b"", b"\r\n", b"--b", b"\r\n--b", b"\r\n--b--", b"\r\n--b--\r\n", b"\x00" * 1000]),
)
_boundary = st.one_of(
    st.just("b"), st.just("b"), st.text(st.characters(codec="ascii", exclude_characters="\r\n"), max_size=80)
)
_newline = st.sampled_from(["\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r", "\r\n\r\n", ""])


@st.composite
def _parts(draw: st.DrawFn) -> bytes:
    """A part of a form, more or less."""
    newline = draw(_newline)
    name, filename = draw(_field), draw(st.one_of(st.none(), _value))
    quote = draw(st.sampled_from(['"', '"', "'", "", '\\"']))
    disposition = f"Content-Disposition: form-data; name={quote}{name}{quote}"
    if filename is not None:
        disposition += draw(
            st.sampled_from([f'; filename="{filename}"', f"; filename*=UTF-8''{filename}", ";;;filename="])
        )
    extra = draw(
        st.lists(
            st.sampled_from(
                [
                    "Content-Type: multipart/form-data; boundary=b",
                    "Content-Type: audio/wav",
                    "Content-Transfer-Encoding: base64",
                    "Content-Disposition: form-data; name=audio",
                    "Content-Encoding: gzip",
                    "no colon here",
                    ": no name",
                    " folded",
                    "X-Long: " + "x" * 9000,
                ]
            ),
            max_size=3,
        )
    )
    lines = draw(st.permutations([disposition, *extra])) if draw(st.booleans()) else [disposition, *extra]
    head = newline.join(lines) + newline + newline
    return head.encode("utf-8", "replace") + draw(_content) + newline.encode()


@st.composite
def _forms(draw: st.DrawFn) -> tuple[str, bytes]:
    """Content type and body."""
    boundary = draw(_boundary)
    said = draw(st.sampled_from([boundary, boundary, boundary, f'"{boundary}"', "", "other"]))
    parts = draw(st.lists(_parts(), max_size=5)) * draw(st.sampled_from([1, 1, 1, 1, 20]))
    mark = f"--{boundary}\r\n".encode()
    body = b"".join(mark + part for part in parts) + draw(
        st.sampled_from([f"--{boundary}--\r\n".encode(), b"", mark, b"--", b"\x00" * 10])
    )
    return f"multipart/form-data; boundary={said}", body


_bodies = st.one_of(
    _forms(),
    _forms(),
    st.tuples(
        st.sampled_from(["application/octet-stream", "audio/wav", "", "application/json", "text/plain; charset=\x00"]),
        _content,
    ),
    st.tuples(
        st.just("application/json"),
        st.sampled_from(
            [
                b'{"url": "http://127.0.0.1:1/"}',
                b'{"url": 7, "language": {"a": 1}}',
                b'{"url"',
                b"[" * 60_000,
                b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
                b'{"prompt": "\\ud800", "url": "x"}',
                b'{"url": "https://[::1", "temperature": 1e999}',
                b'{"temperature": ' + b"9" * 5000 + b"}",
            ]
        ),
    ),
)
_header = st.one_of(
    st.tuples(
        st.sampled_from(
            [
                *("X-Request-ID", "Accept", "Authorization", "X-API-Key", "Range", "Cookie", "Origin", "traceparent"),
                *("tracestate", "Expect", "Content-Encoding", "X-Forwarded-For", "If-None-Match", "Upgrade", "TE"),
            ]
        ),
        st.one_of(
            _line, st.sampled_from(["100-continue", "gzip", "h2c", "00-" + "0" * 32 + "-" + "0" * 16 + "-00", "*"])
        ),
    ),
    st.tuples(st.from_regex(r"[A-Za-z-]{1,20}", fullmatch=True), _line),
)
_queries = st.one_of(
    st.just(""),
    st.just(""),
    st.lists(st.tuples(_field, _value), max_size=3).map(lambda pairs: "?" + "&".join(f"{a}={b}" for a, b in pairs)),
)


@dataclass(frozen=True, slots=True)
class RawRequest:
    """What goes over the socket.

    Attributes:
        kind: "form" or "raw body", for the report.
        finished: whether the announced body is there, so that an answer has to come.
    """

    kind: str
    data: bytes
    finished: bool


@st.composite
def requests(draw: st.DrawFn) -> RawRequest:
    """One request to a route that takes audio."""
    content_type, body = draw(_bodies)
    framing = draw(
        st.sampled_from(["length", "length", "length", "length", "chunked", "wrong chunks", "both", "negative"])
    )
    path = draw(st.sampled_from(ROUTES)) + draw(_queries)
    headers = [
        ("Host", "omnihear"),
        ("Connection", "close"),
        ("Content-Type", content_type),
        *draw(st.lists(_header, max_size=4)),
    ]
    sent = body
    if framing in ("length", "both"):
        headers.append(("Content-Length", str(len(body))))
    if framing == "negative":
        headers.append(("Content-Length", draw(st.sampled_from(["-1", "1e3", "0x10", "+5", "9" * 30, "5, 5"]))))
    if framing in ("chunked", "both"):
        headers.append(("Transfer-Encoding", "chunked"))
        sent = b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n" if body else b"0\r\n\r\n"
    if framing == "wrong chunks":
        headers.append(("Transfer-Encoding", draw(st.sampled_from(["chunked", "chunked, gzip", "identity"]))))
        sent = draw(st.sampled_from([b"zz\r\n", b"-5\r\n", b"ffffffffffffffff\r\n", b"5\r\nabc\r\n0\r\n\r\n"])) + body
    head = f"POST {path.replace(' ', '%20')} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers)
    kind = "form" if content_type.startswith("multipart") else "raw body"
    return RawRequest(kind, head.encode("utf-8", "replace") + b"\r\n" + sent, framing in ("length", "chunked"))


def examples(count: int, *, seed: int = 0) -> list[RawRequest]:
    """So many, the same for the same seed."""
    return drawn(requests(), count, seed)


def drawn(strategy: st.SearchStrategy[Drawn], count: int, seed: int) -> list[Drawn]:
    """So many examples of a strategy, simple ones first; fewer where it has no more."""
    found: list[Drawn] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(strategy)
    def collect(made: Drawn) -> None:
        found.append(made)

    collect()
    return found[:count]
