"""Messages between processes of the service: pickles with their length before them, on a Unix socket."""

import asyncio
import pickle
import socket
import struct
from collections.abc import Callable
from typing import Any, Final

_LENGTH: Final = struct.Struct("<Q")


def pack(message: object) -> bytes:
    """A message as it goes over the socket."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


async def read(stream: asyncio.StreamReader, *, most_bytes: int, load: Callable[[bytes], Any] = pickle.loads) -> Any:
    """The next message.

    Args:
        most_bytes: of one message.
        load: reads a pickle; another than pickle's own where the sender is not trusted.

    Raises:
        EOFError: the sender is gone, or has announced more than `most_bytes`.
    """
    try:
        (length,) = _LENGTH.unpack(await stream.readexactly(_LENGTH.size))
        if length > most_bytes:
            msg = f"a message of {length} bytes was announced, {most_bytes} is the most"
            raise EOFError(msg)
        body = await stream.readexactly(length)
    except (asyncio.IncompleteReadError, OSError) as error:
        raise EOFError(str(error)) from error
    return load(body)


def receive(connection: socket.socket) -> Any:
    """The next message of a sender that is trusted, on a blocking socket.

    Raises:
        EOFError: the sender is gone.
    """
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return pickle.loads(_exactly(connection, length))  # noqa: S301  # trusted


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        if not (part := connection.recv(length - len(data))):
            raise EOFError
        data += part
    return bytes(data)
