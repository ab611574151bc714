"""Text as a sequence of words, or of characters where a script has no spaces: what guards and joins compare."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import regex

from app.transcription.joining import UNSPACED_CLASS, joiner

_UNIT = regex.compile(rf"\s*(?:(?P<one>{UNSPACED_CLASS})|(?:(?!{UNSPACED_CLASS})\S)+)")
_INNER = regex.compile(r"[^\p{L}\p{M}\p{N}]+")


@dataclass(frozen=True, slots=True)
class Unit:
    """One word or one character of an unspaced script.

    Attributes:
        key: to compare by: case and punctuation do not count, unless it is nothing else.
        start: where it begins in the text, white space before it included.
        end: where it ends.
    """

    key: str
    start: int
    end: int


def units(text: str, start: int = 0, *, final: bool = True) -> Iterator[Unit]:
    """The units of `text` from `start` on.

    Args:
        final: nothing follows; otherwise a word that reaches the end is left out, as it may go on.
    """
    for match in _UNIT.finditer(text, start):
        if not final and match.end() == len(text) and match["one"] is None:
            return
        bare = match[0].strip()
        yield Unit(_INNER.sub("", bare).casefold() or bare, match.start(), match.end())


def keys(text: str) -> list[str]:
    """The units of a text, without those that are punctuation alone."""
    return [unit.key for unit in units(text) if not _INNER.fullmatch(unit.key)]


def contains(whole: Sequence[str], part: Sequence[str]) -> bool:
    """Whether `part` stands in `whole` without a gap."""
    return any(whole[at : at + len(part)] == part for at in range(len(whole) - len(part) + 1))


def similarity(left: str, right: str) -> float:
    """Share of the letters that two texts have in common and in order, 0 to 1; names are spelled in many ways."""
    return SequenceMatcher(None, "".join(keys(left)), "".join(keys(right)), autojunk=False).ratio()


def continuation(text: str, again: str) -> str:
    """What `again`, another version of the same speech, says beyond the end of `text`.

    Both are aligned by the last units that agree; what `text` has after those stands for as many units of `again`.
    """
    left, right = list(units(text)), list(units(again))
    matcher = SequenceMatcher(None, [unit.key for unit in left], [unit.key for unit in right], autojunk=False)
    blocks = [block for block in matcher.get_matching_blocks() if block.size]
    after_left, after_right = (blocks[-1].a + blocks[-1].size, blocks[-1].b + blocks[-1].size) if blocks else (0, 0)
    first = after_right + len(left) - after_left
    return again[right[first].start :] if first < len(right) else ""


def append(text: str, more: str, language: str | None) -> str:
    """Both as one text."""
    more = more.strip()
    return text + joiner(text, more, language) + more
