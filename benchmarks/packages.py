"""Files that package registries carry, fetched at run time by their ordinary clients and never shipped from here."""

import gzip
import subprocess
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

Registry = Literal["debian", "pypi", "pypi-source", "npm"]
"""Where a package comes from; "pypi" takes the wheel, "pypi-source" the source archive."""


class Package(BaseModel):
    """One package of a registry.

    Attributes:
        version: exact; the registry's choice when None, as for Debian, where the release decides.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    registry: Registry
    name: str
    version: str | None = None

    def __str__(self) -> str:
        """As one would ask for it."""
        return f"{self.registry} {self.name}{f' {self.version}' if self.version else ''}"


class PackageError(RuntimeError):
    """A package could not be had; the message names it and ends with what its client said."""


def fetch(package: Package, cache: Path) -> Path:
    """Download and unpack a package once, without installing it. (pip asks a source archive for its metadata.)

    Args:
        cache: folder that keeps what was fetched, from one run to the next.

    Returns:
        The folder with the package's files as they lie in the archive.

    Raises:
        PackageError: the client is missing, or refuses.
    """
    folder = cache / package.registry / package.name
    done = folder / ".fetched"
    if done.exists():
        return folder / "files"
    archives, files = folder / "archive", folder / "files"
    for each in (archives, files):
        each.mkdir(parents=True, exist_ok=True)
    _run(_download(package, archives), archives, package)
    found = sorted(path for path in archives.iterdir() if path.suffix in (".deb", ".whl", ".gz", ".tgz", ".zip"))
    if not found:
        msg = f"{package}: the client left no archive"
        raise PackageError(msg)
    _unpack(found[-1], files, package)
    done.touch()
    return files


def read_text(path: Path) -> str:
    """A text file, also one that Debian compressed; bytes that are no UTF-8 are dropped."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return data.decode("utf-8", errors="ignore")


def _download(package: Package, folder: Path) -> Sequence[str]:
    exact = f"{package.name}=={package.version}" if package.version else package.name
    # uv makes environments without pip, and has no download of its own: the pip on the path.
    pip = ("pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", str(folder))
    if package.registry == "debian":  # the archive, because installed systems often leave /usr/share/doc out
        return ("apt-get", "download", f"{package.name}={package.version}" if package.version else package.name)
    if package.registry == "npm":
        return ("npm", "pack", "--silent", exact.replace("==", "@"))
    return (*pip, *(("--no-binary", ":all:") if package.registry == "pypi-source" else ()), exact)


def _unpack(archive: Path, files: Path, package: Package) -> None:
    if archive.suffix == ".deb":
        _run(("dpkg-deb", "-x", str(archive), str(files)), files, package)
    elif archive.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(files)
    else:
        with tarfile.open(archive) as source:
            source.extractall(files, filter="data")


def _run(command: Sequence[str], folder: Path, package: Package) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        msg = f"{package}: {command[0]} is not installed"
        raise PackageError(msg) from error
    except subprocess.CalledProcessError as error:
        msg = f"{package}: {' '.join(command)} failed: {error.stderr[-500:]}"
        raise PackageError(msg) from error
