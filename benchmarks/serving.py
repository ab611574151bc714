"""`python -m benchmarks.serving`: this service and a peer, one after the other, on the same clips."""

import asyncio
import datetime as dt
import shlex
import sys
import tempfile
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console

from app.settings import load_settings
from benchmarks import machine, report
from benchmarks.clips import DEMO, Clip, Cuts, demo_clips, read_recording
from benchmarks.dialects import Chat, Dialect, Transcribe
from benchmarks.load import Load, closed_loop, send
from benchmarks.processes import PeakMemory, ProcessTree
from benchmarks.results import LoadOnServer, Measured, Report, Start
from benchmarks.servers import Launch, omnihear, running, stock
from benchmarks.words import Heard

RESULTS = Path(__file__).parent / "results"
TIMEOUT_SECONDS = 300.0  # of one request
RECORDINGS = [DEMO / "jfk-human.wav", DEMO / "harbor-story-long.flac"]

console = Console(stderr=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What every server is put through.

    Attributes:
        clips: for each number of callers, what they send.
        warm_up: sent before anything but the first answer is measured.
        spoken: clips of which the words are known.
    """

    first: Clip
    warm_up: list[Clip]
    clips: dict[int, list[Clip]]
    spoken: list[Clip]


def main(
    *,
    profile: Annotated[str | None, typer.Option(help="As for `omnihear serve`.")] = None,
    concurrency: Annotated[list[int] | None, typer.Option(min=1, help="Callers at once [1 and 8]; repeatable.")] = None,
    requests: Annotated[int, typer.Option(min=1, help="For each number of callers.")] = 60,
    clips: Annotated[
        list[Path] | None, typer.Option(exists=True, dir_okay=False, help="Recordings to cut from; repeatable.")
    ] = None,
    clip_seconds: Annotated[float, typer.Option(min=0.5, max=30, help="Length of the cuts.")] = 10.0,
    peer: Annotated[str, typer.Option(help="`stock` vLLM, `none`, or the URL of a running server.")] = "stock",
    output: Annotated[Path, typer.Option(help="Folder of the reports.")] = RESULTS,
) -> None:
    """Measure this service and a peer on the same clips and write a report of both."""
    if peer not in ("stock", "none") and not peer.startswith(("http://", "https://")):
        raise typer.BadParameter(f"{peer!r} is neither stock, nor none, nor a URL", param_hint="--peer")
    settings = load_settings(profile)
    here = machine.Machine.here()
    try:
        plan = make_plan(clips or RECORDINGS, clip_seconds, sorted(set(concurrency or [1, 8])), requests)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--clips") from error
    language = settings.engine.languages[0]
    measured = [measure_launched("omnihear", omnihear(profile=profile), plan, Transcribe(language))]
    if peer == "stock":
        measured.append(measure_launched("stock vLLM", stock(settings.engine), plan, Chat(language)))
    elif peer != "none":
        measured.append(asyncio.run(measure("peer", peer, peer, plan, Chat(language))))
    result = Report(
        date=dt.datetime.now(dt.UTC).date().isoformat(),
        command=shlex.join(["python", "-m", "benchmarks.serving", *sys.argv[1:]]),
        commit=machine.commit(),
        versions=machine.versions(),
        machine=here,
        profile=settings.profile,
        clip_seconds=clip_seconds,
        servers=tuple(measured),
    )
    Console().print(report.to_terminal(result))
    for path in report.write(result, output):
        console.print(f"wrote {path}", soft_wrap=True)


def make_plan(recordings: list[Path], seconds: float, concurrency: list[int], requests: int) -> Plan:
    """Cut the clips, each another one.

    Raises:
        ValueError: no recording is long enough.
    """
    cuts = Cuts([read_recording(path) for path in recordings], seconds)
    (first,) = cuts.take(1)
    return Plan(
        first=first,
        warm_up=cuts.take(max(concurrency)),
        clips={callers: cuts.take(requests) for callers in concurrency},
        spoken=demo_clips(),
    )


def measure_launched(name: str, launch: Launch, plan: Plan, dialect: Dialect) -> Measured:
    """Start a server, measure it, stop it."""
    console.print(f"{name}: {launch}", highlight=False, soft_wrap=True)
    with tempfile.TemporaryDirectory() as folder, running(launch, Path(folder)) as server:
        tree = ProcessTree(server.process.pid)
        start = Start(ready_seconds=server.ready_seconds, cpu_seconds=tree.cpu_seconds(), memory=tree.memory())
        console.print(f"{name}: ready after {start.ready_seconds:.1f} s", highlight=False, soft_wrap=True)
        return asyncio.run(measure(name, str(launch), server.url, plan, dialect, tree=tree, start=start))


async def measure(
    name: str,
    command: str,
    url: str,
    plan: Plan,
    dialect: Dialect,
    *,
    tree: ProcessTree | None = None,
    start: Start | None = None,
) -> Measured:
    """First answer, warm-up, every load, words."""
    async with connect(url) as client:
        dialect = await dialect.prepared(client)
        first = await send(client, dialect, plan.first)
        await closed_loop(client, dialect, plan.warm_up, len(plan.warm_up))
    loads = []
    for callers, clips in plan.clips.items():
        # Connections of its own: those of the load before may have been closed by the server meanwhile.
        async with connect(url) as client:
            loads.append(await _watched(tree, closed_loop(client, dialect, clips, callers)))
        rate = loads[-1].load.clips_per_second
        console.print(f"{name}: {callers} at once, {rate:.2f} clips/s", highlight=False, soft_wrap=True)
    async with connect(url) as client:
        answers = [await send(client, dialect, clip) for clip in plan.spoken]
    heard = [Heard.of(clip, answer.text, answer.error) for clip, answer in zip(plan.spoken, answers, strict=True)]
    return Measured(
        name=name,
        command=command,
        start=start,
        first_seconds=first.seconds if first.error is None else None,
        loads=tuple(loads),
        heard=tuple(heard),
    )


def connect(url: str) -> httpx.AsyncClient:
    """A client with as many connections as there are callers."""
    return httpx.AsyncClient(base_url=url, timeout=TIMEOUT_SECONDS, limits=httpx.Limits(max_connections=None))


async def _watched(tree: ProcessTree | None, loading: Awaitable[Load]) -> LoadOnServer:
    """Run a load, and take down what the server spends on it where its processes can be seen."""
    if tree is None:
        return LoadOnServer(load=await loading)
    before = tree.cpu_seconds()
    with PeakMemory(tree) as memory:
        load = await loading
    return LoadOnServer(load=load, cpu_seconds=tree.cpu_seconds() - before, memory=memory.peak)


if __name__ == "__main__":
    typer.run(main)
