"""Error rates over clips, with what chance would make of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import jiwer
import numpy as np
from whisper_normalizer.english import EnglishTextNormalizer

RESAMPLES = 2000
CONFIDENCE = 0.95

_normalize = EnglishTextNormalizer()


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What is wrong in one clip, after Whisper's normalisation of English.

    Attributes:
        words, characters: of the reference.
        word_errors, character_errors: substituted, left out or added; where nothing is said, all that was heard.
    """

    words: int
    word_errors: int
    characters: int
    character_errors: int

    @classmethod
    def of(cls, spoken: str, heard: str) -> "Score":
        """Compare two texts."""
        reference, hypothesis = _normalize(spoken), _normalize(heard)
        if not reference:  # an edit distance from nothing is all that was added
            return cls(words=0, word_errors=len(hypothesis.split()), characters=0, character_errors=len(hypothesis))
        words = jiwer.process_words(reference, hypothesis)
        characters = jiwer.process_characters(reference, hypothesis)
        return cls(
            words=len(reference.split()),
            word_errors=words.substitutions + words.deletions + words.insertions,
            characters=len(reference),
            character_errors=characters.substitutions + characters.deletions + characters.insertions,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Errors over what was said, in a set of clips.

    Attributes:
        value: all errors over all words, or characters; None where nothing is said.
        low, high: the middle 95 % of the values of sets drawn anew from the same clips (percentile bootstrap over
            clips, Bisani and Ney 2004). With few clips it is wide, and with one it says nothing.
    """

    errors: int
    of: int
    value: float | None
    low: float | None
    high: float | None

    @classmethod
    def over(cls, errors: Sequence[int], lengths: Sequence[int], *, seed: int = 0) -> "Rate":
        """Of clips with so many errors and so many words each; the same in every run."""
        total, wrong = sum(lengths), sum(errors)
        if not total:
            return cls(errors=wrong, of=0, value=None, low=None, high=None)
        draws = np.random.default_rng(seed).multinomial(len(errors), [1 / len(errors)] * len(errors), RESAMPLES)
        drawn_lengths = draws @ np.asarray(lengths)
        rates = (draws @ np.asarray(errors))[drawn_lengths > 0] / drawn_lengths[drawn_lengths > 0]
        low, high = np.quantile(rates, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        return cls(errors=wrong, of=total, value=wrong / total, low=float(low), high=float(high))

    def __str__(self) -> str:
        """For a table: `12.6 % (10.9-14.4)`."""
        if self.value is None or self.low is None or self.high is None:
            return "-"
        return f"{100 * self.value:.1f} % ({100 * self.low:.1f}-{100 * self.high:.1f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetScore:
    """A set of clips.

    Attributes:
        empty: clips in which nothing was heard.
        unanswered: clips without an answer; all their words are errors.
    """

    name: str
    clips: int
    seconds: float
    word_error_rate: Rate
    character_error_rate: Rate
    empty: int
    unanswered: int = 0

    @classmethod
    def over(cls, name: str, scores: Sequence[Score], seconds: float, *, empty: int, unanswered: int = 0) -> "SetScore":
        """Put the clips of a set together."""
        return cls(
            name=name,
            clips=len(scores),
            seconds=round(seconds, 2),
            word_error_rate=Rate.over([each.word_errors for each in scores], [each.words for each in scores]),
            character_error_rate=Rate.over(
                [each.character_errors for each in scores], [each.characters for each in scores]
            ),
            empty=empty,
            unanswered=unanswered,
        )


HEAD = ["set", "clips", "minutes", "words", "wrong", "WER (95 %)", "CER (95 %)", "empty", "unanswered"]


def row(score: SetScore) -> list[str]:
    """Cells of a table with `HEAD`."""
    return [
        score.name,
        str(score.clips),
        f"{score.seconds / 60:.1f}",
        str(score.word_error_rate.of),
        str(score.word_error_rate.errors),
        str(score.word_error_rate),
        str(score.character_error_rate),
        str(score.empty),
        str(score.unanswered),
    ]
