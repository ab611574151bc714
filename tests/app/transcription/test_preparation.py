"""Preparing uploads in worker processes, which stay small and may die."""

import errno
import hashlib
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
import numpy as np
import psutil
import pytest

from app.transcription import isolation, preparation, worker
from app.transcription.exceptions import (
    CorruptAudioError,
    EmptyAudioError,
    InvalidInputError,
    MalformedRequestError,
    NotAudioError,
    PreparationError,
    PreparationTimeoutError,
    StorageFullError,
    TooLargeError,
)
from app.transcription.nursery import Nursery
from app.transcription.pool import Pool
from app.transcription.preparation import Preparer, map_waveform
from app.transcription.segmentation import SpeechDetector, cut
from app.transcription.types import AudioLimits, Postponed, PreparationPlan, PreparedAudio
from engine.interface import SAMPLE_RATE
from tests import audio_factory as factory
from tests.audio_factory import wav
from tests.waiting import eventually

CLIP = "library-us-female.wav"
MIB = 1 << 20
Result = TypeVar("Result")


def make(pool: Pool, *, limits: AudioLimits | None = None, timeout_seconds: float = 60, **options: Any) -> Preparer:
    options = {"long_decodes": 1, "long_seconds": 3600.0} | options
    return Preparer(limits=limits or AudioLimits(), pool=pool, timeout_seconds=timeout_seconds, **options)


NURSERY = Nursery()
"""Of this module alone, so that its workers can be told from those of other tests."""


@pytest.fixture(scope="module")
async def pool() -> AsyncIterator[Pool]:
    """One worker, for the tests of this module."""
    with closing(NURSERY):
        made = Pool(1, born_by=NURSERY)
        await made.start()
        yield made
        await made.close()


@pytest.fixture(scope="module")
def preparer(pool: Pool) -> Preparer:
    return make(pool)


def put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


@pytest.fixture
def upload(tmp_path: Path) -> Path:
    path = tmp_path / "upload"
    put(path, factory.encode(factory.clip(CLIP), "m4a"))
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "waveform"


class Trap:
    """An upload that holds a worker: a named pipe, whose bytes never come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: list[int] = []
        os.mkfifo(path)

    async def sprung(self) -> psutil.Process:
        """Wait until a worker is held, and return it."""
        self._open.append(await anyio.to_thread.run_sync(os.open, self.path, os.O_WRONLY))
        (held,) = workers()
        return held

    def hold_forever(self) -> None:
        """Let workers open it, now or later, to no avail."""
        self._open.append(os.open(self.path, os.O_RDWR))

    def close(self) -> None:
        for descriptor in self._open:
            os.close(descriptor)


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[Trap]:
    made = Trap(tmp_path / "trap")
    yield made
    made.close()


def workers() -> list[psutil.Process]:
    """Of all pools of this module; tests leave none behind."""
    alive = psutil.Process(NURSERY._pid).children()
    return [worker for worker in alive if worker.status() != psutil.STATUS_ZOMBIE]


async def in_worker(pool: Pool, function: Callable[..., Result], *args: object) -> Result:
    return await pool.run(function, *args, seconds=60)


def peak_memory() -> int:
    """Of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def imported() -> list[str]:
    return sorted(sys.modules)


def write_to_all_outputs() -> str:
    print("a line")  # noqa: T201
    for descriptor in (1, 2):
        os.write(descriptor, b"a line from native code\n" * 50_000)  # more than any pipe holds
    return "written"


def hard_limits() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_CORE)[1], resource.getrlimit(resource.RLIMIT_DATA)[1]


