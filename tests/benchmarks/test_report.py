import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.answers import Latency, Load
from benchmarks.machine import Machine, commit, versions
from benchmarks.plot import draw
from benchmarks.processes import Memory
from benchmarks.report import load_table, start_table, to_json, to_markdown, to_terminal, write
from benchmarks.results import LoadOnServer, Measured, Report, Start
from benchmarks.scenarios import Scenario
from benchmarks.words import Heard

GIB = 2**30


def load(name: str, clips_per_second: float, **changes: object) -> Load:
    values = {
        "scenario": Scenario.parse(name),
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


def taken(measured: Load, **changes: object) -> LoadOnServer:
    values = {"cpu_seconds": 10.0, "memory": Memory(3 * GIB, 2 * GIB)}
    return LoadOnServer(load=measured, **(values | changes))  # type: ignore[arg-type]


OURS = Measured(
    name="omnihear cpu",
    command="python -m app.cli serve",
    start=Start(ready_seconds=20.0, cpu_seconds=30.0, memory=Memory(2 * GIB, GIB)),
    first_seconds=0.5,
    loads=(
        taken(load("1", 3.0, stages={"decode": 4.0, "inference": 150.0})),
        taken(load("8", 6.0, stages={"decode": 5.0})),
        taken(load("20/s:mixed:stream", 6.0, first_text=Latency(mean=0.1, p50=0.1, p95=0.2, p99=0.2), tokens=30.0)),
    ),
    heard=(
        Heard(clip="short.wav", seconds=5.0, text="four words were said", words=4, errors=1),
        Heard(clip="long.flac", seconds=50.0, text="", words=100, errors=2),
    ),
)
PEER = Measured(
    name="peer",
    command="http://peer",
    first_seconds=1.0,
    loads=(
        LoadOnServer(load=load("1", 1.5)),
        LoadOnServer(load=load("8", 0.5, latency=None, errors={"500": 19, "ReadError": 1}, words=0, audio_seconds=0.0)),
    ),
    heard=(
        Heard(clip="short.wav", seconds=5.0, text="four words were said", words=4, errors=2),
        Heard(clip="long.flac", seconds=50.0, text="", words=100, errors=100, failure="500"),
    ),
)
BROKEN = Measured(name="omnihear max", command="x", failure="ended with status 1\nTraceback\nno such device")


def report(*servers: Measured, has_peer: bool = True) -> Report:
    machine = Machine(cpu="A CPU", cores=2, memory_gib=24, system="Linux", load_average=0.1)
    return Report(
        date="2025-12-01",
        command="python -m benchmarks.serving --requests 20",
        commit="abc",
        versions={"vllm": "0.32.0"},
        machine=machine,
        profiles=("cpu", "max"),
        model="omni-tiny-en",
        clip_seconds=10.0,
        servers=servers,
        has_peer=has_peer,
    )


ALL = report(OURS, BROKEN, PEER)


@pytest.mark.parametrize(
    ("label", "cells"),
    [
        ("start to ready, s", ["20.0", "-", "-"]),
        ("first answer, s", ["0.500", "-", "1.000"]),
        ("PSS when ready, GiB", ["1.00", "-", "-"]),
        ("word error rate, clips up to 30 s, %", ["25.0", "-", "50.0"]),
        ("word error rate, clips over 30 s, %", ["2.0", "-", "100.0"]),
    ],
)
def test_what_it_takes_to_come_up_has_a_column_for_each_server(label: str, cells: list[str]) -> None:
    head, rows = start_table(ALL)

    assert head == ["", "omnihear cpu", "omnihear max", "peer"]
    assert [label, *cells] in rows


@pytest.mark.parametrize(
    ("name", "server", "cells"),
    [
        ("1", "omnihear cpu", {"clips/s": "3.00", "RTFx": "30.0", "p95, s": "0.500", "clips/s over peer's": "2.00"}),
        ("1", "peer", {"clips/s": "1.50", "clips/s over peer's": "-", "peak PSS, GiB": "-"}),
        ("8", "omnihear cpu", {"processor s per audio hour": "180.0", "p95 over peer's": "-", "peak RSS, GiB": "3.00"}),
        ("8", "peer", {"errors": "20", "p50, s": "-"}),
        ("20/s:mixed:stream", "omnihear cpu", {"first text p95, s": "0.200", "tokens each": "30.0"}),
    ],
)
def test_each_load_has_a_row_for_each_server(name: str, server: str, cells: dict[str, str]) -> None:
    head, rows = load_table(ALL)

    (row,) = (row for row in rows if row[:2] == [name, server])
    assert {label: row[head.index(label)] for label in cells} == cells


def test_the_servers_stand_below_each_other_and_what_nobody_measured_is_left_out() -> None:
    head, rows = load_table(ALL)

    assert [row[:2] for row in rows[:3]] == [["1", "omnihear cpu"], ["1", "peer"], ["8", "omnihear cpu"]]
    assert "GPU busy, %" not in head
    assert (
        "GPU busy, %"
        in load_table(report(Measured(name="x", command="", loads=(taken(load("1", 1), gpu_busy=0.5),))))[0]
    )


def test_without_a_peer_there_is_no_ratio() -> None:
    alone = report(OURS, has_peer=False)

    assert "over peer" not in to_markdown(alone)
    assert json.loads(to_json(alone))["ratios"] == []


def test_json_has_everything_and_the_ratios() -> None:
    told = json.loads(to_json(ALL))

    assert told["ratios"][0] == {"server": "omnihear cpu", "load": "1", "clips/s": 2.0, "p95, s": 1.0}
    assert told["machine"]["cpu"] == "A CPU"
    assert told["servers"][2]["loads"][1]["load"]["errors"] == {"500": 19, "ReadError": 1}
    assert told["servers"][0]["heard"][0]["text"] == "four words were said"
    assert [each["name"] for each in told["servers"][0]["loads"]] == ["1", "8", "20/s:mixed:stream"]


def test_markdown_says_where_the_numbers_come_from_and_what_went_wrong() -> None:
    text = to_markdown(ALL)

    assert "# Serving, profiles cpu, max, 2025-12-01\n" in text
    assert "- machine: A CPU, 2 cores, 24 GiB, Linux; load average before: 0.1\n" in text
    assert "- versions: omnihear abc, vllm 0.32.0\n" in text
    assert "- benchmark: `python -m benchmarks.serving --requests 20`\n" in text
    assert "- peer: `http://peer`\n" in text
    assert "- omnihear max: **no such device**\n" in text
    assert "| load | decode | inference |\n| --- | ---: | ---: |\n| 1 | 4.0 | 150.0 |\n| 8 | 5.0 | - |\n" in text
    assert "| long.flac | 50.0 | 2 of 100 | 100 of 100 (500) |\n" in text


def test_the_terminal_shows_what_matters_most() -> None:
    console = Console(width=120)
    with console.capture() as shown:
        console.print(to_terminal(ALL))

    line = next(line for line in shown.get().splitlines() if "omnihear cpu" in line)
    assert line.replace("│", " ").split() == ["1", "omnihear", "cpu", "3.00", "30.0", "0.400", "0.500", "0", "2.00"]


def test_all_files_are_named_by_profiles_and_date(tmp_path: Path) -> None:
    paths = write(ALL, tmp_path / "results")

    assert [path.name for path in paths] == ["serving-cpu-max-2025-12-01.json", "serving-cpu-max-2025-12-01.md"]
    assert json.loads(paths[0].read_text())["profiles"] == ["cpu", "max"]


def test_the_drawing_has_a_line_for_each_server_and_a_tick_for_each_concurrency(tmp_path: Path) -> None:
    path, _ = write(ALL, tmp_path)

    drawn = draw(path).read_text()

    for text in ("omnihear cpu", "peer", "RTFx", "p95 latency", "callers at once"):
        assert f"<!-- {text} -->" in drawn
    assert draw(path).read_text() == drawn


def test_a_report_without_a_single_answer_can_be_drawn(tmp_path: Path) -> None:
    path, _ = write(report(BROKEN, has_peer=False), tmp_path)

    assert draw(path).exists()


def test_this_machine_and_what_is_installed_are_found() -> None:
    machine = Machine.here()

    assert machine.cpu
    assert machine.cores >= 1
    assert machine.memory_gib > 0
    assert versions()["torch"].startswith("2.")
    assert commit()
