"""`python -m benchmarks.growth`: what a request costs as its file grows, and as more come at once.

    python -m benchmarks.growth                                # the host's part: answers without a model
    python -m benchmarks.growth --model --minutes 0.17,1,10    # with the profile's model

Without `--model` the engine is the scripted one, so all that is measured is what a file of any length passes through:
upload, decoding, speech detection, segments, and their texts in order. A cost is fitted as length to the power of an
exponent: 1 is linear.
"""

import asyncio
import datetime as dt
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import psutil
import typer
from rich.console import Console

from benchmarks import machine
from benchmarks.clips import DEMO, Clip, Cuts, clip, read_recording
from benchmarks.dialects import Transcribe
from benchmarks.load import Limits, run, send
from benchmarks.measuring import connect
from benchmarks.processes import ProcessTree, Sampler
from benchmarks.report import markdown_table
from benchmarks.scenarios import Scenario
from benchmarks.servers import Server, omnihear, running
from engine.interface import SAMPLE_RATE

RESULTS = Path(__file__).parent / "results"
STORY = DEMO / "harbor-story-long.flac"
LANGUAGE = "en"
MIB = 2**20
SAMPLE_SECONDS = 0.05

console = Console(stderr=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one length of file, or of one number of callers.

    Attributes:
        size: seconds of audio, or callers.
        seconds: from the upload to the answer, or for each clip.
        cpu_seconds: of all processes of the service, or for each clip.
        service_mib: resident memory of the process that serves HTTP at its largest.
        worker_mib: of the largest of the others, such as a decode worker.
    """

    size: float
    seconds: float
    cpu_seconds: float
    service_mib: float
    worker_mib: float


class PeakResident(Sampler):
    """Watches a tree: resident bytes of its root, and of the largest below it."""

    def __init__(self, tree: ProcessTree) -> None:
        super().__init__(SAMPLE_SECONDS)
        self._tree = tree
        self.root = self.largest = 0

    def look(self) -> None:
        """Read the sizes of all."""
        sizes = list(map(_resident, self._tree.processes()))
        if sizes:
            self.root = max(self.root, sizes[0])
            self.largest = max(self.largest, *sizes[1:], 0)


def exponent(sizes: Iterable[float], costs: Iterable[float]) -> float:
    """The power of size that cost grows with: least squares between logarithms, at least two sizes."""
    slope, _ = np.polyfit(np.log(list(sizes)), np.log(list(costs)), 1)
    return float(slope)


def main(
    *,
    profile: Annotated[str, typer.Option(help="As for `omnihear serve`.")] = "cpu",
    model: Annotated[bool, typer.Option(help="Serve the profile's model, not the scripted engine.")] = False,
    minutes: Annotated[str, typer.Option(help="Lengths, separated by commas.")] = "0.17,1,5,15,30,60,120",
    callers: Annotated[str, typer.Option(help="Numbers of callers with clips of 10 s.")] = "1,2,4,8,16,32,64",
    rounds: Annotated[int, typer.Option(min=1, help="Clips of each caller.")] = 4,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = RESULTS,
) -> None:
    """Measure both curves and write them down."""
    story = read_recording(STORY)
    environment = {"OMNIHEAR_LIMITS_DECODE_TIMEOUT_SECONDS": "3600"}  # a curve, not a deadline
    if not model:
        environment["OMNIHEAR_ENGINE_BACKEND"] = "scripted"
    launch = omnihear(profile=profile, environment=environment)
    console.print(f"{launch}", soft_wrap=True)
    with tempfile.TemporaryDirectory() as folder, running(launch, Path(folder)) as server:
        lengths = [
            asyncio.run(_one_file(server, _repeated(story, 60 * each)))
            for each in sorted(map(float, minutes.split(",")))
        ]
        cuts = Cuts([story], 10.0)
        loads = [
            asyncio.run(_many_clips(server, cuts.take(int(each) * rounds), int(each))) for each in callers.split(",")
        ]
    report: dict[str, object] = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "command": shlex.join(["python", "-m", "benchmarks.growth", *sys.argv[1:]]),
        "commit": machine.commit(),
        "machine": str(machine.Machine.here()),
        "engine": f"profile {profile}" if model else "scripted",
        "lengths": [asdict(cost) for cost in lengths],
        "callers": [asdict(cost) for cost in loads],
        "exponents": _exponents(lengths) if len(lengths) > 1 else {},
    }
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"growth-{profile if model else 'host'}-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(text := _markdown(report, lengths, loads), encoding="utf-8")
    typer.echo(text)
    console.print(f"wrote {path} and .md", soft_wrap=True)


async def _one_file(server: Server, file: Clip) -> Cost:
    tree = ProcessTree(server.process.pid)
    async with connect(server.url) as client:
        client.timeout = None
        before, begun = tree.cpu_seconds(), time.monotonic()
        with PeakResident(tree) as peak:
            answer = await send(client, Transcribe(LANGUAGE), file)
        seconds = time.monotonic() - begun
    if answer.error is not None:
        msg = f"{file.seconds:g} s: {answer.error}"
        raise RuntimeError(msg)
    console.print(f"{file.seconds:g} s of audio: {seconds:.2f} s")
    return Cost(
        size=file.seconds,
        seconds=seconds,
        cpu_seconds=tree.cpu_seconds() - before,
        service_mib=peak.root / MIB,
        worker_mib=peak.largest / MIB,
    )


async def _many_clips(server: Server, clips: list[Clip], callers: int) -> Cost:
    tree = ProcessTree(server.process.pid)
    async with connect(server.url) as client:
        before = tree.cpu_seconds()
        with PeakResident(tree) as peak:
            load = await run(client, Transcribe(LANGUAGE), Scenario(callers=callers), clips, Limits(load_seconds=600))
    if load.errors:
        msg = f"{callers} at once: {dict(load.errors)}"
        raise RuntimeError(msg)
    console.print(f"{callers} at once: {load.clips_per_second:.2f} clips/s")
    return Cost(
        size=callers,
        seconds=load.seconds / len(clips),
        cpu_seconds=(tree.cpu_seconds() - before) / len(clips),
        service_mib=peak.root / MIB,
        worker_mib=peak.largest / MIB,
    )


def _repeated(story: "np.ndarray[tuple[int], np.dtype[np.int16]]", seconds: float) -> Clip:
    """A recording over and over, as flac: two hours of wav pass the limit on uploads."""
    samples = np.resize(story, round(seconds * SAMPLE_RATE))
    return clip("long.flac", samples, container="flac")


def _exponents(lengths: list[Cost]) -> dict[str, float]:
    sizes = [cost.size for cost in lengths]
    columns = ("seconds", "cpu_seconds", "service_mib", "worker_mib")
    return {name: round(exponent(sizes, [getattr(cost, name) for cost in lengths]), 3) for name in columns}


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _markdown(report: dict[str, object], lengths: list[Cost], loads: list[Cost]) -> str:
    def rows(costs: list[Cost]) -> list[list[str]]:
        return [
            [
                f"{cost.size:g}",
                f"{cost.seconds:.3f}",
                f"{cost.cpu_seconds:.3f}",
                f"{cost.service_mib:.0f}",
                f"{cost.worker_mib:.0f}",
            ]
            for cost in costs
        ]

    head = ["wall s", "processor s", "service, MiB", "largest other process, MiB"]
    exponents = report["exponents"]
    assert isinstance(exponents, dict)
    fitted = [["exponent", *(f"{value:.2f}" for value in exponents.values())]] if exponents else []
    lines = [
        f"# Growth, {report['engine']}, {report['date']}",
        "",
        f"- `{report['command']}`, omnihear {report['commit']}",
        f"- machine: {report['machine']}",
        "",
        "One file at a time, flac (an exponent of 1 is linear; memory is resident at its largest):",
        "",
        *markdown_table(["seconds of audio", *head], [*rows(lengths), *fitted]),
        "",
        "Clips of 10 s, cost of each:",
        "",
        *markdown_table(["at once", *head], rows(loads)),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    typer.run(main)
