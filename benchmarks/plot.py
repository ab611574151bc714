"""`python -m benchmarks.plot results/serving-cpu-DATE.json`: RTFx and p95 over concurrency, as SVG beside the JSON."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.scenarios import Scenario

WIDTH, HEIGHT = 9.0, 3.6  # inches


def draw(report: Path) -> Path:
    """Draw the closed loops of equally long wav files, a line for each server.

    Args:
        report: as `benchmarks.report.to_json` writes it.

    Raises:
        ModuleNotFoundError: matplotlib, of the extra dev, is not installed.
    """
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.hashsalt"] = report.stem  # the same drawing of the same numbers
    told = json.loads(report.read_text(encoding="utf-8"))
    ticks: set[int] = set()
    figure, (rates, tails) = plt.subplots(1, 2, figsize=(WIDTH, HEIGHT), layout="constrained")
    for server in told["servers"]:
        loads = sorted((load for load in map(_load, server["loads"]) if load), key=lambda load: load["callers"])
        ticks.update(callers := [load["callers"] for load in loads])
        rates.plot(callers, [load["rtfx"] for load in loads], marker="o", label=server["name"])
        tails.plot(callers, [load["latency"]["p95"] for load in loads], marker="o", label=server["name"])
    rates.set(title="RTFx", ylabel="seconds of audio per second")
    tails.set(title="p95 latency", ylabel="seconds")
    for axes in (rates, tails):
        if ticks:  # without a single answer there is no scale
            axes.set(xscale="log", yscale="log")
        axes.set_xticks(sorted(ticks), map(str, sorted(ticks)), minor=False)
        axes.set_xlabel("callers at once")
        axes.grid(visible=True, which="both", alpha=0.3)
    rates.legend()
    figure.suptitle(f"{', '.join(told['profiles'])}: {told['model']}, clips of {told['clip_seconds']:g} s")
    path = report.with_suffix(".svg")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path


def _load(told: dict[str, Any]) -> dict[str, Any] | None:
    """A load with its number of callers, None where it is of another kind or has no answer."""
    scenario = Scenario.parse(told["name"])
    if not scenario.plain or scenario.callers is None or told["load"]["latency"] is None:
        return None
    return {**told["load"], "callers": scenario.callers}


def main(report: Annotated[Path, typer.Argument(exists=True, dir_okay=False)]) -> None:
    """Draw a report."""
    typer.echo(f"wrote {draw(report)}")


if __name__ == "__main__":
    typer.run(main)
