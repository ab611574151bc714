"""Sentences to speak: from packages, cleaned, without those that any evaluation clip says."""

import html
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.packages import fetch, read_text
from training.configuration import TextSource
from training.templates import sentences as template_sentences

SHORTEST, LONGEST = 3, 30  # words
SPEAKABLE = re.compile(r"[A-Za-z ,.;:'?!-]+")
ACRONYM = re.compile(r"[A-Z]{4,}")
VULGAR = re.compile(r"\b(fuck|shit|cunt|nigger|faggot|rape|whore|bitch|slut|penis|vagina|masturbat)\w*", re.IGNORECASE)
TEMPLATES = 16_000  # where a source of templates names no number
CONTAINED = 5  # words of an evaluation text that a sentence must not contain


@dataclass(frozen=True, slots=True)
class Sentence:
    """What will be spoken, as it will be written."""

    text: str
    source: str


def collect(
    sources: Iterable[TextSource], forbidden: Iterable[str], *, cache: Path, held_out: int, seed: int
) -> tuple[list[Sentence], list[Sentence]]:
    """All sentences in an order of chance, those of training first.

    Args:
        forbidden: texts of evaluation clips.
        cache: folder of fetched packages.
        held_out: number of sentences kept for evaluation.

    Raises:
        benchmarks.packages.PackageError: a source's package cannot be had.
    """
    chance = random.Random(seed)
    banned = Forbidden(forbidden)
    seen: set[str] = set()
    found: list[Sentence] = []
    for source in sources:
        fresh = []
        for text in map(finish, _read(source, cache, seed)):
            known = key(text)
            if speakable(text) and known not in seen and known not in banned:
                seen.add(known)
                fresh.append(Sentence(text, source.name))
        chance.shuffle(fresh)
        found += fresh[: source.most]
    chance.shuffle(found)
    return found[held_out:], found[:held_out]


class Forbidden:
    """What evaluation clips say, whole, by clauses of three words or more, and as a part of something longer."""

    def __init__(self, texts: Iterable[str]) -> None:
        whole = {key(text) for text in texts if key(text)}
        clauses = {key(clause) for text in texts for clause in re.split(r"(?<=[.!?,;])\s+", text)}
        self._said = whole | {clause for clause in clauses if len(clause.split()) >= SHORTEST}
        self._runs = {tuple(words[:CONTAINED]) for said in self._said if len(words := said.split()) >= CONTAINED}
        self._long = [said for said in self._said if len(said.split()) >= CONTAINED]

    def __contains__(self, text: str) -> bool:
        words = text.split()
        runs = (tuple(words[start : start + CONTAINED]) for start in range(len(words) - CONTAINED + 1))
        # The first words are looked up before whole texts are searched: most sentences share none.
        return text in self._said or (not self._runs.isdisjoint(runs) and any(said in text for said in self._long))


def key(text: str) -> str:
    """Words alone, by which texts are told apart."""
    return " ".join(re.sub(r"[^a-z' ]+", " ", text.lower()).split())


def speakable(text: str) -> bool:
    """Whether every synthesizer and every reader would say the same."""
    words = text.split()
    return (
        1 <= len(words) <= LONGEST
        and SPEAKABLE.fullmatch(text) is not None
        and not VULGAR.search(text)
        and not ACRONYM.search(text)
        and max(map(len, words)) < 20
    )


def finish(text: str) -> str:
    """Typography as it is written on keyboards, one space between words, a capital and an end."""
    for old, new in {"\u2019": "'", "\u2018": "'", "`": "'", "\u2014": ", ", "--": ", ", "\u2026": "."}.items():
        text = text.replace(old, new)
    text = re.sub(r'["\u201c\u201d]|\s*\([^)]*\)', "", text)
    text = re.sub(r"\s+([,.;:?!])", r"\1", text)
    text = re.sub(r"[,;:]+([,.?!])", r"\1", text)
    text = " ".join(text.split()).strip(" ,;:-")
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text[-1] in ".?!" else ".")


def _read(source: TextSource, cache: Path, seed: int) -> Iterator[str]:
    if source.package is None:
        yield from template_sentences(source.most or TEMPLATES, seed)
        return
    folder = fetch(source.package, cache)
    reader = READERS[source.form]
    for path in sorted(folder.glob(source.files)):
        if path.is_file():
            yield from reader(read_text(path))


def wordnet(text: str) -> Iterator[str]:
    """Examples and definitions of WordNet's data files: after the bar, examples in quotes."""
    for line in text.splitlines():
        if line.startswith("  ") or "|" not in line:
            continue
        gloss = line.split("|", 1)[1]
        yield from re.findall(r'"([^"]+)"', gloss)
        yield re.split(r"[;\"]", gloss)[0]


def prose(text: str) -> Iterator[str]:
    """Sentences of paragraphs of HTML, Mallard, DocBook or Markdown: those with a capital, a verb's length and an end.

    Headings and commands have no end; sentences with digits or markup in them are not speakable and go later.
    """
    text = re.sub(r"<(script|style|code|pre|screen|cmd|cite|p\b[^>]*xml:lang)\b.*?</\1>", " ", text, flags=re.DOTALL)
    text = re.sub(r"</?(p|div|li|item|td|para|title|h\d|section|note|dd|dt|br)\b[^>]*>", "\n\n", text)
    text = html.unescape(re.sub(r"<[^>]+>", "", text))
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for paragraph in re.split(r"\n\s*\n", re.sub(r"[*_#>|]+", " ", text)):
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(paragraph.split())):
            if sentence[-1:] in tuple(".?!") and sentence[:1].isupper() and len(sentence.split()) >= SHORTEST:
                yield sentence


def lines(text: str) -> Iterator[str]:
    """A sentence a line."""
    yield from (line for line in text.splitlines() if len(line.split()) >= SHORTEST)


def yaml_lists(text: str) -> Iterator[str]:
    """Items of lists, nested or not, as conversations in YAML are written."""
    for line in text.splitlines():
        if match := re.match(r"\s*-\s+(?:-\s+)?(.*)", line):
            yield from re.split(r"(?<=[.!?])\s+", match[1])


READERS: dict[str, Callable[[str], Iterator[str]]] = {
    "wordnet": wordnet,
    "prose": prose,
    "lines": lines,
    "yaml": yaml_lists,
}


def totals(sentences: Sequence[Sentence]) -> dict[str, int]:
    """Sentences by source."""
    counts: dict[str, int] = {}
    for each in sentences:
        counts[each.source] = counts.get(each.source, 0) + 1
    return counts
