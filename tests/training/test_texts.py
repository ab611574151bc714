from pathlib import Path

import pytest

from training.configuration import TextSource
from training.templates import sentences
from training.texts import Forbidden, collect, finish, key, prose, speakable, wordnet, yaml_lists

TEMPLATES = TextSource(name="templates", form="templates", most=400, licence="x", attribution="y")


@pytest.mark.parametrize(
    ("raw", "finished"),
    [
        ("  it\u2019s  late -- very late ", "It's late, very late."),
        ('"Stop!" (he said)', "Stop!"),
        ("a list:", "A list."),
        ("Well , then ?", "Well, then?"),
        ("", ""),
    ],
)
def test_typography_is_that_of_keyboards(raw: str, finished: str) -> None:
    assert finish(raw) == finished


@pytest.mark.parametrize("text", ["Room 12 is free.", "The NASA rocket", "naïve", "", "a " * 40, "What the fuck."])
def test_what_readers_would_say_in_different_ways_is_left_out(text: str) -> None:
    assert not speakable(text)


def test_evaluation_texts_are_not_spoken_whole_by_clause_or_within_a_sentence() -> None:
    forbidden = Forbidden(["Please leave a message, after the tone you will hear.", "Goodbye."])

    for text in (
        "Please leave a message, after the tone you will hear.",
        "Please leave a message.",
        "Goodbye!",
        "Now: after the tone you will hear, said she.",
    ):
        assert key(text) in forbidden, text
    for text in ("Leave the room, please.", "After the tone.", "She said goodbye."):
        assert key(text) not in forbidden, text


def test_wordnet_gives_examples_and_definitions() -> None:
    line = '00001740 03 n 01 entity 0 000 | that which is perceived; "it was full of rackets, balls and other objects"'

    assert list(wordnet("  1 This is the licence | of it\n" + line)) == [
        "it was full of rackets, balls and other objects",
        " that which is perceived",
    ]


def test_prose_has_sentences_of_paragraphs_without_markup_and_headings() -> None:
    page = """<page><title>Adding a Printer</title>
      <p>Open the <app>Settings</app> window. Choose
      the printer &amp; press <key>Enter</key>!</p><code>lpr -P x.</code><p>no capital.</p></page>"""

    assert list(prose(page)) == ["Open the Settings window.", "Choose the printer & press Enter!"]


def test_conversations_are_lists() -> None:
    assert list(yaml_lists("conversations:\n- - How are you?\n  - Fine. And you?\n")) == [
        "How are you?",
        "Fine.",
        "And you?",
    ]


def test_templates_are_speakable_once_finished_and_many() -> None:
    made = [finish(each) for each in sentences(300, seed=1)]

    assert [each for each in made if not speakable(each)] == []
    assert len(set(made)) > 250
    assert list(sentences(300, seed=1)) == list(sentences(300, seed=1))


def test_what_is_held_out_is_in_no_training_text(tmp_path: Path) -> None:
    training, held_out = collect([TEMPLATES], ["Goodbye."], cache=tmp_path, held_out=50, seed=1)

    assert len(held_out) == 50
    assert {key(each.text) for each in training}.isdisjoint(key(each.text) for each in held_out)
    assert not any(key(each.text) == "goodbye" for each in (*training, *held_out))
    assert (training, held_out) == collect([TEMPLATES], ["Goodbye."], cache=tmp_path, held_out=50, seed=1)
