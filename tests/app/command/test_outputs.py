import json
import os
from pathlib import Path

import pytest

from app.command.outputs import STANDARD, Job, OutputError, OutputFormat, plan
from app.transcription.transcript import Segment, Transcript

TRANSCRIPT = Transcript(
    text="Hello.", language="en", duration=2.0, segments=(Segment(index=0, start=0.1, end=1.5, text="Hello."),)
)
BOTH = (OutputFormat.TXT, OutputFormat.SRT)


def test_transcripts_go_beside_their_sources_or_into_a_folder() -> None:
    (beside,) = plan([Path("talks/a.wav")], BOTH, None)
    (apart,) = plan([Path("talks/a.wav")], BOTH, Path("out"))

    assert beside.targets == {OutputFormat.TXT: Path("talks/a.txt"), OutputFormat.SRT: Path("talks/a.srt")}
    assert apart.targets == {OutputFormat.TXT: Path("out/a.txt"), OutputFormat.SRT: Path("out/a.srt")}


def test_standard_input_goes_to_standard_output_unless_a_folder_is_named() -> None:
    assert plan([STANDARD], BOTH, None)[0].targets == {}
    assert plan([Path("a.wav")], BOTH, STANDARD)[0].targets == {}
    assert plan([STANDARD], [OutputFormat.TXT], Path("out"))[0].targets == {OutputFormat.TXT: Path("out/stdin.txt")}


@pytest.mark.parametrize("sources", [["a.wav", "a.mp3"], ["x/a.wav", "x/a.wav"], ["a.wav", "a.txt"], ["-", "-"]])
def test_sources_that_would_overwrite_each_other_are_refused(sources: list[str]) -> None:
    with pytest.raises(OutputError):
        plan(map(Path, sources), BOTH, None)


def test_what_is_written_is_done_until_the_source_changes(tmp_path: Path) -> None:
    source = tmp_path / "a.wav"
    source.write_bytes(b"RIFF")
    (job,) = plan([source], list(OutputFormat), None)
    assert not job.done

    job.write(TRANSCRIPT, (), 0.0)

    assert job.done
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.srt", "a.txt", "a.vtt", "a.wav"]
    assert (tmp_path / "a.txt").read_text() == "Hello.\n"
    assert json.loads((tmp_path / "a.json").read_text())["segments"][0]["end"] == 1.5
    os.utime(source, (2**31, 2**31))
    assert not job.done


def test_one_format_that_is_missing_is_not_done(tmp_path: Path) -> None:
    source = tmp_path / "a.wav"
    source.write_bytes(b"RIFF")
    plan([source], [OutputFormat.TXT], None)[0].write(TRANSCRIPT, (), 0.0)

    assert not plan([source], BOTH, None)[0].done


def test_standard_output_gets_each_format(capsys: pytest.CaptureFixture[str]) -> None:
    Job(STANDARD, {}).write(TRANSCRIPT, BOTH, 0.0)

    assert capsys.readouterr().out == "Hello.\n1\n00:00:00,100 --> 00:00:01,500\nHello.\n"
