"""Whether the words are right: word error rate over clips of which the words are known."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.clips import Clip


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What a server heard in one clip.

    Attributes:
        words: spoken.
        errors: words put in place of others, left out or added.
        failure: why there is no answer; all words are errors then.
    """

    clip: str
    seconds: float
    text: str
    words: int
    errors: int
    failure: str | None = None

    @classmethod
    def of(cls, clip: Clip, text: str, failure: str | None = None) -> "Heard":
        """Compare, after Whisper's normalisation of English (case, punctuation, numbers, spelling)."""
        from benchmarks.scoring import Score  # needs the extra dev: with random weights there is nothing to compare

        assert clip.spoken is not None
        score = Score.of(clip.spoken, text)
        return cls(
            clip=clip.name,
            seconds=clip.seconds,
            text=text,
            words=score.words,
            errors=score.word_errors,
            failure=failure,
        )


def word_error_rate(heard: Sequence[Heard]) -> float | None:
    """All errors over all words; None without clips."""
    return sum(each.errors for each in heard) / sum(each.words for each in heard) if heard else None
