import httpx
import pytest

from app.hosts import AllowedHost, is_public


@pytest.mark.parametrize(
    ("entry", "covered", "others"),
    [
        (
            "media.example.org",
            ["https://media.example.org/a.mp3", "https://MEDIA.example.org:443/", "https://media.example.org?x=1"],
            [
                "http://media.example.org/",
                "https://example.org/",
                "https://a.media.example.org/",
                "https://media.example.org:8443/",
                "https://media.example.org.evil.test/",
                "https://media.example.org./",
                "https://evil.test/media.example.org",
                "https://evil.test#media.example.org",
                "https://evil.test\\media.example.org",
            ],
        ),
        (
            "*.example.org",
            ["https://a.example.org/", "https://b.a.example.org/"],
            ["https://example.org/", "https://evilexample.org/"],
        ),
        (
            "http://files.example.org:8080",
            ["http://files.example.org:8080/x"],
            ["https://files.example.org:8080/x", "http://files.example.org/x"],
        ),
        ("HTTP://Files.example.org", ["http://files.example.org/x"], ["https://files.example.org/x"]),
        ("exämple.org", ["https://exämple.org/", "https://xn--exmple-cua.org/"], ["https://example.org/"]),
        ("10.0.0.5 private", ["https://10.0.0.5/"], ["https://10.0.0.6/", "https://167772165/", "https://0xa.0.0.5/"]),
        ("http://[::1]:9000 private", ["http://[::1]:9000/a"], ["http://127.0.0.1:9000/a", "http://[::1]/a"]),
    ],
)
def test_an_entry_covers_its_host_and_no_other(entry: str, covered: list[str], others: list[str]) -> None:
    allowed = AllowedHost.parse(entry)

    assert [url for url in covered if not allowed.covers(httpx.URL(url))] == []
    assert [url for url in others if allowed.covers(httpx.URL(url))] == []


@pytest.mark.parametrize(
    "entry",
    ["", "https://", "media.example.org/path", "ftp://media.example.org", "user@media.example.org", "*", "*.", "a b",
     "media.example.org:port", "media.example.org:123456", "media.example.org privat", "https://*.*.example.org"],
)  # fmt: skip
def test_an_entry_that_is_no_host_is_refused_with_examples(entry: str) -> None:
    with pytest.raises(ValueError, match=r"an entry is a host such as media\.example\.org"):
        AllowedHost.parse(entry)


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:2800:220:1:248:1893:25c8:1946"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.1", "172.16.5.4", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "224.0.0.1", "255.255.255.255", "198.18.0.1", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1",
        "fd00:ec2::254", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a00:1", "64:ff9b::7f00:1",
        "2002:7f00:1::", "2002:a00:1::1",
    ],
)  # fmt: skip
def test_addresses_of_this_machine_and_of_private_networks_are_not(address: str) -> None:
    assert not is_public(address)
