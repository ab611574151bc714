"""`python -m training.synthesize CONFIG`: sentences of packages, spoken by synthesizers, in shards.

A shard is made whole or not at all and depends on seed, voice and number alone: what was interrupted goes on where it
was, on any number of processes.
"""

import json
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.clips import DEMO
from benchmarks.evaluation_sets import prepare
from training import shards
from training.configuration import Configuration, Voice, load
from training.progress import bar, console
from training.shards import Spoken
from training.texts import Sentence, collect, totals
from training.voices import Synthesizer, demo_speech, make, trim, usable

SECONDS_EACH = 4.0  # of a sentence, to count how many fill a shard
EVALUATION_UTTERANCES = 60
BLENDED = 0.4  # share of Kokoro's utterances with two voices mixed

Config = Annotated[Path, typer.Argument(help="TOML file; training/configs has some.")]


@dataclass(frozen=True, slots=True)
class Task:
    """One shard.

    Attributes:
        number: of the voice's shards; None for the one that is kept for evaluation.
    """

    voice: Voice
    number: int | None

    def audio(self, configuration: Configuration) -> Path:
        """Where it is written."""
        name = "evaluation" if self.number is None else f"{self.number:04d}"
        return configuration.shards / f"{self.voice.engine}-{name}.flac"


def main(
    config: Config,
    *,
    workers: Annotated[int, typer.Option(min=1, help="Processes; one core each.")] = 1,
) -> None:
    """Make all shards that are not there yet."""
    configuration = load(config)
    training, held_out = sentences(configuration)
    console.print(f"{len(training)} sentences to speak: {totals(training)}; {len(held_out)} held out")
    tasks = plan(configuration)
    waiting = [task for task in tasks if not shards.listing(task.audio(configuration)).exists()]
    with bar("shards", len(tasks), len(tasks) - len(waiting)) as progress:
        if workers == 1:
            for task in waiting:
                speak(configuration, task)
                progress.advance(note=task.audio(configuration).name)
        else:
            with ProcessPoolExecutor(workers) as pool:
                for done in as_completed(pool.submit(speak, configuration, task) for task in waiting):
                    progress.advance(note=done.result())


def plan(configuration: Configuration) -> list[Task]:
    """All shards, those for evaluation first, then of every voice its share: an early end leaves the same mixture."""
    numbered: list[tuple[float, Task]] = []
    for voice in configuration.synthesis.voices:
        count = 1 if voice.engine == "clips" else round(60 * voice.hours / configuration.synthesis.shard_minutes)
        numbered += [(number / max(1, count), Task(voice, number)) for number in range(max(1, count))]
    evaluation = [Task(voice, None) for voice in configuration.synthesis.voices if voice.held_out]
    return evaluation + [task for _, task in sorted(numbered, key=lambda each: each[0])]


def sentences(configuration: Configuration) -> tuple[list[Sentence], list[Sentence]]:
    """What is spoken for training, and for evaluation; read from `texts.json` after the first time."""
    path = configuration.work / "texts.json"
    if not path.exists():
        synthesis = configuration.synthesis
        training, held_out = collect(
            synthesis.texts,
            forbidden_texts(configuration) if synthesis.texts else [],
            cache=configuration.cache,
            held_out=synthesis.held_out,
            seed=configuration.seed,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        both = {"training": [*map(asdict, training)], "held_out": [*map(asdict, held_out)]}
        partial.write_text(json.dumps(both, indent=0), encoding="utf-8")
        partial.replace(path)
    both = json.loads(path.read_text(encoding="utf-8"))
    return [Sentence(**each) for each in both["training"]], [Sentence(**each) for each in both["held_out"]]


def forbidden_texts(configuration: Configuration) -> list[str]:
    """What evaluation clips and demo clips say.

    Raises:
        SystemExit: a set cannot be had, so that nobody knows what it says.
    """
    recordings, missing = prepare(configuration.cache / "evaluation")
    if missing:
        raise SystemExit(f"training could see evaluation texts: {missing}")
    demo = json.loads((DEMO / "transcripts.json").read_text(encoding="utf-8"))
    return [each.text for each in recordings] + [each["text"] for each in demo.values()]


def speak(configuration: Configuration, task: Task) -> str:
    """Make one shard; returns its name."""
    audio = task.audio(configuration)
    if task.voice.engine == "clips":
        spoken = list(demo_speech())
    else:
        synthesizer = make(task.voice, configuration.cache)
        chance = random.Random(f"{configuration.seed} {audio.stem}")
        spoken = list(_speak(configuration, task, synthesizer, chance))
    shards.write(audio, spoken)
    return audio.name


def _speak(configuration: Configuration, task: Task, synthesizer: Synthesizer, chance: random.Random) -> list[Spoken]:
    known = [name for name in task.voice.voices or synthesizer.voices if name not in task.voice.held_out]
    spoken = []
    for index, sentence in enumerate(_share(configuration, task)):
        if task.number is None:  # known and unknown voices in turn, unmixed
            voice = task.voice.held_out[index // 2 % len(task.voice.held_out)] if index % 2 else chance.choice(known)
        else:
            voice = chance.choice(known)
            if task.voice.engine == "kokoro" and chance.random() < BLENDED:
                voice += f"+{chance.choice(known)}"
        try:
            samples = trim(synthesizer.say(sentence.text, voice, chance))
        except RuntimeError as error:
            console.print(f"left out: {error}", soft_wrap=True)
            continue
        if usable(samples):
            spoken.append(
                Spoken(
                    samples=samples,
                    text=sentence.text,
                    voice=f"{task.voice.engine} {voice}",
                    source=sentence.source,
                    held_out=task.number is None,
                )
            )
    return spoken


def _share(configuration: Configuration, task: Task) -> Sequence[Sentence]:
    """The sentences of a shard: every voice has an order of its own, and begins again when all are said."""
    training, held_out = sentences(configuration)
    if task.number is None:
        return held_out[:EVALUATION_UTTERANCES]
    random.Random(f"{configuration.seed} {task.voice.engine}").shuffle(training)
    count = max(1, round(60 * configuration.synthesis.shard_minutes / SECONDS_EACH))
    return [training[index % len(training)] for index in range(task.number * count, (task.number + 1) * count)]


if __name__ == "__main__":
    typer.run(main)
