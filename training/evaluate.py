"""`python -m training.evaluate CONFIG`: error rates of the exported checkpoint on every set apart, and its card.

Runs with Transformers on packed clips, so it runs where the training ran. `benchmarks.accuracy` does the same through
the service, as users hear it.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.report import markdown_table
from benchmarks.scoring import HEAD, Score, SetScore, row
from engine.interface import SAMPLE_RATE
from training import card, shards
from training.configuration import Configuration, load
from training.decoding import BATCH, Transcriber
from training.pack import packed
from training.progress import console
from training.shards import Samples, Spoken
from training.sounds import Sounds
from training.synthesize import Config

LONGEST_SECONDS = 30.0  # what the service cuts at
SPEECHLESS_SECONDS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One clip."""

    set: str
    voice: str
    spoken: str
    heard: str
    seconds: float


def main(
    config: Config,
    *,
    most: Annotated[int, typer.Option(min=0, help="Clips of each set; 0 for all.")] = 0,
    batch: Annotated[int, typer.Option(min=1, help="Clips at a time.")] = BATCH,
) -> None:
    """Transcribe what was held out, print and write `evaluation.json` and the model card."""
    configuration = load(config)
    heard = transcribe(configuration, most=most, batch=batch)
    scores = summarize(heard)
    report: dict[str, Any] = {"sets": [*map(asdict, scores)], "clips": [*map(asdict, heard)]}
    path = configuration.work / "evaluation.json"
    path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (configuration.model / "MODEL_CARD.md").write_text(card.fill(configuration, scores), encoding="utf-8")
    typer.echo("\n".join(markdown_table(HEAD, [row(each) for each in scores])))
    console.print(f"wrote {path} and {configuration.model / 'MODEL_CARD.md'}", soft_wrap=True)


def transcribe(configuration: Configuration, *, most: int = 0, batch: int = BATCH) -> list[Heard]:
    """All sets, or the first clips of each."""
    chosen: list[tuple[str, Spoken]] = []
    for name, clips in evaluation_sets(configuration).items():
        chosen += [(name, each) for each in clips[: most or None]]
    texts = Transcriber(configuration.model).texts([each.samples for _, each in chosen], batch=batch)
    return [
        Heard(
            set=name,
            voice=each.voice,
            spoken=each.text,
            heard=text,
            seconds=len(each.samples) / SAMPLE_RATE,
        )
        for (name, each), text in zip(chosen, texts, strict=True)
    ]


def evaluation_sets(configuration: Configuration) -> dict[str, list[Spoken]]:
    """Held-out clips by set, and sounds in which nothing is said; training speech where nothing is held out."""
    held_out = {name for voice in configuration.synthesis.voices for name in voice.held_out}
    sets: dict[str, list[Spoken]] = {}
    everything = [each for path in shards.complete(packed(configuration), ".opus") for each in shards.read(path)]
    for each in everything:
        if not each.held_out or len(each.samples) > LONGEST_SECONDS * SAMPLE_RATE:
            continue
        engine, _, voice = each.voice.partition(" ")
        if engine == "human":
            name = f"human: {each.source}"
        else:
            name = f"synthetic, {'unseen' if voice in held_out else 'known'} voice of {engine}"
        sets.setdefault(name, []).append(each)
    if not sets:
        sets["seen in training"] = [each for each in everything if each.codec is None]
    sets["no speech"] = [
        Spoken(samples=samples, text="", voice=name, source="made") for name, samples in speechless(configuration.seed)
    ]
    return sets


def speechless(seed: int) -> list[tuple[str, Samples]]:
    """Silence, and noises that training did not see: another seed makes others of the same kinds."""
    sounds = Sounds(torch.device("cpu"), seed + 1, SPEECHLESS_SECONDS)
    made = {
        "silence": torch.zeros(round(SPEECHLESS_SECONDS * SAMPLE_RATE)),
        "noise": sounds.coloured(),
        "tones": sounds.tones(),
        "hum": sounds.hum(),
        "music": sounds.music(),
        "impulses": sounds.impulses(),
    }
    result = []
    for name, sound in made.items():
        for level in (0.1,) if name == "silence" else (0.01, 0.1):
            scaled = level * 32767 * sound / sound.std().clamp_min(1e-6)
            result.append((name, np.clip(scaled.numpy(), -32768, 32767).astype(np.int16)))
    return result


def summarize(heard: Sequence[Heard]) -> list[SetScore]:
    """Each set apart."""
    names = list(dict.fromkeys(each.set for each in heard))
    return [
        SetScore.over(
            name,
            [Score.of(each.spoken, each.heard) for each in heard if each.set == name],
            sum(each.seconds for each in heard if each.set == name),
            empty=sum(not each.heard for each in heard if each.set == name),
        )
        for name in names
    ]


if __name__ == "__main__":
    typer.run(main)
