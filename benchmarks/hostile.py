"""`python -m benchmarks.hostile`: ten thousand hostile inputs against the real service on the scripted engine.

Files of every container with lengths, counts, offsets, chunks, pages and frames changed (`tests/hostile/mutations.py`),
random bytes, forms and headers that no client library makes (`tests/hostile/requests.py`), and requests made from the
OpenAPI document (schemathesis). A clean clip is transcribed in a loop meanwhile, and has to come out the same
every time.
"""

import asyncio
import datetime as dt
import json
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks import machine
from benchmarks.processes import ProcessTree
from benchmarks.servers import Server, omnihear, running
from tests.hostile import mutations, requests
from tests.hostile.campaign import ENVIRONMENT, EXPLAINED, Outcome, attack
from tests.hostile.schema import fuzz

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All figures.

    Attributes:
        answers: by container or kind of request, by status.
        explained: answers of 503 and 504, which are by design, by status.
        unexplained: other 5xx, hangs, and complete requests without an answer: what was sent, and what came.
        clean: how often the clean clip was asked for, different answers to it, and seconds at the median and at most.
        workers_lost: decode workers that crashed or were killed.
        alive: whether the service was ready at the end, with the process that was started.
    """

    date: str
    commit: str
    machine: str
    seconds: float
    inputs: int
    answers: dict[str, dict[str, int]]
    explained: dict[str, int]
    unexplained: list[dict[str, str]]
    clean: dict[str, float]
    workers_lost: int
    alive: bool
    slowest: tuple[float, str]

    @property
    def passed(self) -> bool:
        """Whether nothing was found."""
        return self.alive and not self.unexplained and self.clean["different answers"] == 1


def main(
    *,
    files: Annotated[int, typer.Option(help="Mutated files.")] = 9000,
    raw: Annotated[int, typer.Option(help="Forms and headers.")] = 2000,
    documented: Annotated[int, typer.Option(help="Requests made from the OpenAPI document, for each operation.")] = 50,
    seed: Annotated[int, typer.Option(help="Another one, other inputs.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder of the reports.")] = RESULTS,
) -> None:
    """Send everything; fails where something is found."""
    here = str(machine.Machine.here())
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, running(omnihear(environment=ENVIRONMENT), Path(folder)) as server:
        outcome = asyncio.run(attack(server.url, mutations.inputs(files, seed=seed), requests.examples(raw, seed=seed)))
        if documented:
            fuzz(server.url, documented, outcome, seed=seed)
        report = _report(outcome, server, here, time.monotonic() - begun)
    text = write(report)
    stem = f"hostile-{report.date}"
    output.mkdir(parents=True, exist_ok=True)
    (output / f"{stem}.md").write_text(text, encoding="utf-8")
    (output / f"{stem}.json").write_text(json.dumps(asdict(report), indent=1) + "\n", encoding="utf-8")
    print(text)
    raise typer.Exit(0 if report.passed else 1)


def _report(outcome: Outcome, server: Server, here: str, seconds: float) -> Report:
    answers: dict[str, dict[str, int]] = {}
    for (group, status), count in sorted(outcome.answers.items()):
        answers.setdefault(group, {})[status] = count
    with server.client() as client:
        ready = client.get("/health/ready").status_code == 200
        metrics = client.get("/metrics").text
    lost = next(line for line in metrics.splitlines() if line.startswith("omnihear_decode_workers_lost_total"))
    return Report(
        date=dt.datetime.now(dt.UTC).date().isoformat(),
        commit=machine.commit(),
        machine=here,
        seconds=round(seconds),
        inputs=outcome.sent,
        answers=answers,
        explained=dict(Counter(each.what for each in outcome.findings if each.what in EXPLAINED)),
        unexplained=[asdict(finding) for finding in outcome.unexplained()],
        clean={
            "asked for": outcome.clean_texts.total(),
            "different answers": len(outcome.clean_texts),
            "median seconds": round(float(np.median(outcome.clean_seconds)), 3),
            "slowest": round(max(outcome.clean_seconds), 2),
        },
        workers_lost=round(float(lost.split()[-1])),
        alive=ready and server.process.poll() is None and len(ProcessTree(server.process.pid).processes()) >= 2,
        slowest=(round(outcome.slowest[0], 1), outcome.slowest[1]),
    )


def write(report: Report) -> str:
    """For people."""
    statuses = sorted({status for counts in report.answers.values() for status in counts})
    lines = [
        "# Hostile inputs",
        "",
        "`python -m benchmarks.hostile`",
        "",
        f"- {report.date}, commit {report.commit}, {report.seconds:.0f} s; {report.machine}",
        f"- {report.inputs} inputs; 5xx by design (503, 504): {sum(report.explained.values())}; other 5xx, hangs and "
        f"complete requests without an answer: {len(report.unexplained)}",
        f"- the service: {'alive and ready' if report.alive else 'NOT READY'}; decode workers that were lost: "
        f"{report.workers_lost}; slowest answer {report.slowest[0]} s ({report.slowest[1]})",
        f"- a clean clip alongside: asked for {report.clean['asked for']:.0f} times, "
        f"{report.clean['different answers']:.0f} different answers, median {report.clean['median seconds']} s, "
        f"slowest {report.clean['slowest']} s",
        "",
        f"| input | {' | '.join(statuses)} |",
        f"|---|{'---:|' * len(statuses)}",
        *(
            f"| {group} | {' | '.join(str(counts.get(status, '')) for status in statuses)} |"
            for group, counts in report.answers.items()
        ),
        "",
        "`200 with an error` is a stream or a batch that tells of a fault of the input; `closed` is a connection",
        "without an answer to a request that was never complete.",
    ]
    lines += [f"- {finding['what']}: {finding['source']}: {finding['detail']}" for finding in report.unexplained]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    typer.run(main)
