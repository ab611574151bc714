"""Fetching by URL against servers of this machine: what is allowed, what is refused, and what limits hold."""

import asyncio
import datetime as dt
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from app.fetching import MAX_REDIRECTS, Fetcher
from app.transcription.exceptions import InvalidFieldError, TooLargeError
from engine.scripted import ScriptedEngine
from tests.audio_factory import clip, encode, pcm16, wav
from tests.conftest import Client, MakeClient
from tests.live import eventually, live

SPEECH = wav(pcm16(clip("library-us-female.wav")))
Serve = Callable[[str, asyncio.StreamWriter], Awaitable[None]]
"""Takes a request's head and writes the answer."""


class FileServer:
    """Answers as told, and remembers what it was asked."""

    def __init__(self, port: int, heads: list[str]) -> None:
        self.port = port
        self.heads = heads

    def url(self, path: str = "/call.wav", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def entry(self, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port} private"


@asynccontextmanager
async def file_server(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[FileServer]:
    heads: list[str] = []
    answering: set[asyncio.Task[Any]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        answering.add(task)
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        try:
            await serve(heads[-1], writer)
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls)
    try:
        yield FileServer(server.sockets[0].getsockname()[1], heads)
    finally:
        server.close()
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)


def gives(body: bytes, status: str = "200 OK", **headers: str) -> Serve:
    async def serve(_: str, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    return serve


def fetcher(*allowed: str, max_bytes: int = 10_000_000, timeout_seconds: float = 30.0) -> Fetcher:
    return Fetcher(allowed, max_bytes=max_bytes, timeout_seconds=timeout_seconds)


async def refusal(made: Fetcher, url: str, tmp_path: Path) -> InvalidFieldError:
    with pytest.raises(InvalidFieldError) as caught:
        await made.fetch(url, tmp_path / "audio")
    assert caught.value.param == "url"
    return caught.value


async def test_a_file_is_fetched_as_it_is(tmp_path: Path) -> None:
    async with file_server(gives(SPEECH)) as server:
        await fetcher(server.entry()).fetch(server.url("/a b.wav?signature=1%2B2#part"), tmp_path / "audio")

    assert (tmp_path / "audio").read_bytes() == SPEECH
    (head,) = server.heads
    assert head.startswith("GET /a%20b.wav?signature=1%2B2 HTTP/1.1\r\n")
    assert f"host: 127.0.0.1:{server.port}\r\n" in head.lower()
    assert "accept-encoding: identity\r\n" in head.lower()


async def test_nothing_is_fetched_where_no_host_is_allowed(tmp_path: Path) -> None:
    async with file_server(gives(SPEECH)) as server:
        error = await refusal(fetcher(), server.url(), tmp_path)

    assert error.code == "url_not_allowed"
    assert "OMNIHEAR_FETCH_ALLOWED_HOSTS" in error.message
    assert server.heads == []


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://localhost:{port}/", "url_not_allowed"),
        ("http://127.0.0.1:{other}/", "url_not_allowed"),
        ("https://127.0.0.1:{port}/", "url_not_allowed"),
        ("http://127.1:{port}/", "url_not_allowed"),
        ("http://2130706433:{port}/", "url_not_allowed"),
        ("http://[::ffff:127.0.0.1]:{port}/", "url_not_allowed"),
        ("http://user:secret@127.0.0.1:{port}/", "invalid_url"),
        ("file:///etc/passwd", "invalid_url"),
        ("gopher://127.0.0.1:{port}/", "invalid_url"),
        ("ftp://127.0.0.1:{port}/", "invalid_url"),
        ("data:audio/wav;base64,UklGRg==", "invalid_url"),
        ("/call.wav", "invalid_url"),
        ("127.0.0.1:{port}/call.wav", "invalid_url"),
        ("http://", "invalid_url"),
        ("http://[", "url_not_allowed"),
        ("http://127.0.0.1:{port}/\r\nX-Evil: 1", "invalid_url"),
        ("http://127.0.0.1:99999/", "url_not_allowed"),
    ],
)
async def test_what_is_not_allowed_is_not_asked_for(url: str, code: str, tmp_path: Path) -> None:
    async with file_server(gives(SPEECH)) as server:
        asked = url.replace("{port}", str(server.port)).replace("{other}", str(server.port - 1))
        error = await refusal(fetcher(server.entry()), asked, tmp_path)

    assert error.code == code
    assert "secret" not in error.message
    assert server.heads == []


