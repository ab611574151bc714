from pathlib import Path

import numpy as np
import pytest

from tests.audio_factory import clip
from training import shards
from training.shards import Spoken


def spoken() -> list[Spoken]:
    names = ("test-flite-male.wav", "number-uk-male.wav")
    return [
        Spoken(samples=np.round(clip(name) * 32767).astype(np.int16), text=f"Said in {name}.", voice="v", source="s")
        for name in names
    ]


def test_flac_gives_back_every_sample(tmp_path: Path) -> None:
    made = spoken()
    shards.write(tmp_path / "a.flac", made)

    for before, after in zip(made, shards.read(tmp_path / "a.flac"), strict=True):
        np.testing.assert_array_equal(before.samples, after.samples)
        assert (before.text, before.voice, before.held_out) == (after.text, after.voice, after.held_out)


def test_opus_is_small_and_keeps_everything_in_its_place(tmp_path: Path) -> None:
    made = spoken() * 10  # longer than a block of the writer
    shards.write(tmp_path / "a.opus", made, compression=0.93)

    assert (tmp_path / "a.opus").stat().st_size < sum(len(each.samples) for each in made) / 3
    for before, after in zip(made, shards.read(tmp_path / "a.opus"), strict=True):
        assert len(before.samples) == len(after.samples)
        likeness = np.corrcoef(before.samples, after.samples)[0, 1]
        assert likeness > 0.9


def test_a_shard_without_its_listing_does_not_count(tmp_path: Path) -> None:
    shards.write(tmp_path / "whole.flac", spoken())
    (tmp_path / "torn.flac").write_bytes((tmp_path / "whole.flac").read_bytes()[:1000])

    assert shards.complete(tmp_path, ".flac") == [tmp_path / "whole.flac"]


def test_another_rate_is_refused(tmp_path: Path) -> None:
    import soundfile

    shards.write(tmp_path / "a.flac", spoken())
    soundfile.write(tmp_path / "a.flac", np.zeros(8000, np.int16), 8000)

    with pytest.raises(ValueError, match="8000 Hz"):
        shards.read(tmp_path / "a.flac")
