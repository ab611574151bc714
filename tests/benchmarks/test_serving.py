import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from benchmarks.serving import main, make_plan
from tests.audio_factory import CLIPS
from tests.serving import Server, serving

JFK = CLIPS / "jfk-human.wav"
command = Typer()
command.command()(main)


@pytest.fixture(scope="module")
def scripted_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("scripted")
    with serving(folder, environment={"OMNIHEAR_ENGINE_BACKEND": "scripted"}) as server:
        yield server


def test_no_clip_is_sent_twice() -> None:
    plan = make_plan([JFK], 5.0, [1, 3], 4)

    assert {callers: len(clips) for callers, clips in plan.clips.items()} == {1: 4, 3: 4}
    assert len(plan.warm_up) == 3
    every = [plan.first, *plan.warm_up, *plan.clips[1], *plan.clips[3]]
    assert len({clip.wav for clip in every}) == 12


def test_the_command_starts_measures_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIHEAR_ENGINE_BACKEND", "scripted")
    options = ["--profile", "cpu", "--concurrency", "2", "--concurrency", "1", "--requests", "3", "--peer", "none"]

    done = CliRunner().invoke(
        command, [*options, "--clips", str(JFK), "--clip-seconds", "4", "--output", str(tmp_path)]
    )

    assert done.exit_code == 0, done.output
    assert "2 at once: clips/s" in done.stdout
    (path,) = tmp_path.glob("serving-cpu-*.json")
    told = json.loads(path.read_text())
    (server,) = told["servers"]
    assert [each["load"]["concurrency"] for each in server["loads"]] == [1, 2]
    for each in server["loads"]:
        assert (each["load"]["requests"], each["load"]["errors"]) == (3, {})
        assert each["cpu_seconds"] > 0
        assert each["memory"]["rss"] > each["memory"]["pss"] > 0
    assert server["start"]["ready_seconds"] > server["first_seconds"] > 0
    assert all(heard["text"].startswith("audio of ") and heard["errors"] for heard in server["heard"])


def test_a_peer_that_lacks_the_route_is_reported_and_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted_server: Server
) -> None:
    """The peer is this service, which answers 404 to chat completions."""
    monkeypatch.setenv("OMNIHEAR_ENGINE_BACKEND", "scripted")
    options = ["--concurrency", "1", "--requests", "2", "--clip-seconds", "4", "--output", str(tmp_path)]

    done = CliRunner().invoke(command, [*options, "--peer", scripted_server.url])

    assert done.exit_code == 0, done.output
    (path,) = tmp_path.glob("serving-cpu-*.json")
    _, peer = json.loads(path.read_text())["servers"]
    (load,) = peer["loads"]
    assert sum(load["load"]["errors"].values()) == 2
    assert load["memory"] is None
    assert (peer["start"], peer["first_seconds"]) == (None, None)
    assert all(heard["failure"] for heard in peer["heard"])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--peer", "faster"], "neither stock, nor none, nor a URL"),
        (["--clips", str(CLIPS / "test-flite-male.wav")], "no recording is 10 s long"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(options: list[str], told: str) -> None:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(command, options)

    assert done.exit_code == 2
    assert told in done.output
