import json
from pathlib import Path

from typer import Typer
from typer.testing import CliRunner

from benchmarks.hostile import main

command = Typer()
command.command()(main)


def test_a_small_campaign_is_told_and_written(tmp_path: Path) -> None:
    options = ["--files", "30", "--raw", "10", "--documented", "1", "--output", str(tmp_path)]

    done = CliRunner().invoke(command, options)

    assert done.exit_code == 0, done.output
    (path,) = tmp_path.glob("hostile-*.json")
    told = json.loads(path.read_text())
    assert told["inputs"] >= 40 + 9
    assert told["alive"]
    assert told["clean"]["different answers"] == 1
    assert "| OpenAPI document |" in path.with_suffix(".md").read_text()
