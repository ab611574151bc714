"""`python -m training.pack CONFIG`: everything training needs, in tar files small enough to send.

Speech becomes Opus: at 24 kbit/s an hour is 11 MB. The parts hold sentences, speech and the configuration; a part can
be unpacked alone, in any order. Weights to start from are in the repository.
"""

import gzip
import io
import tarfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.clips import read_recording
from benchmarks.evaluation_sets import prepare
from engine.interface import SAMPLE_RATE
from training import shards
from training.configuration import Configuration, load
from training.progress import bar, console
from training.synthesize import Config

MIB = 2**20
MOST_KILOBITS, LEAST_KILOBITS = 256.0, 6.0  # of libsndfile's Opus at compression 0 and 1, one channel
TEXTS = "texts.json.gz"
HUMAN = "human.opus"
HUMAN_KILOBITS = 64.0


def main(
    config: Config,
    *,
    workers: Annotated[int, typer.Option(min=1, help="Processes; one core each.")] = 1,
) -> None:
    """Encode the shards that are not packed yet, and cut parts anew."""
    configuration = load(config)
    pack_human(configuration)
    sources = shards.complete(configuration.shards, ".flac")
    waiting = [path for path in sources if not shards.listing(target(configuration, path)).exists()]
    with bar("packed shards", len(sources), len(sources) - len(waiting)) as progress:
        if waiting:
            with ProcessPoolExecutor(workers) as pool:
                for done in as_completed(pool.submit(encode, configuration, path) for path in waiting):
                    progress.advance(note=done.result())
    parts = cut(configuration)
    seconds = sum(
        each.length for audio in shards.complete(packed(configuration), ".opus") for each in shards.utterances_of(audio)
    )
    console.print(f"{seconds / SAMPLE_RATE / 3600:.2f} h in {len(parts)} parts")
    for part in parts:
        typer.echo(f"{part} {part.stat().st_size / MIB:.1f} MiB")


def packed(configuration: Configuration) -> Path:
    """Folder of Opus shards: here what goes into the parts, on the other machine what comes out of them."""
    return configuration.work / "packed"


def target(configuration: Configuration, audio: Path) -> Path:
    """Where a shard is packed."""
    name = "-".join(audio.relative_to(configuration.shards).with_suffix(".opus").parts)
    return packed(configuration) / name


def encode(configuration: Configuration, audio: Path) -> str:
    """Pack one shard; returns its name."""
    goal = target(configuration, audio)
    shards.write(goal, shards.read(audio), compression=_compression(configuration.packing.kilobits))
    return goal.name


def pack_human(configuration: Configuration) -> None:
    """Put the human evaluation clips, held out, beside the speech; nearly transparent, as they are not many."""
    goal = packed(configuration) / HUMAN
    if shards.listing(goal).exists() or not configuration.synthesis.texts:
        return
    recordings, missing = prepare(configuration.cache / "evaluation")
    for name, reason in missing.items():
        console.print(f"without the evaluation set {name}: {reason}", soft_wrap=True)
    spoken = [
        shards.Spoken(
            samples=read_recording(each.path), text=each.text, voice=f"human {each.set}", source=each.set, held_out=True
        )
        for each in recordings
    ]
    shards.write(goal, spoken, compression=_compression(HUMAN_KILOBITS))


def cut(configuration: Configuration) -> list[Path]:
    """Write the parts, first fit in order of names; sentences are in the first.

    Raises:
        SystemExit: a shard is larger than a part.
    """
    limit = configuration.packing.part_mib * MIB
    folder = configuration.parts
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("part-*.tar"):
        old.unlink()
    files = [configuration.work / "texts.json"]
    for audio in shards.complete(packed(configuration), ".opus"):
        files += [audio, shards.listing(audio)]
    groups: list[list[tuple[str, bytes]]] = [[]]
    size = 0
    for path in files:
        content = path.read_bytes()
        name = str(path.relative_to(configuration.work))
        if path.name == "texts.json":
            name, content = TEXTS, gzip.compress(content, mtime=0)
        room = len(content) + 2048  # tar's header and padding
        if room > limit:
            raise SystemExit(f"{path} does not fit a part of {configuration.packing.part_mib:g} MiB")
        if size + room > limit - 10_240:  # tar's end
            groups.append([])
            size = 0
        groups[-1].append((name, content))
        size += room
    parts = []
    for number, group in enumerate(groups):
        part = folder / f"part-{number:02d}.tar"
        with tarfile.open(part, "w") as archive:
            for name, content in group:
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        parts.append(part)
    return parts


def unpack(configuration: Configuration) -> None:
    """Lay out parts in the working folder, on the machine that trains; what is there already stays."""
    for part in sorted(configuration.parts.glob("part-*.tar")):
        with tarfile.open(part) as archive:
            for entry in archive:
                if not (configuration.work / entry.name).exists():
                    archive.extract(entry, configuration.work, filter="data")
    texts = configuration.work / TEXTS
    if texts.exists() and not (configuration.work / "texts.json").exists():
        (configuration.work / "texts.json").write_bytes(gzip.decompress(texts.read_bytes()))


def _compression(kilobits: float) -> float:
    return (MOST_KILOBITS - min(max(kilobits, LEAST_KILOBITS), MOST_KILOBITS)) / (MOST_KILOBITS - LEAST_KILOBITS)


if __name__ == "__main__":
    typer.run(main)
