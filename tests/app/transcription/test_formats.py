import html
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


spoken = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=40).map(str.strip)
timed = st.tuples(st.floats(0, 14_400), st.floats(0.01, 30), spoken.filter(bool), st.sampled_from([None, 1, 2]))


@given(st.lists(timed, max_size=20))
def test_subtitles_can_be_read_back(said: list[tuple[float, float, str, int | None]]) -> None:
    segments = tuple(
        Segment(index=n, start=start, end=start + length, text=text, channel=channel)
        for n, (start, length, text, channel) in enumerate(said)
    )
    whole = Transcript(text="", language=None, duration=15_000.0, segments=segments)

    srt = re.findall(r"(\d+)\n(\S{12}) --> (\S{12})\n(.*)\n(?:\n|\Z)", to_srt(whole))
    vtt = re.findall(r"(\S{12}) --> (\S{12})\n(.*)\n(?:\n|\Z)", to_vtt(whole).removeprefix("WEBVTT\n\n"))

    assert [int(number) for number, *_ in srt] == list(range(1, len(segments) + 1))
    assert [text for *_, text in srt] == [segment.labelled.replace("-->", "->") for segment in segments]
    assert [html.unescape(text) for *_, text in vtt] == [segment.labelled for segment in segments]
    assert all("-->" not in text for *_, text in vtt)
    for (_, start, end, _), segment in zip(srt, segments, strict=True):
        assert start == clock(segment.start, ",")
        assert start <= end
