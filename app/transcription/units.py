"""Text as a sequence of words, or of characters where a script has no spaces: what guards and joins compare."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import product

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


SEAM_UNITS = 16  # of each side that may stand for the same sound: two seconds of quick speech


def settled_before_seam(text: str) -> str:
    """The part of a text that `merge` leaves alone, whatever follows."""
    found = list(units(text))
    return text[: found[-SEAM_UNITS].start] if len(found) > SEAM_UNITS else ""


def merge(left: str, right: str) -> tuple[str, str]:
    """Two texts whose last and first words stand for the same sound, without what is said twice.

    They are cut at the longest run of units that both have, the one nearest to the seam of several. What `left` has
    after it was cut short, and `right` has heard it better; before it, the other way round. Without such a run both
    stay as they are: better a word twice than none.
    """
    tail, head = list(units(left))[-SEAM_UNITS:], list(units(right))[:SEAM_UNITS]
    best = (0, 0, 0, 0)  # size, less what is dropped, end in tail, end in head
    for i, j in product(range(len(tail)), range(len(head))):
        size = 0
        while size < min(i, j) + 1 and tail[i - size].key == head[j - size].key:
            size += 1
        dropped = len(tail) - 1 - i + j + 1 - size
        # A single word in common, such as an article, has to stand where both meet: but for a scrap of a word each.
        if size > 1 or (size == 1 and dropped <= 2):
            best = max(best, (size, -dropped, i, j))
    size, _, i, j = best
    if not size:
        return left, right
    return left[: tail[i].end], right[head[j].end :].lstrip()
