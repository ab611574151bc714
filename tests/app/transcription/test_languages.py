import pytest

from app.transcription.exceptions import InvalidFieldError
from app.transcription.languages import _ALIASES, language_name, parse_language
from engine.prompt import LANGUAGE_NAMES

ALL = tuple(LANGUAGE_NAMES)


@pytest.mark.parametrize(
    ("spoken", "code"),
    [
        ("en", "en"),
        ("EN", "en"),
        (" en ", "en"),
        ("en-US", "en"),
        ("en_GB", "en"),
        ("zh-Hant", "zh"),
        ("zh_Hans_CN", "zh"),
        ("pt-BR", "pt"),
        ("english", "en"),
        ("Chinese", "zh"),
        ("Cantonese", "yue"),
        ("zh-yue", "yue"),
        ("cmn-Hans", "zh"),
        ("Mandarin", "zh"),
        ("eng", "en"),
        ("nb-NO", "no"),
        ("auto", None),
        ("AUTO", None),
        ("", None),
    ],
)
def test_usual_spellings_are_understood(spoken: str, code: str | None) -> None:
    assert parse_language(spoken, ALL) == code


@pytest.mark.parametrize("code", ALL)
def test_every_language_is_known_by_code_and_name(code: str) -> None:
    name = language_name(code)

    assert name is not None
    assert parse_language(code, ALL) == code
    assert parse_language(name, ALL) == code


def test_a_model_of_one_language_needs_no_naming() -> None:
    assert parse_language("auto", ("en",)) == "en"


@pytest.mark.parametrize("spoken", ["xx", "klingon", "e", "en/US", "de"])
def test_what_is_not_served_is_refused_with_what_is(spoken: str) -> None:
    with pytest.raises(InvalidFieldError, match="served are en, fr") as refused:
        parse_language(spoken, ("en", "fr"))

    assert refused.value.param == "language"
    assert refused.value.code == "unsupported_language"


def test_no_language_has_no_name() -> None:
    assert language_name(None) is None


def test_every_alias_is_of_a_language_that_has_a_prompt() -> None:
    assert set(_ALIASES.values()) <= set(ALL)
    assert not set(_ALIASES) & set(ALL)
