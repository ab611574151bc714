"""Hosts that audio may be fetched from, as a deployment names them, and what their addresses may be."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final, Self

import httpx

_ENTRY = re.compile(
    r"(?:(?P<scheme>https?)://)?(?P<wild>\*\.)?(?P<host>[^\s/?#@*:\[\]]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?"
    r"(?P<private>\s+private)?",
    re.IGNORECASE,
)
PORTS: Final = {"https": 443, "http": 80}
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class AllowedHost:
    """Where audio may be fetched from: `[http://][*.]HOST[:PORT][ private]`.

    Attributes:
        scheme: "https" unless the entry says http.
        host: in lower case and ASCII, as DNS has it.
        subdomains: those of the host, and not itself.
        port: the scheme's own unless the entry says another.
        private: its address may be one of this machine or of a private network.
    """

    scheme: str
    host: str
    subdomains: bool
    port: int
    private: bool

    @classmethod
    def parse(cls, entry: str) -> Self:
        """Read an entry.

        Raises:
            ValueError: says what an entry looks like.
        """
        match = _ENTRY.fullmatch(entry.strip())
        msg = f"{entry!r}: an entry is a host such as media.example.org, *.example.org or http://files.example.org:8080"
        if match is None:
            raise ValueError(msg)
        scheme = (match["scheme"] or "https").lower()
        try:
            url = httpx.URL(f"{scheme}://{match['host']}:{match['port'] or PORTS[scheme]}")
        except httpx.InvalidURL as error:
            raise ValueError(msg) from error
        return cls(
            scheme=scheme,
            host=ascii_host(url),
            subdomains=match["wild"] is not None,
            port=url.port or PORTS[scheme],
            private=match["private"] is not None,
        )

    def covers(self, url: httpx.URL) -> bool:
        """Whether a URL's scheme, host and port are those of this entry."""
        host = ascii_host(url)
        named = host.endswith(f".{self.host}") if self.subdomains else host == self.host
        return named and url.scheme == self.scheme and (url.port or PORTS[url.scheme]) == self.port


def ascii_host(url: httpx.URL) -> str:
    """The host as DNS has it: ASCII, lower case."""
    return url.raw_host.decode("ascii").lower()


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the internet at large, also where it wraps another one."""
    ip: Address = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        wrapped = ip.ipv4_mapped or ip.sixtofour or (ip.teredo or (None, None))[1]
        if wrapped is None and ip in _NAT64:
            wrapped = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        ip = wrapped or ip
    return ip.is_global and not ip.is_multicast
