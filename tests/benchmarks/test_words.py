import numpy as np
import pytest

from benchmarks.clips import clip
from benchmarks.words import Heard, word_error_rate

CLIP = clip("a.wav", np.zeros(16_000, np.int16), "Good morning, it is nine o'clock.")


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        ("good morning it's nine o'clock", 0),
        ("Good evening. It is nine o'clock!", 1),
        ("It is nine o'clock", 2),
        ("Good morning, it is now nine o'clock.", 1),
        ("", 6),
    ],
)
def test_words_put_in_place_left_out_or_added_are_errors(text: str, errors: int) -> None:
    heard = Heard.of(CLIP, text)

    assert (heard.errors, heard.words, heard.failure) == (errors, 6, None)


def test_a_failure_has_every_word_wrong() -> None:
    heard = Heard.of(CLIP, "", "503 loading")

    assert (heard.errors, heard.failure) == (6, "503 loading")


def test_the_rate_is_over_all_words_so_that_long_clips_weigh_more() -> None:
    long = clip("b.wav", np.zeros(16_000, np.int16), "hello " * 18)

    assert word_error_rate([Heard.of(CLIP, ""), Heard.of(long, "hello " * 18)]) == pytest.approx(6 / 24)
    assert word_error_rate([]) is None
