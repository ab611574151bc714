import hashlib
import hmac
import logging
import os
from pathlib import Path

import pytest

from app.keys import RELOAD_SECONDS, KeyRing

FIRST, SECOND, THIRD = "first-key-of-the-tests", "second-key-of-the-tests", "third-key-of-the-tests"


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def replace(path: Path, text: str) -> None:
    """As editors and Kubernetes do it: a new file takes the old one's name."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.rename(path)


def test_entries_are_keys_or_hashes_with_or_without_a_name() -> None:
    hashed = hashlib.sha256(SECOND.encode()).hexdigest()
    ring = KeyRing(f"{FIRST},mobile sha256:{hashed}\n# a comment\n\nweb {THIRD}")

    assert ring.holder(FIRST) == f"key-{hashlib.sha256(FIRST.encode()).hexdigest()[:8]}"
    assert ring.holder(SECOND) == "mobile"
    assert ring.holder(THIRD) == "web"


@pytest.mark.parametrize("key", ["", "no-key-of-the-tests!", FIRST[:-1], f"{FIRST} ", FIRST.upper(), "\x00", "é", "𝄞"])
def test_any_other_key_has_no_holder(key: str) -> None:
    assert KeyRing(FIRST).holder(key) is None


def test_the_hash_of_a_key_is_no_key() -> None:
    hashed = f"sha256:{hashlib.sha256(FIRST.encode()).hexdigest()}"

    assert KeyRing(FIRST).holder(hashed) is None


def test_every_key_is_compared_in_constant_time_whichever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    compare_digest = hmac.compare_digest

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return compare_digest(left, right)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    ring = KeyRing(f"{FIRST},{SECOND},{THIRD}")
    for key in (FIRST, THIRD, "no-key-of-the-tests"):
        compared.clear()
        ring.holder(key)
        assert len(compared) == 3
        assert all(len(left) == len(right) == 32 for left, right in compared)


def test_without_keys_there_is_no_lock() -> None:
    assert not KeyRing()
    assert KeyRing(FIRST)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ("short", "at least 16"),
        (f"{FIRST}é", "visible ASCII"),
        (f"two words {FIRST}", "NAME KEY"),
        (f"näme {FIRST}", "NAME KEY"),
        ("sha256:abc", "64 hexadecimal"),
    ],
)
def test_bad_entries_are_named_by_number_and_not_quoted(entries: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as error:
        KeyRing(f"{SECOND},{entries}")

    assert "entry 2" in str(error.value)
    assert entries not in str(error.value)
    assert SECOND not in str(error.value)


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n"])
def test_a_file_without_keys_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(text)

    with pytest.raises(ValueError, match="holds no API key"):
        KeyRing(file=file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file"):
        KeyRing(file=tmp_path / "keys")


def test_a_key_is_revoked_and_another_added_while_running(tmp_path: Path) -> None:
    file, clock = tmp_path / "keys", Clock()
    file.write_text(f"a {FIRST}\nb {SECOND}\n")
    ring = KeyRing(THIRD, file, clock=clock)
    assert ring.holder(FIRST) == "a"

    replace(file, f"b {SECOND}\nc a-new-key-of-the-tests\n")
    clock.now += RELOAD_SECONDS

    assert ring.holder(FIRST) is None
    assert ring.holder(SECOND) == "b"
    assert ring.holder("a-new-key-of-the-tests") == "c"
    assert ring.holder(THIRD) is not None


def test_a_mounted_secret_is_followed_through_its_links(tmp_path: Path) -> None:
    for version, key in (("v1", FIRST), ("v2", SECOND)):
        (tmp_path / version).mkdir()
        (tmp_path / version / "keys").write_text(key)
        os.utime(tmp_path / version / "keys", ns=(0, 0))
    (tmp_path / "data").symlink_to("v1")
    clock = Clock()
    ring = KeyRing(file=tmp_path / "data" / "keys", clock=clock)

    (tmp_path / "data.new").symlink_to("v2")
    (tmp_path / "data.new").rename(tmp_path / "data")
    clock.now += RELOAD_SECONDS

    assert ring.holder(FIRST) is None
    assert ring.holder(SECOND) is not None


@pytest.mark.parametrize("text", [None, "", "bad"])
def test_what_cannot_be_read_again_leaves_the_keys_and_says_so(
    text: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, clock = tmp_path / "keys", Clock()
    file.write_text(FIRST)
    ring = KeyRing(file=file, clock=clock)
    if text is None:
        file.unlink()
    else:
        replace(file, text)

    for _ in range(3):
        clock.now += RELOAD_SECONDS
        assert ring.holder(FIRST) is not None
    assert [record.levelno for record in caplog.records] == [logging.ERROR]  # once, not at every request

    replace(file, SECOND)
    clock.now += RELOAD_SECONDS
    assert ring.holder(FIRST) is None
    assert ring.holder(SECOND) is not None
