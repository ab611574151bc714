import gzip
import zipfile
from pathlib import Path

import pytest

from benchmarks.packages import Package, PackageError, fetch, read_text

PIP = """#!/bin/sh
while [ $# -gt 1 ]; do [ "$1" = --dest ] && folder=$2; shift; done
[ "$1" = absent ] && { echo "no such distribution" >&2; exit 1; }
echo "$1" >> "$CALLS"
cp "$WHEEL" "$folder/"
"""


@pytest.fixture(autouse=True)
def _client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pip that has one wheel."""
    wheel = tmp_path / "voices-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("voices/data.txt", "hello")
    program = tmp_path / "bin" / "pip"
    program.parent.mkdir()
    program.write_text(PIP)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setenv("WHEEL", str(wheel))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))


def test_a_package_is_fetched_once(tmp_path: Path) -> None:
    package = Package(registry="pypi", name="voices", version="1.0")

    first, second = (fetch(package, tmp_path / "cache") for _ in range(2))

    assert first == second
    assert (first / "voices" / "data.txt").read_text() == "hello"
    assert (tmp_path / "calls").read_text() == "voices==1.0\n"


def test_what_the_client_says_is_told(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"pypi absent: pip download (.|\n)*no such distribution"):
        fetch(Package(registry="pypi", name="absent"), tmp_path / "cache")


def test_text_is_read_compressed_or_not(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"hello \xff")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"hello"))

    assert read_text(tmp_path / "a.txt").split() == read_text(tmp_path / "a.txt.gz").split() == ["hello"]
