import asyncio
import os
import pickle
import struct
from typing import Any

import pytest

from app.transcription import wire
from app.transcription.exceptions import InvalidFieldError, Limit, TooLargeError
from app.transcription.types import AudioWarning, Postponed, PreparedAudio, SegmentSpan
from engine import messages

PREPARED = PreparedAudio(
    n_samples=3,
    n_channels=1,
    seconds=1.0,
    segments=(SegmentSpan(0, 2), SegmentSpan(2, 3, 1)),
    warnings=(AudioWarning("truncated", "It ends early."),),
    decode_seconds=0.1,
    segment_seconds=0.2,
)


async def read(*parts: bytes) -> Any:
    stream = asyncio.StreamReader()
    for part in parts:
        stream.feed_data(part)
    stream.feed_eof()
    return await wire.read(stream)


@pytest.mark.parametrize("message", [("done", PREPARED), ("asks", 61.5), ("done", Postponed(61.5)), ("done", None)])
async def test_what_workers_say_arrives_whole(message: object) -> None:
    assert await read(messages.pack(message)) == message


@pytest.mark.parametrize(
    "error",
    [
        TooLargeError("long", limit=Limit("audio seconds", 1.0, "OMNIHEAR_LIMITS_MAX_AUDIO_SECONDS")),
        InvalidFieldError("bad", param="audio", code="exact"),
        FileNotFoundError(2, "gone"),
        MemoryError(),
    ],
)
async def test_errors_arrive_whole(error: Exception) -> None:
    kind, arrived = await read(messages.pack(("failed", error)))

    assert kind == "failed"
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert arrived.__dict__ == error.__dict__


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch /tmp/evil",)


class Sneaky:
    def __reduce__(self) -> tuple[object, ...]:
        return eval, ("1 + 1",)


@pytest.mark.parametrize("message", [Evil(), Sneaky(), ("done", os.getpid), struct.Struct])
async def test_nothing_else_is_built_from_what_a_worker_sends(message: object) -> None:
    with pytest.raises(EOFError, match="names"):
        await read(messages.pack(message))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        struct.pack("<Q", 100) + b"short",
        struct.pack("<Q", 2**60),
        struct.pack("<Q", 3) + b"\xff\xff\xff",
        struct.pack("<Q", 1) + b".",
        struct.pack("<Q", 0),
        struct.pack("<Q", len(body := pickle.dumps("x")[:-1])) + body,
    ],
)
async def test_what_is_no_message_counts_as_the_end_of_the_worker(data: bytes) -> None:
    with pytest.raises(EOFError):
        await read(data)
