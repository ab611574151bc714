import json
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from benchmarks.growth import exponent, main

command = Typer()
command.command()(main)


@pytest.mark.parametrize("power", [0.0, 1.0, 1.5])
def test_the_exponent_is_the_power_that_costs_grow_with(power: float) -> None:
    sizes = [10.0, 60.0, 600.0, 7200.0]

    assert exponent(sizes, [3 * size**power for size in sizes]) == pytest.approx(power)


def test_both_curves_are_measured_and_written(tmp_path: Path) -> None:
    options = ["--minutes", "0.2,0.1", "--callers", "1,2", "--rounds", "1", "--output", str(tmp_path)]

    done = CliRunner().invoke(command, options)

    assert done.exit_code == 0, done.output
    (path,) = tmp_path.glob("growth-host-*.json")
    told = json.loads(path.read_text())
    assert [cost["size"] for cost in told["lengths"]] == [6.0, 12.0]
    assert [cost["size"] for cost in told["callers"]] == [1, 2]
    for cost in (*told["lengths"], *told["callers"]):
        assert min(cost["seconds"], cost["cpu_seconds"], cost["service_mib"], cost["worker_mib"]) > 0
    assert set(told["exponents"]) == {"seconds", "cpu_seconds", "service_mib", "worker_mib"}
    assert "| seconds of audio |" in path.with_suffix(".md").read_text()
