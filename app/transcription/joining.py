"""How the texts of segments become one text."""

from collections.abc import Iterable

import regex

_UNSPACED_LANGUAGES = frozenset({"zh", "yue", "ja", "th"})
# Scripts written without spaces between words, their punctuation and full-width forms.
UNSPACED_CLASS = (
    r"[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Bopomofo}\p{Script=Thai}\p{Script=Lao}"
    r"\p{Script=Khmer}\p{Script=Myanmar}\p{Block=CJK_Symbols_And_Punctuation}\p{Block=Halfwidth_And_Fullwidth_Forms}]"
)
_UNSPACED = regex.compile(UNSPACED_CLASS)


def is_unspaced(character: str) -> bool:
    """Whether a character belongs to a script that puts no spaces between words."""
    return _UNSPACED.match(character) is not None


def joiner(before: str, after: str, language: str | None) -> str:
    """What stands between two texts that follow each other: nothing or a space.

    Only the last character of `before` and the first of `after` count, so that a stream can tell at once. Between an
    unspaced and a spaced script there is a space unless the language is an unspaced one.
    """
    if not before or not after:
        return ""
    unspaced = is_unspaced(before[-1]) + is_unspaced(after[0])
    return "" if unspaced == 2 or (unspaced and language in _UNSPACED_LANGUAGES) else " "


def join(texts: Iterable[str], language: str | None) -> str:
    """All texts as one; empty ones leave no trace."""
    whole = ""
    for text in texts:
        whole += joiner(whole, text, language) + text
    return whole
