"""Puts servers through a plan."""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.clips import Clip, Cuts, demo_clips, read_recording
from benchmarks.connections import Connections
from benchmarks.dialects import Dialect
from benchmarks.gpu import GpuBusy
from benchmarks.load import Asked, Limits, ask, run, send
from benchmarks.processes import Memory, PeakMemory, ProcessTree
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
        turns: parts of each load, between which the other servers have theirs; where only one runs, 1.
    """

    first: Clip
    warm_up: list[Clip]
    loads: list[tuple[Scenario, list[Clip]]]
    spoken: list[Clip]
    limits: Limits
    start_seconds: float
    server_seconds: float
    turns: int = 1


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
    turns: int = 1,
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
        turns=turns,
    )


@dataclass(slots=True, kw_only=True)
class Party:
    """A server that is measured.

    Attributes:
        command: that started it, or its address.
        begun: when it was started, on the monotonic clock.
        tree: its processes, where they can be seen.
        last_words: says how it ended, where it has.
    """

    name: str
    url: str
    dialect: Dialect
    command: str = ""
    begun: float = field(default_factory=time.monotonic)
    start: Start | None = None
    tree: ProcessTree | None = None
    last_words: Callable[[], str | None] = lambda: None


def measure_launched(launches: Sequence[tuple[str, Launch, Dialect]], plan: Plan, say: Say) -> list[Measured]:
    """Start servers, measure them together, stop them. One that cannot be started or asked fails them all."""
    try:
        with ExitStack() as stack:
            parties = [
                stack.enter_context(_started(name, launch, dialect, plan, say)) for name, launch, dialect in launches
            ]
            return asyncio.run(measure(parties, plan, say))
    except (RuntimeError, httpx.HTTPError) as error:
        say(f"{', '.join(name for name, _, _ in launches)}: {error}")
        return [Measured(name=name, command=str(launch), failure=str(error)) for name, launch, _ in launches]


@contextmanager
def _started(name: str, launch: Launch, dialect: Dialect, plan: Plan, say: Say) -> Iterator[Party]:
    say(f"{name}: {launch}")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, running(launch, Path(folder), plan.start_seconds) as server:
        tree = ProcessTree(server.process.pid)
        start = Start(ready_seconds=server.ready_seconds, cpu_seconds=tree.cpu_seconds(), memory=tree.memory())
        say(f"{name}: ready after {start.ready_seconds:.1f} s")
        yield Party(
            name=name,
            url=server.url,
            dialect=dialect,
            command=str(launch),
            begun=begun,
            start=start,
            tree=tree,
            last_words=lambda: None if server.process.poll() is None else server.last_words(),
        )


async def measure(parties: Sequence[Party], plan: Plan, say: Say) -> list[Measured]:
    """First answer, warm-up, every load, words; of several servers each load in turns."""
    firsts = []
    for party in parties:
        async with connect(party.url) as client:
            party.dialect = await party.dialect.prepared(client)
            firsts.append(await send(client, party.dialect, plan.first))
            await run(client, party.dialect, Scenario(callers=len(plan.warm_up)), plan.warm_up, plan.limits)
    begun = min(party.begun for party in parties)
    loads: list[list[LoadOnServer]] = [[] for _ in parties]
    left_out = []
    for scenario, clips in plan.loads:
        if time.monotonic() > begun + plan.server_seconds:
            left_out.append(str(scenario))
            continue
        for party, of_party, taken in zip(parties, loads, await _in_turns(parties, scenario, clips, plan), strict=True):
            of_party.append(taken)
            load = taken.load
            answered = f"{len(load.latencies)} of {load.requests}"
            say(f"{party.name}: {scenario}: {load.clips_per_second:.2f} clips/s, {answered}")
    no_time = f"no time for {', '.join(left_out)}" if left_out else None
    return [
        Measured(
            name=party.name,
            command=party.command or party.url,
            start=party.start,
            first_seconds=first.seconds if first.error is None else None,
            loads=tuple(of_party),
            heard=await _heard(party, plan.spoken),
            # What it did not answer is among the errors; its last words say why.
            failure=party.last_words() or no_time,
        )
        for party, first, of_party in zip(parties, firsts, loads, strict=True)
    ]


async def _in_turns(
    parties: Sequence[Party], scenario: Scenario, clips: Sequence[Clip], plan: Plan
) -> list[LoadOnServer]:
    """Put each server under a load, in `plan.turns` parts and with another one first each time."""
    taken: dict[int, _Taken] = {}
    for turn in range(plan.turns):
        part = clips[turn :: plan.turns]
        order = list(enumerate(parties))
        for number, party in order[turn % len(order) :] + order[: turn % len(order)]:
            # Connections of its own: those of the load before may have been closed by the server meanwhile.
            async with connect(party.url) as client:
                latest = await _watched(party.tree, ask(client, party.dialect, scenario, part, plan.limits))
            taken[number] = taken[number] + latest if number in taken else latest
    return [taken[number].on_server(scenario) for number in range(len(parties))]


async def _heard(party: Party, spoken: Sequence[Clip]) -> tuple[Heard, ...]:
    async with connect(party.url) as client:
        answers = [await send(client, party.dialect, clip) for clip in spoken]
    return tuple(Heard.of(clip, answer.text, answer.error) for clip, answer in zip(spoken, answers, strict=True))


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a load was answered, and what it took of the server's machine."""

    asked: Asked
    cpu_seconds: float | None = None
    memory: Memory | None = None
    gpu_seconds: float | None = None

    def __add__(self, later: "_Taken") -> "_Taken":
        memory = later.memory
        if self.memory is not None and memory is not None:
            memory = self.memory.or_more(memory)
        return _Taken(
            self.asked + later.asked,
            None if self.cpu_seconds is None else self.cpu_seconds + (later.cpu_seconds or 0.0),
            memory,
            None if self.gpu_seconds is None else self.gpu_seconds + (later.gpu_seconds or 0.0),
        )

    def on_server(self, scenario: Scenario) -> LoadOnServer:
        return LoadOnServer(
            load=self.asked.load(scenario),
            cpu_seconds=self.cpu_seconds,
            memory=self.memory,
            gpu_busy=None if self.gpu_seconds is None else self.gpu_seconds / self.asked.seconds,
        )


async def _watched(tree: ProcessTree | None, asking: Awaitable[Asked]) -> _Taken:
    """Ask, and take down what the server spends on it where its processes can be seen."""
    if tree is None:
        return _Taken(await asking)
    before = tree.cpu_seconds()
    with PeakMemory(tree) as memory, GpuBusy() as gpu:
        asked = await asking
    gpu_seconds = None if gpu.share is None else gpu.share * asked.seconds
    return _Taken(asked, tree.cpu_seconds() - before, memory.peak, gpu_seconds)


def connect(url: str) -> httpx.AsyncClient:
    """A client with as many connections as there are callers."""
    return httpx.AsyncClient(base_url=url, timeout=REQUEST_SECONDS, transport=Connections(), trust_env=False)
