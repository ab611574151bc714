import pytest

from benchmarks.scoring import Rate, Score, SetScore, row


@pytest.mark.parametrize(
    ("spoken", "heard", "word_errors", "words"),
    [
        ("Good morning, it's nine o'clock.", "good morning it is nine o'clock", 0, 6),
        ("Room five hundred and twelve", "room 512", 0, 2),
        ("one word wrong here", "one bird wrong", 2, 4),
        ("", "thank you", 2, 0),
        ("", "", 0, 0),
    ],
)
def test_words_are_compared_after_normalisation(spoken: str, heard: str, word_errors: int, words: int) -> None:
    score = Score.of(spoken, heard)

    assert (score.word_errors, score.words) == (word_errors, words)


def test_characters_are_counted_too() -> None:
    score = Score.of("a cat sat", "a hat sat")

    assert (score.character_errors, score.characters, score.word_errors) == (1, 9, 1)


def test_the_interval_holds_the_rate_and_narrows_with_more_clips() -> None:
    few = Rate.over([0, 1, 0, 2], [10] * 4)
    many = Rate.over([0, 1, 0, 2] * 50, [10] * 200)

    assert few.value == many.value == pytest.approx(0.075)
    for rate in (few, many):
        assert rate.low is not None
        assert rate.high is not None
        assert rate.low <= 0.075 <= rate.high
    assert many.high is not None
    assert few.high is not None
    assert many.high < few.high
    # Of 200 clips with a standard deviation of 0.083: 1.96 standard errors.
    assert many.high - 0.075 == pytest.approx(1.96 * 0.0829 / 200**0.5, rel=0.15)


def test_the_interval_is_the_same_in_every_run() -> None:
    assert Rate.over([1, 0, 3], [5, 6, 7]) == Rate.over([1, 0, 3], [5, 6, 7])


def test_a_set_in_which_nothing_is_said_has_no_rate_but_tells_what_was_heard() -> None:
    scores = [Score.of("", "thank you"), Score.of("", "")]

    score = SetScore.over("no speech", scores, 60.0, empty=1)

    assert score.word_error_rate.value is None
    assert row(score) == ["no speech", "2", "1.0", "0", "2", "-", "-", "1", "0"]
