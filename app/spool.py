"""Where uploads and decoded audio lie while they are worked on: one folder for each service, gone with it.

A service that is killed leaves its folder behind, and with it what callers sent. The next one on the machine removes
it: a folder whose lock (flock(2)) nobody holds belongs to a process that has ended, however that ended.
"""

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

PREFIX: Final = "omnihear-spool-"


@contextmanager
def service_spool(parent: str) -> Iterator[Path]:
    """A folder of this service alone, after those that dead ones left are gone.

    Args:
        parent: where to make it, the system's place for temporary files when empty.

    Raises:
        OSError: it cannot be made there.
    """
    base = Path(parent or tempfile.gettempdir())
    _sweep(base)
    folder, lock = _make(base)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)  # last, so that nobody else removes it at the same time


def _make(base: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder, lock
        os.close(lock)  # another service, starting at this moment, took it for one that was left


def _sweep(base: Path) -> None:
    """Remove the folders in `base` that are ours and that nobody uses."""
    for folder in base.glob(f"{PREFIX}*"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # no folder, not ours to read, or gone by now
            continue
        try:
            if os.fstat(lock).st_uid != os.geteuid():
                continue
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
        except BlockingIOError:  # it is in use
            continue
        except OSError as error:  # a file system without locks, or a file of somebody else's in it
            logger.warning("%s was left by a service that has ended, and cannot be removed: %s", folder, error)
        else:
            logger.info("removed %s, left by a service that has ended", folder)
        finally:
            os.close(lock)
