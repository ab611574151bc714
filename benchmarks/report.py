"""How both servers compare: as JSON, as Markdown and on the terminal."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from rich.table import Table

from benchmarks.load import Latency
from benchmarks.machine import GIB
from benchmarks.processes import Memory
from benchmarks.results import LoadOnServer, Measured, Report
from benchmarks.words import Heard, word_error_rate
from engine.config import SEGMENT_SECONDS

Measurement = TypeVar("Measurement")


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity of every server; None where it was not measured."""

    label: str
    values: tuple[float | None, ...]
    digits: int

    @property
    def ratio(self) -> float | None:
        """Ours over the peer's."""
        if len(self.values) < 2 or self.values[0] is None or not self.values[1]:
            return None
        return self.values[0] / self.values[1]

    def cells(self) -> list[str]:
        """Label, values, and the ratio where there is a peer."""
        values = ["-" if value is None else f"{value:,.{self.digits}f}" for value in self.values]
        ratio = "-" if self.ratio is None else f"{self.ratio:.2f}"
        return [self.label, *values, *([ratio] if len(values) > 1 else [])]


def rows(report: Report) -> list[Row]:
    """The table: every quantity in its unit."""
    starts = [server.start for server in report.servers]
    loads = zip(*(server.loads for server in report.servers), strict=True)
    short, long = ([_percent_wrong(server, long=long) for server in report.servers] for long in (False, True))
    limit = f"{SEGMENT_SECONDS:.0f} s"
    return [
        _row("start to ready, s", 1, starts, lambda start: start.ready_seconds),
        _row("processor s until ready", 1, starts, lambda start: start.cpu_seconds),
        _row("PSS when ready, GiB", 2, starts, lambda start: _gib(start.memory, "pss")),
        _row("first answer, s", 3, report.servers, lambda server: server.first_seconds),
        *(row for same in loads for row in _load_rows(same)),
        Row(f"word error rate of demo clips up to {limit}, %", tuple(short), 1),
        Row(f"word error rate of demo clips over {limit}, %", tuple(long), 1),
    ]


def to_json(report: Report) -> str:
    """Everything, and the ratios."""
    ratios = {row.label: round(row.ratio, 4) for row in rows(report) if row.ratio is not None}
    return json.dumps({**asdict(report), "ratios": ratios}, indent=2, ensure_ascii=False) + "\n"


def to_markdown(report: Report) -> str:
    """For people: the table, where its numbers come from, and what was heard."""
    versions = {"omnihear": report.commit, **report.versions}
    lines = [
        f"# Serving, profile `{report.profile}`, {report.date}",
        "",
        f"Clips of {report.clip_seconds:g} s, no two alike; every caller sends its next clip when it has its answer.",
        "",
        f"- machine: {report.machine}",
        f"- versions: {', '.join(f'{name} {version}' for name, version in versions.items())}",
        f"- benchmark: `{report.command}`",
        *(f"- {server.name}: `{server.command}`" for server in report.servers),
        "",
        *_markdown_table(_columns(report), [row.cells() for row in rows(report)]),
    ]
    for server in report.servers:
        if stages := _stage_rows(server):
            lines += ["", f"Where a request's time goes in {server.name}, mean ms:", "", *_markdown_table(*stages)]
    names = [server.name for server in report.servers]
    lines += ["", "Words wrong on the demo clips:", "", *_markdown_table(["clip", "s", *names], _heard_rows(report))]
    return "\n".join(lines) + "\n"


def to_terminal(report: Report) -> Table:
    """The table alone."""
    table = Table(title=f"profile {report.profile}, clips of {report.clip_seconds:g} s")
    for number, name in enumerate(_columns(report)):
        table.add_column(name, justify="right" if number else "left")
    for row in rows(report):
        table.add_row(*row.cells())
    return table


def write(report: Report, folder: Path) -> tuple[Path, Path]:
    """Write `serving-PROFILE-DATE.json` and `.md`; a second run on a day replaces the first's."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"serving-{report.profile}-{report.date}"
    paths = folder / f"{stem}.json", folder / f"{stem}.md"
    for path, text in zip(paths, (to_json(report), to_markdown(report)), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def _columns(report: Report) -> list[str]:
    return ["", *(server.name for server in report.servers), *(["ratio"] if len(report.servers) > 1 else [])]


def _row(
    label: str, digits: int, of: Iterable[Measurement | None], value: Callable[[Measurement], float | None]
) -> Row:
    """One value of each; of what is missing, nothing."""
    return Row(label, tuple(None if each is None else value(each) for each in of), digits)


def _load_rows(loads: tuple[LoadOnServer, ...]) -> list[Row]:
    def row(label: str, digits: int, value: Callable[[LoadOnServer], float | None]) -> Row:
        return _row(f"{loads[0].load.concurrency} at once: {label}", digits, loads, value)

    return [
        row("clips/s", 2, lambda each: each.load.clips_per_second),
        row("RTFx", 1, lambda each: each.load.rtfx),
        row("latency p50, s", 3, lambda each: _seconds(each.load.latency, "p50")),
        row("latency p95, s", 3, lambda each: _seconds(each.load.latency, "p95")),
        row("latency p99, s", 3, lambda each: _seconds(each.load.latency, "p99")),
        row("errors", 0, lambda each: sum(each.load.errors.values())),
        row("words answered", 0, lambda each: each.load.words),
        row("processor s per audio hour", 1, lambda each: each.cpu_seconds_per_audio_hour),
        row("peak RSS, GiB", 2, lambda each: _gib(each.memory, "rss")),
        row("peak PSS, GiB", 2, lambda each: _gib(each.memory, "pss")),
    ]


def _stage_rows(server: Measured) -> tuple[list[str], list[list[str]]] | None:
    """Head and body of the table of stages, None where the server tells nothing of them."""
    names = list(dict.fromkeys(name for each in server.loads for name in each.load.stages))
    if not names:
        return None
    body = []
    for load in (each.load for each in server.loads):
        means = [f"{load.stages[name]:.1f}" if name in load.stages else "-" for name in names]
        body.append([str(load.concurrency), *means])
    return ["at once", *names], body


def _heard_rows(report: Report) -> list[list[str]]:
    return [
        [same[0].clip, f"{same[0].seconds:.1f}", *map(_wrong, same)]
        for same in zip(*(server.heard for server in report.servers), strict=True)
    ]


def _wrong(heard: Heard) -> str:
    return f"{heard.errors} of {heard.words}" + (f" ({heard.failure})" if heard.failure else "")


def _percent_wrong(server: Measured, *, long: bool) -> float | None:
    rate = word_error_rate([heard for heard in server.heard if (heard.seconds > SEGMENT_SECONDS) is long])
    return None if rate is None else 100 * rate


def _seconds(latency: Latency | None, field: str) -> float | None:
    return None if latency is None else float(getattr(latency, field))


def _gib(memory: Memory | None, field: str) -> float | None:
    return None if memory is None else float(getattr(memory, field)) / GIB


def _markdown_table(head: list[str], body: list[list[str]]) -> list[str]:
    divider = ["---", *("---:" for _ in head[1:])]
    return [f"| {' | '.join(cells)} |" for cells in (head, divider, *body)]
