"""What becomes of a disk that is full."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from app.transcription.exceptions import StorageFullError

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def storing() -> Iterator[None]:
    """Around what writes uploads or decoded audio.

    Raises:
        StorageFullError: there is no room left for what the block wanted to write.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise StorageFullError from error
        raise
