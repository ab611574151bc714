"""The folder of a service: gone with it, whoever ends it."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.spool import PREFIX, service_spool
from engine.config import ROOT

HOLD = """
import sys, time
from app.spool import service_spool
with service_spool(sys.argv[1]) as folder:
    (folder / "upload").write_bytes(b"what a caller said")
    print(folder, flush=True)
    sys.stdin.read()
"""


class Holder:
    """Another process with a spool folder in `parent`."""

    def __init__(self, parent: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(parent)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.folder = Path(self.process.stdout.readline().strip())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    made = Holder(tmp_path)
    yield made
    made.kill()


def test_what_a_killed_service_left_is_removed_by_the_next(holder: Holder, tmp_path: Path) -> None:
    with service_spool(str(tmp_path)) as beside:
        assert (holder.folder / "upload").exists()
        holder.kill()
        assert (holder.folder / "upload").exists()
    with service_spool(str(tmp_path)):
        assert not holder.folder.exists()
    assert not beside.exists()
    assert list(tmp_path.iterdir()) == []


def test_only_folders_of_ours_are_removed(tmp_path: Path) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / "file").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / f"{PREFIX}file").touch()
    (tmp_path / f"{PREFIX}link").symlink_to(elsewhere)
    (stale := tmp_path / f"{PREFIX}stale").mkdir()
    (stale / "link").symlink_to(elsewhere)
    with service_spool(str(tmp_path)) as own:
        assert not stale.exists()
        left = {path.name for path in tmp_path.iterdir()} - {own.name}
    assert left == {"elsewhere", "other", f"{PREFIX}file", f"{PREFIX}link"}
    assert (elsewhere / "file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_folders_of_other_users_are_left_alone(tmp_path: Path) -> None:
    (theirs := tmp_path / f"{PREFIX}theirs").mkdir()
    os.chown(theirs, 12345, 12345)
    with service_spool(str(tmp_path)):
        assert theirs.exists()


def test_one_that_is_just_being_made_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another service sweeps between the making of the folder and its lock."""
    made: list[Path] = []
    lock = fcntl.flock

    def swept(descriptor: int, operation: int) -> None:
        if not made:
            (folder,) = tmp_path.glob(f"{PREFIX}*")
            made.append(folder)
            folder.rmdir()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", swept)
    with service_spool(str(tmp_path)) as folder:
        assert folder.exists()
        assert folder not in made
