"""How the texts of segments become one text."""

from collections.abc import Iterable
from dataclasses import dataclass

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


def label(channel: int) -> str:
    """What stands before the words of a channel, counted from 1."""
    return f"Channel {channel}: "


@dataclass
class Joining:
    """A text that grows by segments, or by pieces of them, so that both ways end in the same text.

    Attributes:
        text: so far.
    """

    language: str | None
    text: str = ""
    _before: str = ""  # the last words, of the segments before
    _channel: int | None = None

    def begin(self, words: str, channel: int | None) -> str:
        """Add the first words of a segment, at least one character; returns what is new of the text.

        Args:
            channel: that says them, None where channels are not told apart. Another than before begins a line.
        """
        if channel is None or channel == self._channel:
            lead = joiner(self._before, words, self.language)
        else:
            lead = f"{chr(10) if self.text else ''}{label(channel)}"
        self._channel = channel
        return self.go_on(lead + words)

    def go_on(self, words: str) -> str:
        """Add more of the same segment; returns it."""
        self.text += words
        self._before = words or self._before
        return words


def join(texts: Iterable[tuple[str, int | None]], language: str | None) -> str:
    """All texts as one, each with its channel; empty ones leave no trace."""
    joining = Joining(language)
    for text, channel in texts:
        if text:
            joining.begin(text, channel)
    return joining.text
