import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from benchmarks import soak
from benchmarks.mixture import Mixture
from benchmarks.soak import Report, Weight, main

command = Typer()
command.command()(main)

WARM = Weight(pss_mib=100, rss_mib=200, descriptors=50, threads=20, processes=4, spooled_files=0)


def report(after: Weight = WARM, **changes: object) -> Report:
    made = Report(engine="scripted", date="today", commit="none", machine="this", warm=WARM, after=after)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_nothing_is_found_where_nothing_has_changed() -> None:
    answers = {"good": {"200": 5}, "bad": {"415": 2, "422": 1}, "cancelled": {"left": 3, "200": 1}}
    assert report(statuses=answers).faults() == []
    assert report(replace(WARM, pss_mib=104, descriptors=49)).faults() == []


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        (report(replace(WARM, pss_mib=106)), "memory"),
        (report(replace(WARM, pss_mib=90)), "memory"),
        (report(replace(WARM, descriptors=51)), "descriptors"),
        (report(replace(WARM, threads=21)), "threads"),
        (report(replace(WARM, processes=5)), "processes"),
        (report(replace(WARM, spooled_files=1)), "spooled_files"),
        (report(different=["json of a clip"]), "json of a clip"),
        (report(statuses={"good": {"200": 1, "503": 1}}), "503"),
        (report(statuses={"bad": {"500": 1}}), "500"),
        (report(statuses={"good": {"left": 1}}), "left"),
    ],
)
def test_what_stays_behind_or_differs_is_found(changed: Report, word: str) -> None:
    (fault,) = changed.faults()
    assert word in fault


def test_a_mixture_has_its_shares_and_is_the_same_every_time() -> None:
    requests = list(Mixture().requests(1000))
    kinds = [request.kind for request in requests]
    assert kinds.count("bad") == pytest.approx(300, abs=50)
    assert kinds.count("cancelled") == pytest.approx(100, abs=30)
    assert [each.name for each in requests] == [each.name for each in Mixture().requests(1000)]


def test_a_small_soak_is_measured_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "IDLE_THREADS_SECONDS", 0.1)
    options = ["--requests", "40", "--warm-up", "20", "--at-once", "4", "--output", str(tmp_path)]

    done = CliRunner().invoke(command, options)

    (path,) = tmp_path.glob("soak-scripted-*.json")
    told = json.loads(path.read_text())
    assert told["compared"] > 10, done.output
    assert told["different"] == []
    assert set(told["statuses"]["good"]) == {"200"}
    assert told["warm"]["pss_mib"] > 50
    assert told["after"]["spooled_files"] == 0
    assert "| all processes, at rest |" in path.with_suffix(".md").read_text()
