import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.transcription.units import (
    SEAM_UNITS,
    append,
    contains,
    continuation,
    keys,
    merge,
    settled_before_seam,
    similarity,
    units,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Good morning, all.", ["good", "morning", "all"]),
        ("don't stop", ["dont", "stop"]),
        ("今天天气好。", ["今", "天", "天", "气", "好"]),
        ("我用iPhone打电话", ["我", "用", "iphone", "打", "电", "话"]),
        ("Straße — ÉCOLE", ["strasse", "école"]),
        (" \n ", []),
    ],
)
def test_units_are_words_or_characters_by_script(text: str, expected: list[str]) -> None:
    assert keys(text) == expected


@given(st.text("ab你ก .。\n"))
def test_units_cover_the_text_but_for_white_space_at_its_end(text: str) -> None:
    found = list(units(text))

    assert "".join(text[unit.start : unit.end] for unit in found) == text.rstrip()


def test_a_word_that_may_go_on_is_left_out() -> None:
    assert [unit.key for unit in units("one tw", final=False)] == ["one"]
    assert [unit.key for unit in units("one two ", final=False)] == ["one", "two"]
    assert [unit.key for unit in units("你好", final=False)] == ["你", "好"]


@pytest.mark.parametrize(
    ("text", "again", "rest"),
    [
        ("we went home and", "We went home and then we ate.", " then we ate."),
        ("we went hum and", "We went home and then we ate.", " then we ate."),
        ("we went home an", "We went home and then we ate.", " then we ate."),
        ("we went home", "we went home", ""),
        ("we went home and more", "we went", ""),
        ("", "we went", "we went"),
        ("one two three", "four five six seven", " seven"),
        ("今天天气", "今天天气很好", "很好"),
    ],
)
def test_the_continuation_begins_where_the_text_ends(text: str, again: str, rest: str) -> None:
    assert continuation(text, again) == rest


def test_append_joins_by_script() -> None:
    assert append("one", " two ", "en") == "one two"
    assert append("今天", "很好", "zh") == "今天很好"
    assert append("one", "", None) == "one"


def test_contains_finds_a_run_without_a_gap() -> None:
    assert contains(["a", "b", "c"], ["b", "c"])
    assert not contains(["a", "b", "c"], ["a", "c"])
    assert contains(["a"], [])


def test_similarity_ignores_case_and_punctuation() -> None:
    assert similarity("Hello, there!", "hello there") == 1
    assert similarity("hello", "") == 0
    assert similarity("Grigson, RTFx", "grigs in RT effects") > 0.5
    assert similarity("Grigson, RTFx", "the weather is fine") < 0.5


@pytest.mark.parametrize(
    ("left", "right", "merged"),
    [
        ("we went home and then we a", "home, and then we ate fish", ("we went home and then we", "ate fish")),
        ("we went home and the", "me and then we ate", ("we went home and", "then we ate")),
        ("we went home", "then we ate", ("we went home", "then we ate")),
        ("the cat sat on the mat of the", "the dog ran", ("the cat sat on the mat of the", "dog ran")),
        ("the cat sat on a mat and slept well all day long", "so the dog ran", None),
        ("今天天气很好我们去", "很好我们去公园", ("今天天气很好我们去", "公园")),
        ("", "then we ate", ("", "then we ate")),
        ("we went", "", ("we went", "")),
        ("no no no", "no no yes", ("no no no", "yes")),
    ],
)
def test_what_two_texts_say_of_the_same_sound_is_said_once(
    left: str, right: str, merged: tuple[str, str] | None
) -> None:
    assert merge(left, right) == (merged or (left, right))


@given(st.lists(st.sampled_from("abcd"), max_size=40), st.lists(st.sampled_from("abcd"), max_size=40))
def test_what_is_settled_before_a_seam_stays(left: list[str], right: list[str]) -> None:
    text = " ".join(left)

    assert merge(text, " ".join(right))[0].startswith(settled_before_seam(text))


@given(st.integers(4, 60), st.integers(2, SEAM_UNITS - 2), st.booleans(), st.booleans())
def test_numbered_words_come_out_once_however_they_are_cut(
    count: int, shared: int, left_is_cut: bool, right_is_cut: bool
) -> None:
    words = [f"w{n}" for n in range(count)]
    at = count // 2
    left, right = words[: min(count, at + shared)], words[at:]

    before, after = merge(
        " ".join([*left, "cu"] if left_is_cut else left), " ".join(["ut", *right] if right_is_cut else right)
    )

    assert append(before, after, "en").split() == words
