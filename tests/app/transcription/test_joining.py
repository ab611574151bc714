import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.transcription.joining import join, joiner


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
    assert join(texts, language) == whole


@given(st.lists(st.text("aé 你のก.。"), max_size=6), st.sampled_from([None, "en", "zh"]))
def test_the_joiner_can_be_told_before_the_text_is_complete(texts: list[str], language: str | None) -> None:
    streamed = ""
    for text in texts:
        for at, character in enumerate(text):
            streamed += joiner(streamed, character, language) + character if at == 0 else character

    assert streamed == join(texts, language)
