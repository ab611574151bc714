import asyncio
import socket
import struct
import threading
from typing import Any

import numpy as np
import pytest

from engine import messages


async def read(data: bytes, most_bytes: int = 2**20) -> Any:
    stream = asyncio.StreamReader()
    stream.feed_data(data)
    stream.feed_eof()
    return await messages.read(stream, most_bytes=most_bytes)


@pytest.mark.parametrize("message", [None, "", ("a", 1), {"b": [2.5]}])
async def test_a_message_arrives_whole(message: object) -> None:
    assert await read(messages.pack(message)) == message


def test_a_message_larger_than_what_a_socket_holds_arrives_whole() -> None:
    waveform = np.arange(480_000, dtype=np.float32)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sending = threading.Thread(target=ours.sendall, args=(messages.pack(waveform),))
        sending.start()
        arrived = messages.receive(theirs)
        sending.join()

    np.testing.assert_array_equal(arrived, waveform)


@pytest.mark.parametrize("data", [b"", b"\x01", struct.pack("<Q", 100) + b"short", struct.pack("<Q", 2**40)])
async def test_what_ends_early_or_announces_too_much_is_the_end(data: bytes) -> None:
    with pytest.raises(EOFError):
        await read(data)


def test_the_end_of_a_blocking_sender_is_the_end() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs, pytest.raises(EOFError):
        messages.receive(theirs)
