"""Puts one server through a plan."""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from benchmarks.answers import Load
from benchmarks.clips import Clip, Cuts, demo_clips, read_recording
from benchmarks.connections import Connections
from benchmarks.dialects import Dialect
from benchmarks.gpu import GpuBusy
from benchmarks.load import Limits, run, send
from benchmarks.processes import PeakMemory, ProcessTree
from benchmarks.results import LoadOnServer, Measured, Start
from benchmarks.scenarios import LONGEST, SHORTEST, Scenario
from benchmarks.servers import Launch, running
from benchmarks.words import Heard

REQUEST_SECONDS = 300.0
WARM_UP = 32  # callers at most: the shapes of batches that are made at first use are seen by then

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What every server is put through, with the same clips.

    Attributes:
        first: the very first request.
        warm_up: sent before anything but the first answer is measured.
        loads: and what is sent in each.
        spoken: clips of which the words are known.
        start_seconds: in which a server has to become ready.
        server_seconds: from its start, after which no load begins.
    """

    first: Clip
    warm_up: list[Clip]
    loads: list[tuple[Scenario, list[Clip]]]
    spoken: list[Clip]
    limits: Limits
    start_seconds: float
    server_seconds: float


def make_plan(
    recordings: list[Path],
    seconds: float,
    scenarios: list[Scenario],
    requests: int,
    *,
    words: bool = True,
    limits: Limits | None = None,
    start_seconds: float = 600.0,
    server_seconds: float = float("inf"),
) -> Plan:
    """Cut the clips, each another one.

    Args:
        seconds: of the clips that are equally long.
        requests: for each closed loop, or more where there are many callers.
        words: whether the demo clips are to be heard.

    Raises:
        ValueError: no recording is long enough.
    """
    limits = limits or Limits()
    decoded = [read_recording(path) for path in recordings]
    equal = Cuts(decoded, seconds)
    mixed = Cuts(decoded, SHORTEST, LONGEST) if any(scenario.mixed for scenario in scenarios) else equal
    most = max((scenario.callers or 1 for scenario in scenarios), default=1)
    return Plan(
        first=equal.take(1)[0],
        warm_up=equal.take(min(most, WARM_UP)),
        loads=[
            (
                scenario,
                (mixed if scenario.mixed else equal).take(
                    scenario.clips(requests, limits.load_seconds), scenario.container
                ),
            )
            for scenario in scenarios
        ],
        spoken=demo_clips() if words else [],
        limits=limits,
        start_seconds=start_seconds,
        server_seconds=server_seconds,
    )


def measure_launched(name: str, launch: Launch, plan: Plan, dialect: Dialect, say: Say) -> Measured:
    """Start a server, measure it, stop it."""
    say(f"{name}: {launch}")
    begun = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder, running(launch, Path(folder), plan.start_seconds) as server:
            tree = ProcessTree(server.process.pid)
            start = Start(ready_seconds=server.ready_seconds, cpu_seconds=tree.cpu_seconds(), memory=tree.memory())
            say(f"{name}: ready after {start.ready_seconds:.1f} s")
            measured = asyncio.run(measure(name, server.url, plan, dialect, say, tree=tree, begun=begun))
            if server.process.poll() is not None:  # what it did not answer is among the errors; this says why
                measured = replace(measured, failure=server.last_words())
            return replace(measured, command=str(launch), start=start)
    except (RuntimeError, httpx.HTTPError) as error:
        say(f"{name}: {error}")
        return Measured(name=name, command=str(launch), failure=str(error))


async def measure(
    name: str,
    url: str,
    plan: Plan,
    dialect: Dialect,
    say: Say,
    *,
    tree: ProcessTree | None = None,
    begun: float | None = None,
) -> Measured:
    """First answer, warm-up, every load, words.

    Args:
        tree: its processes, where they can be seen.
        begun: when it was started, on the monotonic clock.
    """
    begun = time.monotonic() if begun is None else begun
    async with connect(url) as client:
        dialect = await dialect.prepared(client)
        first = await send(client, dialect, plan.first)
        await run(client, dialect, Scenario(callers=len(plan.warm_up)), plan.warm_up, plan.limits)
    loads, left_out = [], []
    for scenario, clips in plan.loads:
        if time.monotonic() > begun + plan.server_seconds:
            left_out.append(str(scenario))
            continue
        # Connections of its own: those of the load before may have been closed by the server meanwhile.
        async with connect(url) as client:
            loads.append(await _watched(tree, run(client, dialect, scenario, clips, plan.limits)))
        load = loads[-1].load
        say(f"{name}: {scenario}: {load.clips_per_second:.2f} clips/s, {len(load.latencies)} of {load.requests}")
    async with connect(url) as client:
        answers = [await send(client, dialect, clip) for clip in plan.spoken]
    heard = [Heard.of(clip, answer.text, answer.error) for clip, answer in zip(plan.spoken, answers, strict=True)]
    return Measured(
        name=name,
        command=url,
        first_seconds=first.seconds if first.error is None else None,
        loads=tuple(loads),
        heard=tuple(heard),
        failure=f"no time for {', '.join(left_out)}" if left_out else None,
    )


def connect(url: str) -> httpx.AsyncClient:
    """A client with as many connections as there are callers."""
    return httpx.AsyncClient(base_url=url, timeout=REQUEST_SECONDS, transport=Connections(), trust_env=False)


async def _watched(tree: ProcessTree | None, loading: Awaitable[Load]) -> LoadOnServer:
    """Run a load, and take down what the server spends on it where its processes can be seen."""
    if tree is None:
        return LoadOnServer(load=await loading)
    before = tree.cpu_seconds()
    with PeakMemory(tree) as memory, GpuBusy() as gpu:
        load = await loading
    cpu_seconds = tree.cpu_seconds() - before
    return LoadOnServer(load=load, cpu_seconds=cpu_seconds, memory=memory.peak, gpu_busy=gpu.share)
