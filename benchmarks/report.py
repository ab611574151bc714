"""How the servers compare: as JSON, as Markdown and on the terminal."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.answers import Latency
from benchmarks.machine import GIB
from benchmarks.processes import Memory
from benchmarks.results import LoadOnServer, Measured, Report
from benchmarks.words import Heard, word_error_rate
from engine.config import SEGMENT_SECONDS


@dataclass(frozen=True, slots=True)
class Column:
    """One quantity of a load.

    Attributes:
        value: None where it was not measured.
        compared: whether the ratio to the peer is of interest.
    """

    label: str
    digits: int
    value: Callable[[LoadOnServer], float | None]
    compared: bool = False

    def cell(self, load: LoadOnServer) -> str:
        """As it is printed."""
        return _cell(self.value(load), self.digits)


COLUMNS = (
    Column("clips/s", 2, lambda each: each.load.clips_per_second, compared=True),
    Column("RTFx", 1, lambda each: each.load.rtfx),
    Column("p50, s", 3, lambda each: _seconds(each.load.latency, "p50")),
    Column("p95, s", 3, lambda each: _seconds(each.load.latency, "p95"), compared=True),
    Column("p99, s", 3, lambda each: _seconds(each.load.latency, "p99")),
    Column("first text p50, s", 3, lambda each: _seconds(each.load.first_text, "p50"), compared=True),
    Column("first text p95, s", 3, lambda each: _seconds(each.load.first_text, "p95")),
    Column("requests", 0, lambda each: each.load.requests),
    Column("errors", 0, lambda each: sum(each.load.errors.values())),
    Column("words", 0, lambda each: each.load.words),
    Column("tokens each", 1, lambda each: each.load.tokens),
    Column("processor s per audio hour", 1, lambda each: each.cpu_seconds_per_audio_hour, compared=True),
    Column("GPU busy, %", 0, lambda each: None if each.gpu_busy is None else 100 * each.gpu_busy),
    Column("peak RSS, GiB", 2, lambda each: _gib(each.memory, "rss")),
    Column("peak PSS, GiB", 2, lambda each: _gib(each.memory, "pss")),
    Column("callers' processor, %", 0, lambda each: 100 * each.load.client_busy),
)


def start_table(report: Report) -> tuple[list[str], list[list[str]]]:
    """What it takes to come up, and whether the words are right: a row each, a column for each server."""
    starts = [server.start for server in report.servers]
    limit = f"{SEGMENT_SECONDS:.0f} s"
    rows = {
        "start to ready, s": [_cell(start.ready_seconds if start else None, 1) for start in starts],
        "processor s until ready": [_cell(start.cpu_seconds if start else None, 1) for start in starts],
        "PSS when ready, GiB": [_cell(_gib(start.memory, "pss") if start else None, 2) for start in starts],
        "first answer, s": [_cell(server.first_seconds, 3) for server in report.servers],
        f"word error rate, clips up to {limit}, %": [_percent_wrong(each, long=False) for each in report.servers],
        f"word error rate, clips over {limit}, %": [_percent_wrong(each, long=True) for each in report.servers],
    }
    return ["", *(server.name for server in report.servers)], [
        [label, *cells] for label, cells in rows.items() if set(cells) != {"-"}
    ]


def load_table(report: Report) -> tuple[list[str], list[list[str]]]:
    """Every load, the servers below each other; what nobody measured is left out."""
    columns = [
        column
        for column in COLUMNS
        if any(column.value(load) is not None for server in report.servers for load in server.loads)
    ]
    compared = [column for column in columns if column.compared] if report.peer else []
    rows = []
    for name in _load_names(report):
        for server in report.servers:
            for load in (each for each in server.loads if str(each.load.scenario) == name):
                ratios = _ratios(report, server, load)
                over = [f"{ratios[column.label]:.2f}" if column.label in ratios else "-" for column in compared]
                rows.append([name, server.name, *(column.cell(load) for column in columns), *over])
    return [
        "load",
        "server",
        *(column.label for column in columns),
        *(f"{column.label.partition(',')[0]} over peer's" for column in compared),
    ], rows


def to_json(report: Report) -> str:
    """Everything, and the ratios."""
    ratios = [
        {"server": server.name, "load": str(load.load.scenario), **_ratios(report, server, load)}
        for server in report.servers
        if server is not report.peer
        for load in server.loads
    ]
    return json.dumps({**_plain(report), "ratios": ratios if report.peer else []}, indent=2, ensure_ascii=False) + "\n"


def to_markdown(report: Report) -> str:
    """For people: the tables, where the numbers come from, and what was heard."""
    versions = {"omnihear": report.commit, **report.versions}
    lines = [
        f"# Serving, {_title(report)}, {report.date}",
        "",
        f"Model: {report.model}. Clips of {report.clip_seconds:g} s where a load is not mixed, no two alike. A load is",
        "callers, each of whom sends its next clip when it has its answer, or arrivals a second that wait for nobody.",
        "",
        f"- machine: {report.machine}",
        f"- versions: {', '.join(f'{name} {version}' for name, version in versions.items())}",
        f"- benchmark: `{report.command}`",
        *(f"- {server.name}: `{server.command}`" for server in report.servers),
        *(f"- {server.name}: **{_last_line(server.failure)}**" for server in report.servers if server.failure),
        "",
        *_markdown_table(*start_table(report)),
        "",
        *_markdown_table(*load_table(report), words=2),
    ]
    for server in report.servers:
        if stages := _stage_rows(server):
            lines += ["", f"Where a request's time goes in {server.name}, mean ms:", "", *_markdown_table(*stages)]
    if any(server.heard for server in report.servers):
        heard = [server for server in report.servers if server.heard]
        names = ["clip", "s", *(server.name for server in heard)]
        lines += ["", "Words wrong on the demo clips:", "", *_markdown_table(names, _heard_rows(heard))]
    return "\n".join(lines) + "\n"


def to_terminal(report: Report) -> Table:
    """The loads alone, and of them what matters most."""
    head, rows = load_table(report)
    shown = {"load", "server", "clips/s", "RTFx", "p50, s", "p95, s", "errors", "clips/s over peer's"}
    kept = [number for number, label in enumerate(head) if label in shown]
    table = Table(title=f"{_title(report)}, {report.model}")
    for number in kept:
        table.add_column(head[number], justify="left" if number < 2 else "right")
    for row in rows:
        table.add_row(*(row[number] for number in kept))
    return table


def write(report: Report, folder: Path) -> tuple[Path, Path]:
    """Write `serving-PROFILES-DATE.json` and `.md`; a second run on a day replaces the first's."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"serving-{'-'.join(report.profiles)}-{report.date}"
    paths = folder / f"{stem}.json", folder / f"{stem}.md"
    for path, text in zip(paths, (to_json(report), to_markdown(report)), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def _title(report: Report) -> str:
    return f"profile{'s' if len(report.profiles) > 1 else ''} {', '.join(report.profiles)}"


def _plain(report: Report) -> dict[str, Any]:
    """As `asdict`, with each load under the name of its scenario as well."""
    told = asdict(report)
    for server, plain in zip(report.servers, told["servers"], strict=True):
        for load, each in zip(server.loads, plain["loads"], strict=True):
            each["name"] = str(load.load.scenario)
    return told


def _load_names(report: Report) -> list[str]:
    return list(dict.fromkeys(str(load.load.scenario) for server in report.servers for load in server.loads))


def _ratios(report: Report, server: Measured, load: LoadOnServer) -> dict[str, float]:
    """This server's value over the peer's, of what is compared and of what both have."""
    if report.peer is None or server is report.peer:
        return {}
    same = [each for each in report.peer.loads if each.load.scenario == load.load.scenario]
    ratios = {}
    for column in COLUMNS:
        ours, peers = column.value(load), column.value(same[0]) if same else None
        if column.compared and ours is not None and peers:
            ratios[column.label] = round(ours / peers, 4)
    return ratios


def _stage_rows(server: Measured) -> tuple[list[str], list[list[str]]] | None:
    """Head and body of the table of stages, None where the server tells nothing of them."""
    names = list(dict.fromkeys(name for each in server.loads for name in each.load.stages))
    if not names:
        return None
    body = []
    for load in (each.load for each in server.loads if each.load.stages):
        means = [f"{load.stages[name]:.1f}" if name in load.stages else "-" for name in names]
        body.append([str(load.scenario), *means])
    return ["load", *names], body


def _heard_rows(servers: Sequence[Measured]) -> list[list[str]]:
    return [
        [same[0].clip, f"{same[0].seconds:.1f}", *map(_wrong, same)]
        for same in zip(*(server.heard for server in servers), strict=True)
    ]


def _wrong(heard: Heard) -> str:
    return f"{heard.errors} of {heard.words}" + (f" ({heard.failure})" if heard.failure else "")


def _percent_wrong(server: Measured, *, long: bool) -> str:
    rate = word_error_rate([heard for heard in server.heard if (heard.seconds > SEGMENT_SECONDS) is long])
    return _cell(None if rate is None else 100 * rate, 1)


def _cell(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _seconds(latency: Latency | None, field: str) -> float | None:
    return None if latency is None else float(getattr(latency, field))


def _gib(memory: Memory | None, field: str) -> float | None:
    return None if memory is None else float(getattr(memory, field)) / GIB


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


def _markdown_table(head: list[str], body: list[list[str]], *, words: int = 1) -> list[str]:
    """The first columns, so many as are `words`, to the left."""
    divider = ["---" if number < words else "---:" for number, _ in enumerate(head)]
    return [f"| {' | '.join(cells)} |" for cells in (head, divider, *body)]
