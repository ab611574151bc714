"""Audio from a URL in place of an upload, from hosts that the deployment names and from nowhere else.

A service that fetches what strangers tell it to is a way into the network that it stands in (server-side request
forgery, CWE-918). So a host has to be allowed, its address is resolved once, checked, and connected to as it was
checked (a second look-up may give another one), and a redirect may not lead to another host.
"""

import asyncio
import functools
import socket
import ssl
from pathlib import Path
from typing import Final

import anyio.to_thread
import httpx

from app.hosts import PORTS, AllowedHost, ascii_host, is_public
from app.transcription.exceptions import InvalidFieldError, Limit, TooLargeError

SETTING: Final = "OMNIHEAR_FETCH_ALLOWED_HOSTS"
CONNECT_SECONDS: Final = 10.0
MAX_REDIRECTS: Final = 5
_BLOCK: Final = 1024 * 1024  # bytes collected before a thread writes them


class Fetcher:
    """Fetches audio within the limits of uploads."""

    def __init__(self, allowed: tuple[str, ...], *, max_bytes: int, timeout_seconds: float) -> None:
        self._allowed = tuple(map(AllowedHost.parse, allowed))
        self._max_bytes = max_bytes
        self._timeout_seconds = timeout_seconds

    async def fetch(self, url: str, target: Path) -> None:
        """Write what a URL gives to a file.

        Raises:
            InvalidFieldError: the URL is none, is not allowed, or gives nothing; names the remedy.
            TooLargeError: as soon as the limit of uploads is passed.
        """
        if not self._allowed:
            msg = f"audio is not fetched by URL here; send the audio itself, or have the operator set {SETTING}"
            raise _refused(msg, "url_not_allowed")
        place = _parse(url)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                async with httpx.AsyncClient(
                    transport=httpx.AsyncHTTPTransport(verify=_trusted()),
                    timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
                    trust_env=False,  # a proxy would resolve the name again
                ) as client:
                    await self._follow(client, place, target)
        except TimeoutError:
            limit = Limit("seconds for a URL", self._timeout_seconds, "OMNIHEAR_FETCH_TIMEOUT_SECONDS")
            msg = f"{place.host} took longer than {self._timeout_seconds:g} s; send the audio itself"
            raise _refused(msg, "url_failed", limit) from None
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError) as error:
            msg = f"{place.host} could not be read: {str(error) or type(error).__name__}"
            raise _refused(msg, "url_failed") from error

    async def _follow(self, client: httpx.AsyncClient, url: httpx.URL, target: Path) -> None:
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._open(client, url)
            try:
                if not response.has_redirect_location:
                    return await self._save(response, url, target)
                to = url.join(response.headers["Location"])
            finally:
                await response.aclose()
            if to.host != url.host:
                msg = f"{url.host} redirects to another host; give the URL that it leads to"
                raise _refused(msg, "url_not_allowed")
            url = _parse(str(to))
        msg = f"{url.host} redirects more than {MAX_REDIRECTS} times"
        raise _refused(msg, "url_failed")

    async def _open(self, client: httpx.AsyncClient, url: httpx.URL) -> httpx.Response:
        """The answer to a GET, its body not yet read; each of the host's addresses is tried."""
        for address in (addresses := await self._addresses(url)):
            request = client.build_request(
                "GET",
                url.copy_with(host=address),
                # What is compressed here could be anything after; audio has no need of it.
                headers={"Host": url.netloc.decode("ascii"), "Accept": "*/*", "Accept-Encoding": "identity"},
                extensions={"sni_hostname": ascii_host(url)},  # whom the certificate has to name
            )
            try:
                return await client.send(request, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if address == addresses[-1]:
                    raise
        raise AssertionError  # a name that resolves has an address

    async def _addresses(self, url: httpx.URL) -> list[str]:
        entries = [entry for entry in self._allowed if entry.covers(url)]
        if not entries:
            scheme = "" if url.scheme == "https" else " over plain http"
            host = f"{url.netloc.decode('ascii')}{scheme}"
            msg = f"audio is not fetched from {host}; send the audio itself, or have the host added to {SETTING}"
            raise _refused(msg, "url_not_allowed")
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                ascii_host(url), url.port or PORTS[url.scheme], type=socket.SOCK_STREAM
            )
        except (OSError, UnicodeError) as error:
            raise _refused(f"the host {url.host} is not known", "url_failed") from error
        addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
        if not any(entry.private for entry in entries) and not all(map(is_public, addresses)):
            msg = f"{url.host} is an address of a private network; its entry in {SETTING} has to end in ` private`"
            raise _refused(msg, "url_not_allowed")
        return addresses

    async def _save(self, response: httpx.Response, url: httpx.URL, target: Path) -> None:
        if response.status_code != 200:
            msg = f"{url.host} answered {response.status_code}; give a URL that answers 200 without further headers"
            raise _refused(msg, "url_failed")
        announced = response.headers.get("Content-Length", "")
        total = int(announced) if announced.isdecimal() else 0
        self._check_size(total)
        total = 0
        with target.open("wb") as sink:
            async for block in response.aiter_raw(_BLOCK):
                total += len(block)
                self._check_size(total)
                await anyio.to_thread.run_sync(sink.write, block)
        if not total:
            raise _refused(f"{url.host} gave an empty file", "missing_audio")

    def _check_size(self, n_bytes: int) -> None:
        if n_bytes > self._max_bytes:
            limit = Limit("fetched bytes", self._max_bytes, "OMNIHEAR_LIMITS_MAX_UPLOAD_BYTES")
            msg = f"what the URL gives is larger than {self._max_bytes} bytes; use a compressed format, or split it"
            raise TooLargeError(msg, limit=limit, param="url")


def _parse(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text.strip())
    except httpx.InvalidURL as error:
        raise _refused(f"this is no URL: {error}", "invalid_url") from error
    if url.scheme not in PORTS or not url.host:
        raise _refused("give a whole URL, such as https://media.example.org/call.mp3", "invalid_url")
    if url.userinfo:
        raise _refused("a URL with a name or a password is not taken; use a signed URL", "invalid_url")
    return url.copy_with(fragment=None)


def _refused(message: str, code: str, limit: Limit | None = None) -> InvalidFieldError:
    return InvalidFieldError(message, param="url", code=code, limit=limit)


@functools.cache
def _trusted() -> ssl.SSLContext:
    """Authorities whose certificates count, SSL_CERT_FILE over the usual ones; read once, it takes tens of ms."""
    return httpx.create_ssl_context()
