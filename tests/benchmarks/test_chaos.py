from pathlib import Path

from typer import Typer
from typer.testing import CliRunner

from benchmarks.chaos import main

command = Typer()
command.command()(main)


def test_a_service_keeps_its_promises_whatever_is_done_to_it(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["--engine", "scripted", "--output", str(tmp_path)])

    assert done.exit_code == 0, done.output
    (report,) = tmp_path.glob("chaos-scripted-*.md")
    assert report.read_text().count("| yes |") == 3
