import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.transcription.joining import Joining, join


@pytest.mark.parametrize(
    ("texts", "language", "whole"),
    [
        (["Good morning.", "How are you?"], "en", "Good morning. How are you?"),
        (["你好。", "今天天气很好。"], "zh", "你好。今天天气很好。"),
        (["你好。", "今天天气很好。"], None, "你好。今天天气很好。"),
        (["今日は", "いい天気です"], "ja", "今日はいい天気です"),
        (["ราคา", "เท่าไหร่"], "th", "ราคาเท่าไหร่"),
        (["안녕하세요.", "반갑습니다."], "ko", "안녕하세요. 반갑습니다."),
        (["我用 iPhone", "打电话。"], "zh", "我用 iPhone打电话。"),
        (["speech in English", "then more"], "zh", "speech in English then more"),
        (["Hello.", "你好。"], None, "Hello. 你好。"),
        (["one", "", "two", ""], "en", "one two"),
        ([], None, ""),
    ],
)
def test_the_joiner_follows_the_script(texts: list[str], language: str | None, whole: str) -> None:
    assert join(((text, None) for text in texts), language) == whole


@given(
    st.lists(st.tuples(st.text("aé 你のก.。"), st.sampled_from([None, 1, 2])), max_size=6),
    st.sampled_from([None, "zh"]),
)
def test_the_text_is_the_same_in_pieces(texts: list[tuple[str, int | None]], language: str | None) -> None:
    joining = Joining(language)
    streamed = ""
    for text, channel in texts:
        for at, character in enumerate(text):
            streamed += joining.go_on(character) if at else joining.begin(character, channel)

    assert streamed == joining.text == join(texts, language)


def test_another_channel_begins_a_line() -> None:
    said = [("Hello.", 1), ("How are you?", 1), ("", 2), ("Fine.", 2), ("Good.", 1)]

    assert join(said, "en") == "Channel 1: Hello. How are you?\nChannel 2: Fine.\nChannel 1: Good."
