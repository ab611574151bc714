import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.transcription.formats import clock, to_srt, to_text, to_vtt
from app.transcription.transcript import Segment, Transcript


def transcript(*texts: str) -> Transcript:
    segments = tuple(
        Segment(index=index, start=index * 10.0, end=index * 10.0 + 9.9996, text=text)
        for index, text in enumerate(texts)
    )
    return Transcript(text=" ".join(texts), language="en", duration=10.0 * len(texts), segments=segments)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "00:00:00,000"),
        (0.0005, "00:00:00,000"),
        (0.001, "00:00:00,001"),
        (59.9996, "00:00:59,999"),
        (3661.5, "01:01:01,500"),
        (359999.999, "99:59:59,999"),
    ],
)
def test_a_clock_counts_hours_minutes_seconds_and_milliseconds(seconds: float, expected: str) -> None:
    assert clock(seconds, ",") == expected


@given(st.integers(0, 4 * 3600 * 1000))
def test_a_clock_tells_every_millisecond_exactly(milliseconds: int) -> None:
    hours, minutes, seconds, rest = map(int, re.split(r"[:,]", clock(milliseconds / 1000, ",")))

    assert ((hours * 60 + minutes) * 60 + seconds) * 1000 + rest == milliseconds


@given(st.floats(0, 4 * 3600), st.floats(0, 30))
def test_a_later_time_is_never_an_earlier_clock(start: float, length: float) -> None:
    assert clock(start, ".") <= clock(start + length, ".")


def test_srt_numbers_its_cues() -> None:
    expected = "1\n00:00:00,000 --> 00:00:09,999\nOne.\n\n2\n00:00:10,000 --> 00:00:19,999\nTwo.\n"

    assert to_srt(transcript("One.", "Two.")) == expected


def test_vtt_has_a_header_and_escapes_markup() -> None:
    expected = "WEBVTT\n\n00:00:00.000 --> 00:00:09.999\na &lt;b&gt; &amp; c\n"

    assert to_vtt(transcript("a <b> & c")) == expected


def test_text_is_the_bare_text_and_a_line_feed() -> None:
    assert to_text(transcript("One.", "Two.")) == "One. Two.\n"


def test_nothing_said_is_nothing_written() -> None:
    assert to_srt(transcript()) == ""
    assert to_vtt(transcript()) == "WEBVTT\n"
    assert transcript().no_speech
