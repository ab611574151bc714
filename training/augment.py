"""`python -m training.augment CONFIG`: a second form of some shards, gone through the codecs of telephones.

Everything that a GPU can do to sound, rooms, bands, noise, is done anew for each batch (`training.distortion`); codecs
need FFmpeg, so what they do is written down.
"""

import random
from pathlib import Path
from typing import Annotated

import typer

from training import shards
from training.codecs import CODECS, through
from training.configuration import Configuration, load
from training.progress import bar
from training.shards import Spoken
from training.synthesize import Config

CODED = "coded"


def main(
    config: Config,
    *,
    workers: Annotated[int, typer.Option(min=1, help="Processes; one core each.")] = 1,
) -> None:
    """Make the coded forms that are not there yet."""
    from concurrent.futures import ProcessPoolExecutor, as_completed

    configuration = load(config)
    tasks = [path for path in chosen(configuration) if not shards.listing(target(configuration, path)).exists()]
    with bar("coded shards", len(tasks)) as progress, ProcessPoolExecutor(workers) as pool:
        for done in as_completed(pool.submit(code, configuration, path) for path in tasks):
            progress.advance(note=done.result())


def chosen(configuration: Configuration) -> list[Path]:
    """Shards that get a coded form: every one has its own lot, so that more speech does not change the choice."""
    made = [path for path in shards.complete(configuration.shards, ".flac") if path.parent.name != CODED]
    return [
        path
        for path in made
        if not path.stem.endswith("evaluation")
        and random.Random(f"{configuration.seed} codec {path.stem}").random() < configuration.augmentation.share
    ]


def target(configuration: Configuration, audio: Path) -> Path:
    """Where a shard's coded form is."""
    return configuration.shards / CODED / audio.name


def code(configuration: Configuration, audio: Path) -> str:
    """Put each utterance of a shard through a codec of chance; returns the shard's name."""
    chance = random.Random(f"{configuration.seed} codecs {audio.stem}")
    spoken = []
    for each in shards.read(audio):
        name = chance.choice(configuration.augmentation.codecs)
        spoken.append(
            Spoken(
                samples=through(each.samples, CODECS[name]),
                text=each.text,
                voice=each.voice,
                source=each.source,
                codec=name,
            )
        )
    shards.write(target(configuration, audio), spoken)
    return audio.name


if __name__ == "__main__":
    typer.run(main)
