import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.load import Latency, Load
from benchmarks.machine import Machine, commit, versions
from benchmarks.processes import Memory
from benchmarks.report import rows, to_json, to_markdown, to_terminal, write
from benchmarks.results import LoadOnServer, Measured, Report, Start
from benchmarks.words import Heard

GIB = 2**30


def load(callers: int, clips_per_second: float, **changes: object) -> Load:
    values = {
        "concurrency": callers,
        "requests": 20,
        "seconds": 20 / clips_per_second,
        "audio_seconds": 200.0,
        "clips_per_second": clips_per_second,
        "rtfx": 10 * clips_per_second,
        "latency": Latency(mean=0.4, p50=0.4, p95=0.5, p99=0.6),
        "latencies": (0.4,) * 20,
        "words": 500,
        "errors": {},
        "stages": {},
    }
    return Load(**(values | changes))  # type: ignore[arg-type]


OURS = Measured(
    name="omnihear",
    command="python -m app.cli serve",
    start=Start(ready_seconds=20.0, cpu_seconds=30.0, memory=Memory(2 * GIB, GIB)),
    first_seconds=0.5,
    loads=(
        LoadOnServer(
            load=load(1, 3.0, stages={"decode": 4.0, "inference": 150.0}), cpu_seconds=10.0, memory=Memory(3 * GIB, GIB)
        ),
        LoadOnServer(load=load(8, 6.0, stages={"decode": 5.0}), cpu_seconds=10.0, memory=Memory(3 * GIB, 2 * GIB)),
    ),
    heard=(
        Heard(clip="short.wav", seconds=5.0, text="four words were said", words=4, errors=1),
        Heard(clip="long.flac", seconds=50.0, text="", words=100, errors=2),
    ),
)
PEER = Measured(
    name="peer",
    command="http://peer",
    start=None,
    first_seconds=1.0,
    loads=(
        LoadOnServer(load=load(1, 1.5)),
        LoadOnServer(load=load(8, 0.5, latency=None, errors={"500": 19, "ReadError": 1}, words=0, audio_seconds=0.0)),
    ),
    heard=(
        Heard(clip="short.wav", seconds=5.0, text="four words were said", words=4, errors=2),
        Heard(clip="long.flac", seconds=50.0, text="", words=100, errors=100, failure="500"),
    ),
)


def report(*servers: Measured) -> Report:
    machine = Machine(cpu="A CPU", cores=2, memory_gib=24, system="Linux", load_average=0.1)
    return Report(
        date="2025-12-01",
        command="python -m benchmarks.serving --requests 20",
        commit="abc",
        versions={"vllm": "0.32.0"},
        machine=machine,
        profile="cpu",
        clip_seconds=10.0,
        servers=servers,
    )


@pytest.mark.parametrize(
    ("label", "cells"),
    [
        ("start to ready, s", ["20.0", "-", "-"]),
        ("first answer, s", ["0.500", "1.000", "0.50"]),
        ("1 at once: clips/s", ["3.00", "1.50", "2.00"]),
        ("8 at once: latency p95, s", ["0.500", "-", "-"]),
        ("8 at once: errors", ["0", "20", "0.00"]),
        ("8 at once: processor s per audio hour", ["180.0", "-", "-"]),
        ("8 at once: peak RSS, GiB", ["3.00", "-", "-"]),
        ("8 at once: peak PSS, GiB", ["2.00", "-", "-"]),
        ("word error rate of demo clips up to 30 s, %", ["25.0", "50.0", "0.50"]),
        ("word error rate of demo clips over 30 s, %", ["2.0", "100.0", "0.02"]),
    ],
)
def test_the_table_has_both_values_and_ours_over_the_peers(label: str, cells: list[str]) -> None:
    (row,) = (row for row in rows(report(OURS, PEER)) if row.label == label)

    assert row.cells() == [label, *cells]


def test_without_a_peer_there_is_no_ratio() -> None:
    alone = report(OURS)

    assert {len(row.cells()) for row in rows(alone)} == {2}
    assert "ratio" not in to_markdown(alone)
    assert json.loads(to_json(alone))["ratios"] == {}


def test_json_has_everything_and_the_ratios() -> None:
    told = json.loads(to_json(report(OURS, PEER)))

    assert told["ratios"]["1 at once: RTFx"] == 2.0
    assert "8 at once: latency p50, s" not in told["ratios"]
    assert told["machine"]["cpu"] == "A CPU"
    assert told["servers"][1]["loads"][1]["load"]["errors"] == {"500": 19, "ReadError": 1}
    assert told["servers"][0]["heard"][0]["text"] == "four words were said"


def test_markdown_says_where_the_numbers_come_from() -> None:
    text = to_markdown(report(OURS, PEER))

    assert "- machine: A CPU, 2 cores, 24 GiB, Linux; load average before: 0.1\n" in text
    assert "- versions: omnihear abc, vllm 0.32.0\n" in text
    assert "- benchmark: `python -m benchmarks.serving --requests 20`\n" in text
    assert "- peer: `http://peer`\n" in text
    assert "| 1 at once: clips/s | 3.00 | 1.50 | 2.00 |\n" in text
    assert "| at once | decode | inference |\n| --- | ---: | ---: |\n| 1 | 4.0 | 150.0 |\n| 8 | 5.0 | - |\n" in text
    assert "| long.flac | 50.0 | 2 of 100 | 100 of 100 (500) |\n" in text


def test_the_terminal_shows_the_table() -> None:
    console = Console(width=200)
    with console.capture() as shown:
        console.print(to_terminal(report(OURS, PEER)))

    line = next(line for line in shown.get().splitlines() if "1 at once: RTFx" in line)
    assert [word for word in line.split() if word[0].isdigit()][1:] == ["30.0", "15.0", "2.00"]


def test_both_files_are_named_by_profile_and_date(tmp_path: Path) -> None:
    paths = write(report(OURS, PEER), tmp_path / "results")

    assert [path.name for path in paths] == ["serving-cpu-2025-12-01.json", "serving-cpu-2025-12-01.md"]
    assert json.loads(paths[0].read_text())["profile"] == "cpu"
    assert paths[1].read_text().startswith("# Serving, profile `cpu`, 2025-12-01\n")


def test_this_machine_and_what_is_installed_are_found() -> None:
    machine = Machine.here()

    assert machine.cpu
    assert machine.cores >= 1
    assert machine.memory_gib > 0
    assert versions()["torch"].startswith("2.")
    assert commit()
