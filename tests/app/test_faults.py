"""Faults of the parts, seen from the outside: who is hit by them, and who is not."""

import asyncio
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from pydantic import SecretStr

from engine.scripted import ScriptedEngine
from tests.audio_factory import clip, encode, pcm16, wav
from tests.conftest import MakeClient
from tests.holding import Holding
from tests.live import eventually, live_runtime

SPEECH = wav(pcm16(clip("library-us-female.wav")))
STORY = encode(np.tile(clip("harbor-story-long.flac"), 6), "opus")
LONG = encode(np.tile(clip("harbor-story-long.flac"), 60), "opus")


def busy_worker() -> psutil.Process | None:
    """The one that has used the most processor time in the last moment."""
    nurseries = [child for child in psutil.Process().children() if "app.transcription.nursery" in child.cmdline()]
    workers = [worker for each in nurseries for worker in each.children()]
    before = [sum(worker.cpu_times()[:2]) for worker in workers]
    time.sleep(0.2)
    used = [sum(worker.cpu_times()[:2]) - then for worker, then in zip(workers, before, strict=True)]
    return workers[int(np.argmax(used))] if used and max(used) > 0.01 else None


async def hit(number: signal.Signals) -> None:
    """Send a signal to a worker that is decoding."""
    while (worker := await asyncio.to_thread(busy_worker)) is None:
        pass
    worker.send_signal(number)


async def test_a_worker_that_dies_twice_costs_one_request_and_no_other_notices() -> None:
    async with live_runtime() as (client, runtime):
        long = asyncio.create_task(client.post("/v1/transcribe", content=LONG))
        for killed in (1, 2):
            await hit(signal.SIGKILL)
            await eventually(lambda: runtime.pool.restarts >= killed, seconds=10)  # noqa: B023
            assert (await client.post("/v1/transcribe", content=SPEECH)).status_code == 200
        failed = await long

    assert failed.status_code == 415
    assert failed.json()["error"]["code"] == "unsupported_or_corrupt"
    assert runtime.pool.restarts == 2


async def test_a_worker_that_hangs_costs_one_request_and_no_other_notices() -> None:
    async with live_runtime(limits={"decode_timeout_seconds": 3.0}) as (client, runtime):
        long = asyncio.create_task(client.post("/v1/transcribe", content=LONG))
        await hit(signal.SIGSTOP)
        assert (await client.post("/v1/transcribe", content=SPEECH)).status_code == 200
        failed = await long
        await eventually(lambda: runtime.pool.busy == 0, seconds=5)

    assert failed.status_code == 504
    assert failed.json()["error"]["code"] == "decode_timeout"
    assert runtime.pool.restarts == 1


async def test_an_engine_that_finishes_nothing_turns_ready_off_until_it_does(make_client: MakeClient) -> None:
    holding = Holding("late")
    async with make_client(ScriptedEngine(holding), server={"stall_seconds": 0.3}) as client:
        stuck = asyncio.create_task(client.post("/v1/transcribe", files={"file": SPEECH}))
        while (stalled := await client.get("/health/ready")).status_code == 200:
            pass
        refused = await client.post("/v1/transcribe", files={"file": SPEECH})
        holding.gate.set()
        late = await stuck
        while (ready := await client.get("/health/ready")).status_code != 200:
            pass

    assert stalled.json()["phase"].startswith("stalled")
    assert int(stalled.headers["Retry-After"]) >= 1
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "not_ready"
    assert late.json()["text"] == "late"
    assert ready.json()["phase"] == "ready"


async def test_an_idle_engine_is_no_stall(make_client: MakeClient) -> None:
    async with make_client(server={"stall_seconds": 0.05}) as client:
        await asyncio.sleep(0.5)
        assert (await client.get("/health/ready")).status_code == 200


@pytest.mark.parametrize("known", [False, True])
async def test_single_clients_are_limited_where_they_are_known(known: bool, make_client: MakeClient) -> None:
    key = "no-secret-but-a-key"
    keys = {"security": {"api_keys": SecretStr(f"team-a {key}")}} if known else {}
    async with make_client(clients={"requests_per_minute": 2}, **keys) as client:
        client.headers["Authorization"] = f"Bearer {key}"
        answers = [await client.post("/v1/transcribe", files={"file": SPEECH}) for _ in range(3)]

    assert [answer.status_code for answer in answers] == [200, 200, 429 if known else 200]
    if known:
        assert answers[-1].json()["error"]["code"] == "rate_limited"
        assert 20 <= int(answers[-1].headers["Retry-After"]) <= 30


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of 1 MiB."""
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)], check=False)
    if made.returncode != 0:
        pytest.skip("nobody but root may mount a file system")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("route", ["/v1/transcribe", "/v1/audio/transcriptions"])
@pytest.mark.parametrize("fills", ["the upload", "the waveform"])
async def test_a_full_disk_costs_the_requests_that_fill_it(fills: str, route: str, small_disk: Path) -> None:
    uploads = {"the upload": wav(bytes(2 << 20)), "the waveform": encode(np.tile(clip("jfk-human.wav"), 6), "opus")}
    async with live_runtime(server={"spool_dir": str(small_disk)}) as (client, runtime):
        full = await client.post(route, files={"file": uploads[fills]})
        await eventually(lambda: not list(runtime.spool.iterdir()), seconds=5)
        after = await client.post(route, files={"file": SPEECH})

    assert full.status_code == 507
    assert full.json()["error"]["code"] == "storage_full"
    assert int(full.headers["Retry-After"]) >= 1
    assert str(small_disk) not in full.text
    assert after.status_code == 200


async def test_a_clock_that_jumps_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of wall clocks: what waits and what is limited goes by the monotonic one."""
    limits = {"decode_timeout_seconds": 60.0, "inference_timeout_seconds": 60.0, "upload_idle_seconds": 60.0}
    jump = [0.0]
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + jump[0])
    async with live_runtime(limits=limits, server={"stall_seconds": 60.0}) as (client, runtime):
        answers = []
        for days in (365, -365):
            story = asyncio.create_task(client.post("/v1/transcribe", content=STORY))
            await eventually(lambda: runtime.pool.busy, seconds=20)
            jump[0] += days * 86400.0
            answers += [await client.post("/v1/transcribe", content=SPEECH), await story]
            assert (await client.get("/health/ready")).status_code == 200

    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["text"] for answer in answers}) == 2
    assert runtime.pool.restarts == 0