async def test_a_private_address_has_to_be_allowed_as_such(tmp_path: Path) -> None:
    async with file_server(gives(SPEECH)) as server:
        error = await refusal(fetcher(f"http://localhost:{server.port}"), server.url(host="localhost"), tmp_path)
        await fetcher(server.entry("localhost")).fetch(server.url(host="localhost"), tmp_path / "audio")

    assert error.code == "url_not_allowed"
    assert "private" in error.message
    assert len(server.heads) == 1


def resolve(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> None:
    """Let names have these addresses, another list at each look-up."""
    remaining = iter(answers)
    real = asyncio.get_running_loop().getaddrinfo

    async def getaddrinfo(host: Any, port: Any, **hints: Any) -> Any:
        if isinstance(host, str) and host.endswith(".test"):
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in next(remaining)]
        return await real(host, port, **hints)

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


async def test_one_private_address_among_several_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve(monkeypatch, ["93.184.216.34", "169.254.169.254"])

    error = await refusal(fetcher("media.test"), "https://media.test/", tmp_path)

    assert error.code == "url_not_allowed"
    assert "169.254" not in error.message


async def test_the_address_that_was_checked_is_the_one_that_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with file_server(gives(SPEECH)) as server:
        # A second look-up would find nothing; of two addresses the second answers.
        resolve(monkeypatch, ["127.0.0.2", "127.0.0.1"])
        await fetcher(server.entry("media.test")).fetch(server.url(host="media.test"), tmp_path / "audio")

    assert (tmp_path / "audio").read_bytes() == SPEECH
    assert f"host: media.test:{server.port}\r\n" in server.heads[0].lower()


