import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer import Typer
from typer.testing import CliRunner

from benchmarks.checkpoints import write_checkpoint
from benchmarks.dialects import Transcribe
from benchmarks.load import send
from benchmarks.measuring import make_plan
from benchmarks.scenarios import Scenario
from benchmarks.servers import omnihear, random_weights
from benchmarks.serving import main
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
    scenarios = [Scenario.parse(text) for text in ("1", "3", "3:mp3", "2:mixed")]

    plan = make_plan([CLIPS / "harbor-story-long.flac"], 5.0, scenarios, 4)

    assert [(str(scenario), len(clips)) for scenario, clips in plan.loads] == [
        ("1", 4),
        ("3", 12),
        ("3:mp3", 12),
        ("2:mixed", 8),
    ]
    assert len(plan.warm_up) == 3
    every = [plan.first, *plan.warm_up, *(clip for _, clips in plan.loads for clip in clips)]
    assert len({clip.content for clip in every}) == 1 + 3 + 4 + 12 + 12 + 8
    lengths = {clip.seconds for clip in plan.loads[3][1]}
    assert (len(lengths), min(lengths) >= 1, max(lengths) <= 30) == (8, True, True)
    assert {clip.seconds for _, clips in plan.loads[:3] for clip in clips} == {5.0}


def test_the_command_starts_measures_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIHEAR_ENGINE_BACKEND", "scripted")
    options = ["--profiles", "cpu", "--loads", "2,1,20/s:opus:stream", "--requests", "3", "--no-stock"]
    limits = ["--load-seconds", "0.5", "--clips", str(JFK), "--clip-seconds", "4"]

    done = CliRunner().invoke(command, [*options, *limits, "--output", str(tmp_path)])

    assert done.exit_code == 0, done.output
    (path,) = tmp_path.glob("serving-cpu-*.json")
    assert path.with_suffix(".svg").exists()
    told = json.loads(path.read_text())
    (server,) = told["servers"]
    assert [each["name"] for each in server["loads"]] == ["2", "1", "20/s:opus:stream"]
    for each in server["loads"]:
        assert each["load"]["errors"] == {}
        assert each["cpu_seconds"] > 0
        assert each["memory"]["rss"] > each["memory"]["pss"] > 0
    assert server["loads"][2]["load"]["first_text"]["p50"] > 0
    assert server["start"]["ready_seconds"] > server["first_seconds"] > 0
    assert all(heard["text"].startswith("audio of ") and heard["errors"] for heard in server["heard"])


def test_servers_take_turns_with_each_load_and_all_of_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIHEAR_ENGINE_BACKEND", "scripted")
    options = ["--profiles", "cpu,cpu-compiled", "--loads", "2,1", "--requests", "7", "--turns", "3", "--no-stock"]

    done = CliRunner().invoke(command, [*options, "--clip-seconds", "4", "--no-plot", "--output", str(tmp_path)])

    assert done.exit_code == 0, done.output
    (path,) = tmp_path.glob("serving-cpu-cpu-compiled-*.json")
    servers = json.loads(path.read_text())["servers"]
    assert [server["name"] for server in servers] == ["omnihear cpu", "omnihear cpu-compiled"]
    for server in servers:
        assert [each["load"]["requests"] for each in server["loads"]] == [8, 7]
        for each in server["loads"]:
            load = each["load"]
            assert len(load["latencies"]) == load["requests"]
            assert load["clips_per_second"] == pytest.approx(load["requests"] / load["seconds"])
            assert each["cpu_seconds"] > 0


def test_a_peer_that_lacks_the_route_is_reported_and_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted_server: Server
) -> None:
    """The peer is this service, which answers 404 to chat completions."""
    monkeypatch.setenv("OMNIHEAR_ENGINE_BACKEND", "scripted")
    options = ["--loads", "1", "--requests", "2", "--clip-seconds", "4", "--output", str(tmp_path), "--no-plot"]

    done = CliRunner().invoke(command, [*options, "--peer", scripted_server.url])

    assert done.exit_code == 0, done.output
    (path,) = tmp_path.glob("serving-cpu-*.json")
    _, peer = json.loads(path.read_text())["servers"]
    (load,) = peer["loads"]
    assert sum(load["load"]["errors"].values()) == 4
    assert load["memory"] is None
    assert (peer["start"], peer["first_seconds"]) == (None, None)
    assert all(heard["failure"] for heard in peer["heard"])


def test_a_server_that_does_not_start_is_reported_with_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted_server: Server
) -> None:
    monkeypatch.setenv("OMNIHEAR_ENGINE_BACKEND", "scripted")
    options = ["--loads", "1", "--requests", "2", "--clip-seconds", "4", "--output", str(tmp_path), "--no-plot"]

    done = CliRunner().invoke(command, [*options, "--start-seconds", "0.01", "--peer", scripted_server.url])

    assert done.exit_code == 1
    (path,) = tmp_path.glob("serving-cpu-*.json")
    ours, peer = json.loads(path.read_text())["servers"]
    assert ours["failure"].startswith("the server did not become ready")
    assert (ours["loads"], len(peer["loads"])) == ([], 1)


def test_loads_for_which_there_is_no_time_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIHEAR_ENGINE_BACKEND", "scripted")
    options = ["--loads", "1,2", "--requests", "2", "--clip-seconds", "4", "--output", str(tmp_path), "--no-plot"]

    done = CliRunner().invoke(command, [*options, "--no-stock", "--server-seconds", "0"])

    assert done.exit_code == 1
    (path,) = tmp_path.glob("serving-cpu-*.json")
    assert json.loads(path.read_text())["servers"][0]["failure"] == "no time for 1, 2"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--peer", "faster"], "is no URL"),
        (["--clips", str(CLIPS / "test-flite-male.wav")], "no recording is 10 s long"),
        (["--loads", "1,many"], "'many' is no load"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(options: list[str], told: str) -> None:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(command, options)

    assert done.exit_code == 2
    assert told in done.output


@pytest.mark.engine
async def test_random_weights_answer_with_the_tokens_that_were_asked_for(tmp_path: Path) -> None:
    launch = omnihear(environment=random_weights(write_checkpoint(tmp_path / "model", "tiny")), tokens=7)
    plan = make_plan([JFK], 5.0, [Scenario(callers=1)], 1, words=False)
    with serving(tmp_path, command=launch.command, environment=launch.environment) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            answer = await send(client, Transcribe("en"), plan.first, stream=True)

    assert (answer.error, answer.tokens) == (None, 7)
