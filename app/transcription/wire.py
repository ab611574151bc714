"""Messages between the service and a decode worker: pickles with their length before them, on a Unix socket.

A worker handles hostile bytes, so the service trusts nothing that comes from one: a message may name the values and
errors of this domain and Python's own errors, and nothing else that could run code when it is read.
"""

import asyncio
import io
import pickle
import socket
import struct
from typing import Any, Final

_LENGTH: Final = struct.Struct("<Q")
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


def pack(message: object) -> bytes:
    """A message as it goes over the socket."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


async def read(stream: asyncio.StreamReader) -> Any:
    """The next message of a worker.

    Raises:
        EOFError: the worker is gone, or has sent what no worker sends.
    """
    try:
        (length,) = _LENGTH.unpack(await stream.readexactly(_LENGTH.size))
        if length > _MOST_BYTES:
            msg = f"a decode worker announced a message of {length} bytes"
            raise EOFError(msg)
        body = await stream.readexactly(length)
    except (asyncio.IncompleteReadError, OSError) as error:
        raise EOFError(str(error)) from error
    try:
        return _Reader(io.BytesIO(body)).load()
    except Exception as error:  # what a broken pickle raises is not bounded
        msg = f"a decode worker sent no message: {error}"
        raise EOFError(msg) from error


def receive(connection: socket.socket) -> Any:
    """The next message of the service, in a worker.

    Raises:
        EOFError: the service is gone.
    """
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return pickle.loads(_exactly(connection, length))  # noqa: S301  # from the service, which is trusted


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        if not (part := connection.recv(length - len(data))):
            raise EOFError
        data += part
    return bytes(data)