async def test_an_unknown_host_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nowhere(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", nowhere)

    error = await refusal(fetcher("media.test"), "https://media.test/a", tmp_path)

    assert (error.code, error.message) == ("url_failed", "the host media.test is not known")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """A certificate of media.test, as a file and as a server has it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "media.test")])
    now = dt.datetime.now(dt.UTC)
    names = [x509.DNSName("media.test"), x509.IPAddress(ipaddress.ip_address("10.1.2.3"))]
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    public, private = folder / "public.pem", folder / "private.pem"
    public.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(public, private)
    return public, server


@pytest.mark.parametrize(("host", "trusted"), [("media.test", True), ("other.test", False)])
async def test_the_certificate_has_to_name_the_host(
    host: str,
    trusted: bool,
    authority: tuple[Path, ssl.SSLContext],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    public, tls = authority
    monkeypatch.setattr("app.fetching._trusted", lambda: ssl.create_default_context(cafile=str(public)))
    resolve(monkeypatch, ["127.0.0.1"])
    async with file_server(gives(SPEECH), tls) as server:
        url, made = f"https://{host}:{server.port}/a", fetcher(f"{host}:{server.port} private")
        if trusted:
            await made.fetch(url, tmp_path / "audio")
            assert (tmp_path / "audio").read_bytes() == SPEECH
        else:
            error = await refusal(made, url, tmp_path)
            assert error.code == "url_failed"
            assert "certificate" in error.message


@pytest.mark.parametrize(
    ("location", "code"),
    [
        ("http://localhost:{port}/", "url_not_allowed"),
        ("http://169.254.169.254/latest/meta-data/", "url_not_allowed"),
        ("https://127.0.0.1:{port}/", "url_not_allowed"),
        ("http://127.0.0.1:1/", "url_not_allowed"),
        ("file:///etc/passwd", "url_not_allowed"),
        ("http://user@127.0.0.1:{port}/", "invalid_url"),
    ],
)
async def test_a_redirect_leads_nowhere_else(location: str, code: str, tmp_path: Path) -> None:
    async def serve(head: str, writer: asyncio.StreamWriter) -> None:
        to = location.replace("{port}", str(server.port))
        await gives(b"", "302 Found", Location=to)(head, writer)

    async with file_server(serve) as server:
        error = await refusal(fetcher(server.entry()), server.url(), tmp_path)

    assert error.code == code
    assert len(server.heads) == 1


async def test_a_redirect_on_the_same_host_is_followed(tmp_path: Path) -> None:
    async def serve(head: str, writer: asyncio.StreamWriter) -> None:
        moved = head.startswith("GET /old")
        await (gives(b"", "301 Moved", Location="../new.wav") if moved else gives(SPEECH))(head, writer)

    async with file_server(serve) as server:
        await fetcher(server.entry()).fetch(server.url("/old/a"), tmp_path / "audio")

    assert (tmp_path / "audio").read_bytes() == SPEECH
    assert server.heads[1].startswith("GET /new.wav ")


async def test_redirects_end(tmp_path: Path) -> None:
    async with file_server(gives(b"", "302 Found", Location="/again")) as server:
        error = await refusal(fetcher(server.entry()), server.url(), tmp_path)

    assert error.code == "url_failed"
    assert len(server.heads) == MAX_REDIRECTS + 1


@pytest.mark.parametrize("status", ["204 No Content", "206 Partial", "401 Unauthorized", "404 Not Found", "500 Oops"])
async def test_what_is_not_there_is_named_by_its_status(status: str, tmp_path: Path) -> None:
    async with file_server(gives(b"", status)) as server:
        error = await refusal(fetcher(server.entry()), server.url("/a?signature=secret"), tmp_path)

    assert error.code == "url_failed"
    assert status[:3] in error.message
    assert "secret" not in error.message


async def test_a_size_that_is_announced_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async def serve(_: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")
        await asyncio.sleep(60)

    async with file_server(serve) as server:
        with pytest.raises(TooLargeError) as caught:
            await fetcher(server.entry()).fetch(server.url(), tmp_path / "audio")

    assert caught.value.param == "url"
    assert caught.value.limit is not None
    assert caught.value.limit.setting == "OMNIHEAR_LIMITS_MAX_UPLOAD_BYTES"


async def test_a_size_that_is_not_announced_is_refused_where_it_passes_the_limit(tmp_path: Path) -> None:
    async def serve(_: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        while True:
            writer.write(bytes(100_000))
            await writer.drain()

    async with file_server(serve) as server:
        with pytest.raises(TooLargeError):
            await fetcher(server.entry(), max_bytes=3_000_000).fetch(server.url(), tmp_path / "audio")

    assert (tmp_path / "audio").stat().st_size <= 3_000_000


async def test_compressed_answers_are_not_unpacked(tmp_path: Path) -> None:
    packed = b"\x1f\x8b" + bytes(50)
    async with file_server(gives(packed, Content_Encoding="gzip")) as server:
        await fetcher(server.entry()).fetch(server.url(), tmp_path / "audio")

    assert (tmp_path / "audio").read_bytes() == packed


async def test_a_server_that_stalls_is_given_up(tmp_path: Path) -> None:
    async def serve(_: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nRIFF")
        await asyncio.sleep(60)

    async with file_server(serve) as server:
        error = await refusal(fetcher(server.entry(), timeout_seconds=0.3), server.url(), tmp_path)

    assert error.code == "url_failed"
    assert error.limit is not None
    assert error.limit.setting == "OMNIHEAR_FETCH_TIMEOUT_SECONDS"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nRIFF",  # and the connection ends
        b"no HTTP at all\r\n\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\n" + b"X-Bomb: " + b"a" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_a_broken_answer_is_refused(answer: bytes, tmp_path: Path) -> None:
    async def serve(_: str, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    async with file_server(serve) as server:
        error = await refusal(fetcher(server.entry()), server.url(), tmp_path)

    assert error.code in ("url_failed", "missing_audio")


async def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    error = await refusal(fetcher("http://127.0.0.1:9 private"), "http://127.0.0.1:9/", tmp_path)

    assert error.code == "url_failed"


@pytest.mark.parametrize("way", ["form", "json", "query"])
async def test_the_url_stands_in_place_of_the_audio(way: str, make_client: MakeClient) -> None:
    engine = ScriptedEngine()
    async with (
        file_server(gives(encode(clip("library-us-female.wav"), "opus"))) as server,
        make_client(engine, fetch={"allowed_hosts": (server.entry(),)}) as client,
    ):
        fields = {"url": server.url(), "response_format": "verbose_json", "hotwords": ["Grigson", "RTFx"]}
        sent: dict[str, dict[str, Any]] = {
            "form": {"files": [(name, (None, each)) for name, value in fields.items() for each in listed(value)]},
            "json": {"json": {**fields, "temperature": 0.5, "stream": False, "language": None}},
            "query": {"params": fields},
        }
        answer = await client.post("/v1/transcribe", **sent[way])

    assert answer.status_code == 200, answer.text
    assert answer.json()["duration"] == pytest.approx(6.2, abs=0.15)
    assert answer.json()["segments"]
    assert engine.requests[-1].context == "Grigson, RTFx"
    assert engine.requests[-1].temperature == (0.5 if way == "json" else 0.0)


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


async def test_a_fetched_file_streams(make_client: MakeClient) -> None:
    async with (
        file_server(gives(SPEECH)) as server,
        make_client(fetch={"allowed_hosts": (server.entry(),)}) as client,
    ):
        answer = await client.post("/v1/transcribe", json={"url": server.url(), "stream": True})

    assert '"transcript.text.done"' in answer.text


async def test_what_was_fetched_is_judged_as_an_upload(make_client: MakeClient) -> None:
    async with (
        file_server(gives(b"<!DOCTYPE html><html>" + b"<p>Not found</p>" * 99)) as server,
        make_client(fetch={"allowed_hosts": (server.entry(),)}) as client,
    ):
        answer = await client.post("/v1/transcribe", json={"url": server.url()})

    assert answer.status_code == 415
    assert answer.json()["error"]["code"] == "not_audio"


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        ({"files": {"audio": SPEECH}, "data": {"url": "https://a.test/"}}, 422, "several_audio_parts"),
        ({"content": SPEECH, "params": {"url": "https://a.test/"}}, 422, "several_audio_parts"),
        ({"json": {"url": "https://a.test/"}}, 422, "url_not_allowed"),
        ({"json": {"url": "https://a.test/", "temperature": 7}}, 422, "invalid_field"),
        ({"json": {"url": ["https://a.test/", "https://b.test/"]}}, 422, "invalid_field"),
        ({"json": {"url": {"href": "https://a.test/"}}}, 422, "invalid_field"),
        ({"json": {"language": "en"}}, 422, "missing_audio"),
        ({"json": {"url": "  "}}, 422, "missing_audio"),
        ({"json": {"url": "https://a.test/", "no_such": 1}}, 422, "unknown_field"),
        ({"json": {"url": "https://a.test/", "prompt": "x" * 70_000}}, 400, "malformed_request"),
        ({"content": b'{"url": ', "headers": {"Content-Type": "application/json"}}, 400, "malformed_request"),
        ({"content": b"[" * 9, "headers": {"Content-Type": "application/json"}}, 415, "not_audio"),
        (
            {"content": b'{"a":' * 10_000, "headers": {"Content-Type": "application/json; charset=utf-8"}},
            400,
            "malformed_request",
        ),
    ],
)
async def test_what_cannot_be_fetched_is_named(
    sent: dict[str, Any], status: int, code: str, scripted_client: Client
) -> None:
    answer = await scripted_client.post("/v1/transcribe", **sent)

    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


async def test_audio_under_the_type_of_json_is_audio(scripted_client: Client) -> None:
    answer = await scripted_client.post("/v1/transcribe", content=SPEECH, headers={"Content-Type": "application/json"})

    assert answer.status_code == 200


@pytest.mark.parametrize("route", ["/v1/audio/transcriptions", "/v1/transcribe/batch"])
async def test_other_routes_fetch_nothing(route: str, scripted_client: Client) -> None:
    alone = await scripted_client.post(route, files={"url": (None, "https://a.test/")})
    beside = await scripted_client.post(route, files={"file": SPEECH}, data={"url": "https://a.test/"})

    assert alone.status_code == 422
    assert (beside.status_code, beside.json()["error"]["param"]) == (422, "url")


async def test_a_client_that_leaves_ends_the_fetching(tmp_path: Path) -> None:
    async def serve(_: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nRIFF")
        await asyncio.sleep(60)

    async with file_server(serve) as server:
        settings: dict[str, Any] = {
            "fetch": {"allowed_hosts": (server.entry(),)},
            "server": {"spool_dir": str(tmp_path)},
        }
        async with live(**settings) as client:
            asking = asyncio.create_task(client.post("/v1/transcribe", json={"url": server.url()}))
            await eventually(lambda: server.heads, seconds=10)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await eventually(lambda: not list(tmp_path.glob("*/*")), seconds=10)
