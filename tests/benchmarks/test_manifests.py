from pathlib import Path

import pytest

from benchmarks.manifests import Recording, read, write


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "clips").mkdir()
    recordings = []
    for name in ("a.wav", "b.wav"):
        (tmp_path / "clips" / name).touch()
        recordings.append(Recording(path=tmp_path / "clips" / name, text=f"Say {name} – now.", set="mine"))

    write(recordings, tmp_path / "clips.jsonl")

    assert read(tmp_path / "clips.jsonl") == recordings
    assert '"path": "clips/a.wav"' in (tmp_path / "clips.jsonl").read_text()


def test_a_set_without_a_name_is_called_as_its_manifest(tmp_path: Path) -> None:
    (tmp_path / "a.wav").touch()
    (tmp_path / "calls.jsonl").write_text('{"path": "a.wav", "text": "hello"}\n\n')

    (recording,) = read(tmp_path / "calls.jsonl")

    assert recording.set == "calls"


@pytest.mark.parametrize("line", ["{", "[]", '{"path": "a.wav"}', '{"path": "absent.wav", "text": ""}'])
def test_a_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.wav").touch()
    (tmp_path / "clips.jsonl").write_text('{"path": "a.wav", "text": "hello"}\n' + line)

    with pytest.raises(ValueError, match=r"clips\.jsonl:2"):
        read(tmp_path / "clips.jsonl")


def test_librispeechs_folders_are_read(tmp_path: Path) -> None:
    chapter = tmp_path / "test-clean" / "61" / "70968"
    chapter.mkdir(parents=True)
    for name in ("61-70968-0000.flac", "61-70968-0001.flac"):
        (chapter / name).touch()
    (chapter / "61-70968.trans.txt").write_text("61-70968-0000 HE BEGAN A CONFUSED\n61-70968-0001 GOD BLESS\n")

    first, second = read(tmp_path / "test-clean")

    assert first == Recording(path=chapter / "61-70968-0000.flac", text="HE BEGAN A CONFUSED", set="test-clean")
    assert second.path.name == "61-70968-0001.flac"


def test_a_transcript_without_its_audio_is_named(tmp_path: Path) -> None:
    (tmp_path / "1-2.trans.txt").write_text("1-2-0000 HELLO\n")

    with pytest.raises(ValueError, match="no audio of 1-2-0000"):
        read(tmp_path)


def test_a_folder_without_transcripts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no \*\.trans\.txt"):
        read(tmp_path)
