"""`python -m benchmarks.serving`: this service and a peer on the same clips, one after the other or in turns."""

import asyncio
import datetime as dt
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from app.settings import default_profile, load_settings
from benchmarks import machine, report
from benchmarks.clips import DEMO
from benchmarks.dialects import Chat, Dialect, Transcribe
from benchmarks.load import Limits
from benchmarks.measuring import Party, make_plan, measure, measure_launched
from benchmarks.results import Measured, Report
from benchmarks.scenarios import Scenario
from benchmarks.servers import Launch, omnihear, random_weights, stock

RESULTS = Path(__file__).parent / "results"
RECORDINGS = [DEMO / "jfk-human.wav", DEMO / "harbor-story-long.flac"]

console = Console(stderr=True)


def main(
    *,
    profiles: Annotated[str, typer.Option(help="As for `omnihear serve`, separated by commas; this machine's.")] = "",
    size: Annotated[str, typer.Option(help="Serve random weights of this size, such as 3b.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="Of every answer, with random weights.")] = 30,
    loads: Annotated[
        str, typer.Option(help="Separated by commas: 8 callers, 20/s arrivals; :mixed, :mp3, :opus, :stream.")
    ] = "1,8",
    requests: Annotated[int, typer.Option(min=1, help="For each closed loop; four for each caller at least.")] = 60,
    clips: Annotated[
        list[Path] | None, typer.Option(exists=True, dir_okay=False, help="Recordings to cut from; repeatable.")
    ] = None,
    clip_seconds: Annotated[float, typer.Option(min=0.5, max=30, help="Length of the cuts, unless mixed.")] = 10.0,
    with_stock: Annotated[bool, typer.Option("--stock/--no-stock", help="Measure stock vLLM as well.")] = True,
    peer: Annotated[str, typer.Option(help="URL of a running server in the place of stock vLLM.")] = "",
    start_seconds: Annotated[float, typer.Option(help="In which a server has to become ready.")] = 600.0,
    load_seconds: Annotated[float, typer.Option(help="After which a load sends no more.")] = 60.0,
    drain_seconds: Annotated[float, typer.Option(help="After that, until what is unanswered is given up.")] = 60.0,
    server_seconds: Annotated[float, typer.Option(help="From a server's start, until no load begins.")] = 3600.0,
    turns: Annotated[
        int, typer.Option(min=1, help="More than 1: all servers run at once, and take so many turns with each load.")
    ] = 1,
    plot: Annotated[bool, typer.Option(help="Draw RTFx and p95 over concurrency.")] = True,
    output: Annotated[Path, typer.Option(help="Folder of the reports.")] = RESULTS,
) -> None:
    """Measure this service and a peer on the same clips and write a report of all."""
    if peer and not peer.startswith(("http://", "https://")):
        raise typer.BadParameter(f"{peer!r} is no URL", param_hint="--peer")
    names = [name.strip() for name in profiles.split(",") if name.strip()] or [default_profile()]
    settings = [load_settings(name) for name in names]
    here = machine.Machine.here()
    try:
        plan = make_plan(
            clips or RECORDINGS,
            clip_seconds,
            [Scenario.parse(text) for text in loads.split(",")],
            requests,
            words=not size,
            limits=Limits(load_seconds=load_seconds, drain_seconds=drain_seconds),
            start_seconds=start_seconds,
            server_seconds=server_seconds,
            turns=turns,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--loads, --clips") from error
    result = Report(
        date=dt.datetime.now(dt.UTC).date().isoformat(),
        command=shlex.join(["python", "-m", "benchmarks.serving", *sys.argv[1:]]),
        commit=machine.commit(),
        versions=machine.versions(),
        machine=here,
        profiles=tuple(each.profile for each in settings),
        model=f"random weights, {size}, {tokens} tokens an answer" if size else settings[0].engine.model,
        clip_seconds=clip_seconds,
        servers=(),
        has_peer=False,
    )
    language = settings[0].engine.languages[0]

    def add(measured: Sequence[Measured], *, with_peer: bool) -> None:
        """Written after each server: what was measured is not lost with what comes later."""
        nonlocal result
        result = replace(result, servers=(*result.servers, *measured), has_peer=with_peer)
        report.write(result, output)

    with tempfile.TemporaryDirectory() as folder:
        environment, engine = {}, settings[0].engine
        if size:
            from benchmarks.checkpoints import write_checkpoint

            model = write_checkpoint(Path(folder) / f"Qwen2.5-Omni-{size}", size)
            environment = random_weights(model)
            engine = engine.model_copy(update={"model": str(model), "load_format": "dummy"})
        servers: list[tuple[str, Launch, Dialect]] = [
            (
                f"omnihear {each.profile}",
                omnihear(profile=name, environment=environment, tokens=tokens if size else None),
                Transcribe(language),
            )
            for name, each in zip(names, settings, strict=True)
        ]
        chat = Chat(language, tokens=tokens if size else None)
        launches_stock = with_stock and not peer
        if launches_stock:
            servers.append(("stock vLLM", stock(engine), chat))
        for together in [servers] if turns > 1 else [[server] for server in servers]:
            add(measure_launched(together, plan, say), with_peer=launches_stock and servers[-1] in together)
        if peer:
            add(asyncio.run(measure([Party(name="peer", url=peer, dialect=chat)], plan, say)), with_peer=True)
    Console().print(report.to_terminal(result))
    paths = [*report.write(result, output)]
    if plot:
        from benchmarks.plot import draw

        paths.append(draw(paths[0]))
    for path in paths:
        console.print(f"wrote {path}", soft_wrap=True)
    if any(server.failure for server in result.servers):
        raise typer.Exit(1)


def say(line: str) -> None:
    """To people who wait."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
