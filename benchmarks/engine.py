"""The engine without HTTP, beside stock vLLM's `LLM.generate`, on the same clips in one invocation.

    python -m benchmarks.engine --profile max --size 3b --concurrency 1 --concurrency 128

Each engine runs in a process of its own, one after the other. `--size 3b` serves random weights at the dimensions of
Qwen2.5-Omni-3B; without it the profile's own model.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from app.settings import load_settings
from benchmarks.machine import Machine, commit, versions

RESULTS = Path(__file__).parent / "results"
STOCK = "stock"


@dataclass(frozen=True)
class Plan:
    """What every engine is asked.

    Attributes:
        seconds: of each clip.
        tokens: of each answer, at most.
        concurrency: clips at once, one figure a load.
        repeats: loads of each concurrency, of which the median counts.
    """

    seconds: float
    tokens: int
    concurrency: list[int]
    repeats: int


def main(  # noqa: PLR0917  # options of a command
    profiles: Annotated[list[str] | None, typer.Option("--profile", help="Profiles of ours; may be repeated.")] = None,
    concurrency: Annotated[list[int] | None, typer.Option(help="Clips at once; may be repeated.")] = None,
    size: Annotated[str, typer.Option(help="Random weights of this size, such as 3b.")] = "",
    seconds: Annotated[float, typer.Option(help="Length of each clip.")] = 10.0,
    tokens: Annotated[int, typer.Option(help="Tokens of each answer.")] = 30,
    repeats: Annotated[int, typer.Option(help="Loads of each concurrency; the median counts.")] = 3,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Over the profile's [engine]: k=v.")] = None,
    peer: Annotated[bool, typer.Option(help="Run stock vLLM as well.")] = True,
    timeout: Annotated[float, typer.Option(help="Seconds for each engine, start included.")] = 600.0,
    output: Annotated[Path, typer.Option(help="Folder of the report.")] = RESULTS,
) -> None:
    """Measure engines and write a report."""
    plan = Plan(seconds, tokens, concurrency or [1, 8, 32, 128], repeats)
    profiles = profiles or ["cpu"]
    report: dict[str, Any] = {
        "command": " ".join(sys.argv[1:]),
        "commit": commit(),
        "machine": asdict(Machine.here()),
        "versions": versions(),
        "plan": asdict(plan),
        "engines": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        changes = dict(pair.split("=", 1) for pair in settings or [])
        if size:
            from benchmarks.checkpoints import write_checkpoint

            changes |= {"model": str(write_checkpoint(Path(folder) / size, size)), "load_format": "dummy"}
        for name in [*profiles, *([STOCK] if peer else [])]:
            profile = profiles[0] if name == STOCK else name
            report["engines"][name] = _run(name, profile, changes, plan, folder=Path(folder), timeout=timeout)
            Console().print(_table(report))
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"engine-{'-'.join(profiles)}-{datetime.now(UTC):%Y-%m-%d}.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    path.with_suffix(".md").write_text(_markdown(report))
    Console().print(f"wrote {path} and .md")


def _run(
    name: str, profile: str, changes: dict[str, str], plan: Plan, *, folder: Path, timeout: float
) -> dict[str, Any]:
    """One engine in a process of its own; what went wrong is its result."""
    config = load_settings(profile).engine
    job, result, log = (folder / f"{name}.{ending}" for ending in ("job", "json", "log"))
    job.write_text(json.dumps({"engine": {**config.model_dump(mode="json"), **changes}, "plan": asdict(plan)}))
    environment = os.environ | ({"VLLM_PLUGINS": ""} if name == STOCK else {})
    kind = STOCK if name == STOCK else "ours"
    command = [sys.executable, "-m", "benchmarks.engine_worker", kind, str(job), str(result)]
    with log.open("w") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink, env=environment)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if not result.is_file():
        return {"error": log.read_text()[-2000:]}
    measured: dict[str, Any] = json.loads(result.read_text())
    return measured


def _rows(report: dict[str, Any]) -> list[list[str]]:
    peers = {load["concurrency"]: load for load in report["engines"].get(STOCK, {}).get("loads", [])}
    rows = []
    for name, engine in report["engines"].items():
        if "error" in engine:
            failure = "failed: " + engine["error"].strip().splitlines()[-1][:90]
            rows.append([name, failure, *[""] * (len(_HEAD) - 2)])
        for load in engine.get("loads", []):
            peer = peers.get(load["concurrency"])
            rows.append(
                [
                    name,
                    f"{engine['ready_seconds']:.0f}",
                    str(load["concurrency"]),
                    f"{load['clips_per_second']:.2f}",
                    f"{load['clips_per_second'] * report['plan']['seconds']:.0f}",
                    f"{load['p50']:.3f}",
                    f"{load['p95']:.3f}",
                    f"{load['p99']:.3f}",
                    f"{load['cpu_seconds_per_audio_hour']:.0f}",
                    "" if load["gpu_busy"] is None else f"{load['gpu_busy']:.0%}",
                    f"{load['clips_per_second'] / peer['clips_per_second']:.1f}" if peer else "",
                ]
            )
    return rows


_HEAD = [
    "engine",
    "ready, s",
    "at once",
    "clips/s",
    "RTFx",
    "p50, s",
    "p95, s",
    "p99, s",
    "processor s per audio hour",
    "GPU busy",
    "over stock",
]


def _table(report: dict[str, Any]) -> Table:
    table = Table(*_HEAD)
    for row in _rows(report):
        table.add_row(*row)
    return table


def _markdown(report: dict[str, Any]) -> str:
    plan = report["plan"]
    numbers = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    lines = [
        "# Engine",
        "",
        f"`python -m benchmarks.engine {report['command']}`",
        "",
        f"- machine: {Machine(**report['machine'])}",
        f"- versions: omnihear {report['commit']}, {numbers}",
        f"- clips of {plan['seconds']:g} s, at most {plan['tokens']} tokens each; median of {plan['repeats']} loads",
        "",
        "| " + " | ".join(_HEAD) + " |",
        "|" + "---|" * len(_HEAD),
        *("| " + " | ".join(row) + " |" for row in _rows(report)),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    typer.run(main)
