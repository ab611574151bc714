"""Recordings whose words are known: manifests of JSON lines, and folders as LibriSpeech has them."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One file.

    Attributes:
        text: what is said; empty where nothing is.
        set: the name under which it is counted.
    """

    path: Path
    text: str
    set: str


def read(source: Path) -> list[Recording]:
    """Read a manifest, or a folder that holds `*.trans.txt`.

    Args:
        source: a file of JSON lines with `path` (relative to the file), `text` and, if not the file's name, `set`; or
            a folder in whose `SPEAKER-CHAPTER.trans.txt` each line is an utterance's name and its words, beside
            the audio of that name. The set is the folder's name.

    Raises:
        ValueError: says the line, or the name that has no audio.
    """
    return _librispeech(source) if source.is_dir() else _json_lines(source)


def write(recordings: Iterable[Recording], manifest: Path) -> None:
    """Write JSON lines; paths below the manifest's folder are written relative to it."""
    lines = []
    for each in recordings:
        path = each.path.relative_to(manifest.parent) if each.path.is_relative_to(manifest.parent) else each.path
        lines.append(json.dumps({**asdict(each), "path": str(path)}, ensure_ascii=False))
    partial = manifest.with_suffix(".partial")
    partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
    partial.replace(manifest)


def _json_lines(manifest: Path) -> list[Recording]:
    recordings = []
    for number, line in enumerate(manifest.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            path, text = manifest.parent / entry["path"], str(entry["text"])
        except (ValueError, KeyError, TypeError) as error:
            msg = f"{manifest}:{number}: not an object with path and text ({error!r})"
            raise ValueError(msg) from error
        if not path.is_file():
            msg = f"{manifest}:{number}: {path} is not a file"
            raise ValueError(msg)
        recordings.append(Recording(path=path, text=text, set=str(entry.get("set", manifest.stem))))
    return recordings


def _librispeech(folder: Path) -> list[Recording]:
    recordings = []
    for transcript in sorted(folder.rglob("*.trans.txt")):
        audio = {path.stem: path for path in transcript.parent.iterdir() if path != transcript}
        for line in transcript.read_text(encoding="utf-8").splitlines():
            name, _, text = line.strip().partition(" ")
            if not name:
                continue
            if name not in audio:
                msg = f"{transcript}: no audio of {name}"
                raise ValueError(msg)
            recordings.append(Recording(path=audio[name], text=text, set=folder.name))
    if not recordings:
        msg = f"{folder} has no *.trans.txt"
        raise ValueError(msg)
    return recordings
