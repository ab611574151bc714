"""What a decode worker may say to the service.

A worker handles hostile bytes, so the service trusts nothing that comes from one: a message may name the values and
errors of this domain and Python's own errors, and nothing else that could run code when it is read.
"""

import asyncio
import io
import pickle
from typing import Any, Final

from engine import messages

_MOST_BYTES: Final = 64 * 2**20  # of one message; the segments of a long file take a few MB
_VALUES: Final = {
    ("app.transcription.types", "AudioWarning"),
    ("app.transcription.types", "Postponed"),
    ("app.transcription.types", "PreparedAudio"),
    ("app.transcription.types", "SegmentSpan"),
    ("app.transcription.exceptions", "_rebuild"),
    ("app.transcription.exceptions", "Limit"),
}


class _Reader(pickle.Unpickler):
    """Reads what a worker sends."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name) if self._may_hold(module) and "." not in name else None
        if (module, name) in _VALUES or (isinstance(found, type) and issubclass(found, Exception)):
            return found
        msg = f"it names {module}.{name}"
        raise pickle.UnpicklingError(msg)

    @staticmethod
    def _may_hold(module: str) -> bool:
        return module in ("builtins", "app.transcription.exceptions", "app.transcription.types")


async def read(stream: asyncio.StreamReader) -> Any:
    """The next message of a worker.

    Raises:
        EOFError: the worker is gone, or has sent what no worker sends.
    """
    return await messages.read(stream, most_bytes=_MOST_BYTES, load=_load)


def _load(body: bytes) -> Any:
    try:
        return _Reader(io.BytesIO(body)).load()
    except Exception as error:  # what a broken pickle raises is not bounded
        msg = f"a decode worker sent no message: {error}"
        raise EOFError(msg) from error