def reach(port: int) -> str:
    """What comes of connecting to this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "connected"


def may_have_namespaces() -> bool:
    """Whether a process of this user may give up its network."""
    program = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x50000000) != 0)"
    return subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def privileges() -> dict[str, str]:
    status = Path("/proc/self/status").read_text()
    return dict(re.findall(r"^(CapPrm|CapEff|NoNewPrivs):\s+(\w+)$", status, re.MULTILINE))


def compute_on() -> None:
    """Goes on after its end, as a decoder that somebody has taken over."""

    def spin() -> None:
        while True:
            pass

    threading.Thread(target=spin, daemon=True).start()


def allocate(n_bytes: int) -> int:
    return len(bytearray(n_bytes))


async def test_waveform_segments_and_times_come_back(preparer: Preparer, upload: Path, target: Path) -> None:
    prepared = await preparer.prepare(upload, target)
    (waveform,) = map_waveform(target, prepared)
    assert waveform.dtype == np.float32
    assert waveform.shape == (prepared.n_samples,)
    assert prepared.seconds == prepared.n_samples / SAMPLE_RATE == pytest.approx(6.225, abs=0.2)
    assert waveform.nbytes == (await anyio.Path(target).stat()).st_size
    assert prepared.decode_seconds > 0
    assert prepared.segment_seconds > 0
    detector = SpeechDetector()
    detector.feed(np.array(waveform))
    assert prepared.segments == cut(detector.finish())
    assert len(prepared.segments) == 1
    assert prepared.warnings == ()


async def test_silence_has_no_segments(preparer: Preparer, upload: Path, target: Path) -> None:
    put(upload, wav(factory.pcm16(factory.silence(5))))
    assert (await preparer.prepare(upload, target)).segments == ()


async def test_segment_lengths_are_those_asked_for(pool: Pool, preparer: Preparer, upload: Path, target: Path) -> None:
    put(upload, factory.encode(factory.clip("harbor-story-long.flac"), "flac"))
    long = (await preparer.prepare(upload, target)).segments
    cutting = make(pool, max_segment_seconds=12, target_segment_seconds=6)
    short = await cutting.prepare(upload, target)
    assert len(long) == 2
    assert len(short.segments) > 4
    assert all(span.end - span.start <= 12 * SAMPLE_RATE for span in short.segments)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", MalformedRequestError),
        (b"<html></html>", NotAudioError),
        (wav(b""), EmptyAudioError),
        (b"fLaC" + bytes(100), CorruptAudioError),
        (wav(bytes(320), channels=9), TooLargeError),
    ],
)
async def test_errors_arrive_whole(
    preparer: Preparer, upload: Path, target: Path, data: bytes, error: type[InvalidInputError]
) -> None:
    put(upload, data)
    with pytest.raises(error) as caught:
        await preparer.prepare(upload, target)
    assert caught.value.message
    assert caught.value.param == "audio"
    assert (caught.value.limit is None) == (error is not TooLargeError)


async def test_workers_import_no_engine_and_no_http(pool: Pool, preparer: Preparer) -> None:
    modules = {name.partition(".")[0] for name in await in_worker(pool, imported)}
    assert {"av", "numpy", "onnxruntime", "soxr"} <= modules
    assert not {"torch", "vllm", "transformers", "fastapi", "starlette", "silero_vad"} & modules


async def test_output_in_a_worker_does_not_disturb_its_answers(pool: Pool, preparer: Preparer) -> None:
    (before,) = workers()
    assert await in_worker(pool, write_to_all_outputs) == "written"
    assert workers() == [before]


async def test_a_worker_leaves_no_core_and_takes_bounded_memory(pool: Pool, preparer: Preparer) -> None:
    core, data = await in_worker(pool, hard_limits)
    assert core == 0
    assert 0 < data < 2 * isolation.MEMORY_GROWTH
    with pytest.raises(MemoryError):
        await in_worker(pool, allocate, isolation.MEMORY_GROWTH)


async def test_a_worker_reaches_no_network(pool: Pool, preparer: Preparer) -> None:
    if not may_have_namespaces():
        pytest.skip("nobody without privileges may make namespaces here")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert reach(port := listening.getsockname()[1]) == "connected"
        assert await in_worker(pool, reach, port) == "ENETUNREACH"


async def test_a_worker_has_no_privileges(pool: Pool, preparer: Preparer) -> None:
    found = await in_worker(pool, privileges)
    assert found["NoNewPrivs"] == "1"
    files_only = 1 << 1 | 1 << 2  # what root keeps, see `isolation.confine`
    assert int(found["CapPrm"], 16) & ~files_only == int(found["CapEff"], 16) & ~files_only == 0


async def test_a_worker_that_computes_on_after_its_task_is_ended(pool: Pool, preparer: Preparer) -> None:
    (before,) = workers()
    await pool.run(compute_on, seconds=0.5)
    await eventually(lambda: not before.is_running(), seconds=60)
    assert await in_worker(pool, hard_limits)


async def peak_after_a_clip(pool: Pool, preparer: Preparer, upload: Path, target: Path) -> int:
    """Bytes; a worker that has done nothing yet lacks 30 MiB of what each needs."""
    await preparer.prepare(upload, target)
    return await in_worker(pool, peak_memory)


async def test_half_an_hour_takes_no_more_memory_than_seconds(
    pool: Pool, preparer: Preparer, upload: Path, target: Path
) -> None:
    before = await peak_after_a_clip(pool, preparer, upload, target)
    story = factory.pcm16(factory.clip("harbor-story-long.flac"))
    put(upload, wav((story * 37)[: 2 * 1800 * SAMPLE_RATE]))
    prepared = await preparer.prepare(upload, target)
    assert prepared.seconds == 1800
    assert 60 <= len(prepared.segments) <= 80
    assert await in_worker(pool, peak_memory) - before < 32 * MIB


def flac_bomb() -> bytes:
    """Silence on eight channels, a thousandth of what it decodes to."""
    silence = np.zeros((8, 192_000 * 4), np.float32)
    return factory.encode(silence, factory.Format("flac", "flac", 192_000, "7.1"), from_rate=192_000)


async def test_bombs_are_refused_in_little_memory(pool: Pool, preparer: Preparer, upload: Path, target: Path) -> None:
    before = await peak_after_a_clip(pool, preparer, upload, target)
    bombs: dict[bytes, AudioLimits] = {
        wav(bytes(40 * MIB), rate=655_350, channels=8): AudioLimits(),
        wav(bytes(40 * MIB), rate=192_000, channels=8): AudioLimits(max_decoded_bytes=32 * MIB),
        flac_bomb(): AudioLimits(max_decoded_bytes=8 * MIB),
    }
    for data, limits in bombs.items():
        put(upload, data)
        with pytest.raises(TooLargeError):
            await make(pool, limits=limits).prepare(upload, target)
    assert await in_worker(pool, peak_memory) - before < 64 * MIB


async def test_broken_files_never_cost_a_worker(preparer: Preparer, upload: Path, target: Path) -> None:
    (before,) = workers()
    files = factory.garbage(200)
    assert len(files) >= 200
    for name, data in files:
        put(upload, data)
        try:
            prepared = await preparer.prepare(upload, target)
        except InvalidInputError:
            continue
        assert "random" not in name
        assert 0 < prepared.n_samples < 10 * SAMPLE_RATE, name
    assert workers() == [before]


async def test_cancelling_kills_the_worker_and_another_takes_over(
    preparer: Preparer, trap: Trap, upload: Path, target: Path
) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(preparer.prepare, trap.path, target)
        held = await trap.sprung()
        group.cancel_scope.cancel()
    assert not held.is_running()
    assert workers() == []
    assert (await preparer.prepare(upload, target)).segments


@pytest.mark.parametrize("turns_of_the_loop", range(12))
async def test_cancelling_while_a_worker_starts_leaves_none_behind(
    turns_of_the_loop: int, pool: Pool, preparer: Preparer, upload: Path, target: Path
) -> None:
    (before,) = workers()
    before.kill()
    async with anyio.create_task_group() as group:
        group.start_soon(preparer.prepare, upload, target)
        for _ in range(turns_of_the_loop):
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    await pool.start()
    await eventually(lambda: len(workers()) == 1, seconds=5)  # one that was ordered and not taken ends by itself
    assert workers() != [before]


async def test_a_decode_that_takes_too_long_is_given_up(
    pool: Pool, preparer: Preparer, trap: Trap, upload: Path, target: Path
) -> None:
    (before,) = workers()
    trap.hold_forever()
    with pytest.raises(PreparationTimeoutError, match=r"0\.2 s"):
        await make(pool, timeout_seconds=0.2).prepare(trap.path, target)
    assert not before.is_running()
    assert (await preparer.prepare(upload, target)).segments


async def test_waiting_for_a_worker_does_not_count_as_decoding(
    pool: Pool, preparer: Preparer, trap: Trap, upload: Path, target: Path
) -> None:
    crowded = make(pool, timeout_seconds=30)
    async with anyio.create_task_group() as group:
        holding = anyio.CancelScope()

        async def hold() -> None:
            with holding:
                await crowded.prepare(trap.path, target.with_suffix(".held"))

        async def wait() -> None:
            with anyio.fail_after(20):
                assert (await crowded.prepare(upload, target)).segments

        group.start_soon(hold)
        await trap.sprung()
        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert crowded.waiting == 1
        assert not await anyio.Path(target).exists()
        holding.cancel()


def crash(*_: object) -> None:
    """Stands in for a decoder with a bad bug."""
    os.kill(os.getpid(), signal.SIGSEGV)


def crash_once(source: str, target: str, plan: PreparationPlan, _: object) -> PreparedAudio | Postponed:
    """Stands in for a machine that ran out of memory."""
    mark = Path(source).with_suffix(".crashed")
    if not mark.exists():
        mark.touch()
        crash()
    return worker.prepare(source, target, plan)


async def test_a_file_that_crashes_the_decoder_is_the_callers_fault(
    preparer: Preparer,
    upload: Path,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (before,) = workers()
    data = factory.encode(factory.sine(1.0), "wav")
    put(upload, data)
    with monkeypatch.context() as patch:
        patch.setattr(worker, "prepare", crash)
        with pytest.raises(CorruptAudioError, match="crashes"):
            await preparer.prepare(upload, target)
    assert not before.is_running()
    digest = hashlib.sha256(data).hexdigest()
    logged = [record.getMessage() for record in caplog.records if record.name == preparation.__name__]
    assert [digest in message for message in logged] == [True] * preparation.ATTEMPTS
    assert str(upload) not in caplog.text
    assert (await preparer.prepare(upload, target)).n_samples == SAMPLE_RATE


async def test_a_file_whose_worker_is_lost_once_is_tried_again(
    preparer: Preparer, upload: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (before,) = workers()
    monkeypatch.setattr(worker, "prepare", crash_once)
    assert (await preparer.prepare(upload, target)).segments
    assert not before.is_running()


async def test_an_idle_worker_that_died_is_replaced(preparer: Preparer, upload: Path, target: Path) -> None:
    (before,) = workers()
    before.kill()
    assert (await preparer.prepare(upload, target)).segments
    assert workers() != [before]


async def test_workers_that_cannot_start_are_not_the_callers_fault(
    upload: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with closing(Nursery()) as barren:
        with pytest.raises(PreparationError, match="cannot be started"):
            await make(Pool(1, born_by=barren)).prepare(upload, target)
        with pytest.raises(PreparationError, match="cannot be started"):
            await Pool(2, born_by=barren).start()


async def test_a_full_disk_is_not_the_callers_fault(preparer: Preparer, upload: Path) -> None:
    with pytest.raises(StorageFullError) as caught:
        await preparer.prepare(upload, Path("/dev/full"))
    assert str(upload) not in caught.value.message


async def test_a_folder_that_is_gone_is_not_the_callers_fault(preparer: Preparer, upload: Path, tmp_path: Path) -> None:
    with pytest.raises(PreparationError) as caught:
        await preparer.prepare(upload, tmp_path / "gone" / "waveform")
    assert isinstance(caught.value.__cause__, OSError)
    assert str(upload) not in caught.value.message


async def test_long_files_leave_a_worker_to_short_ones(upload: Path, target: Path, tmp_path: Path) -> None:
    pair = Pool(2, born_by=NURSERY)
    preparer = make(pair, long_seconds=10.0)
    story = tmp_path / "story"
    put(story, factory.encode(factory.clip("harbor-story-long.flac"), "flac"))
    learnt: list[float] = []
    async with anyio.create_task_group() as group:
        held = object()  # stands for another long file
        preparer._long.acquire_on_behalf_of_nowait(held)
        group.start_soon(partial(preparer.prepare, story, target, learn=learnt.append))
        await eventually(lambda: preparer.waiting == 1, seconds=30)
        assert pair.busy == 0
        assert (await preparer.prepare(upload, tmp_path / "short")).segments
        assert preparer.waiting == 1
        preparer._long.release_on_behalf_of(held)
    await pair.close()
    assert 10 < learnt[0] < 1.1 * 49.6  # too low at first, as FFmpeg reads ahead
    assert len(learnt) == 1
    assert pair.restarts == 0


async def test_a_long_file_alone_is_decoded_in_one_go(
    preparer: Preparer, pool: Pool, upload: Path, target: Path
) -> None:
    learnt: list[float] = []
    put(upload, factory.encode(factory.clip("harbor-story-long.flac"), "flac"))
    whole = await preparer.prepare(upload, target)
    impatient = make(pool, long_seconds=10.0)
    again = await impatient.prepare(upload, target, learn=learnt.append)
    assert again.segments == whole.segments
    assert len(learnt) == 1
    assert impatient._long.borrowed_tokens == 0
