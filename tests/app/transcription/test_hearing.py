"""What is done about an answer that guards object to, streamed and whole."""

from collections.abc import Callable

import numpy as np
import pytest

from app.transcription.guards import GuardPolicy
from app.transcription.hearing import Heard, Listener
from app.transcription.transcript import TranscriptionOptions
from app.transcription.types import SegmentSpan
from engine.interface import SpeechRequest
from engine.scripted import Act, ScriptedEngine

WAVEFORM = np.zeros((1, 32_000), np.float32)
SPAN = SegmentSpan(0, 32_000)


async def started(engine: ScriptedEngine) -> ScriptedEngine:
    await engine.start(lambda phase, share: None)
    return engine


async def hear(
    script: Callable[[SpeechRequest], Act],
    *,
    stream: bool,
    policy: GuardPolicy | None = None,
    options: TranscriptionOptions | None = None,
) -> tuple[Heard, list[str], ScriptedEngine]:
    engine = await started(ScriptedEngine(script))
    told: list[str] = []
    heard = await Listener(engine, policy or GuardPolicy()).hear(
        WAVEFORM,
        0,
        SPAN,
        options or TranscriptionOptions(language="en"),
        request_id="r",
        tell=told.append if stream else None,
    )
    if stream:
        assert "".join(told) == heard.segment.text
        assert "" not in told
    return heard, told, engine


both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


def says(text: str) -> Act:
    return Act(words=tuple(text.split(" ")))


@both
async def test_an_answer_without_faults_is_passed_on_word_by_word(stream: bool) -> None:
    heard, told, engine = await hear(lambda _: says("We went home early."), stream=stream)

    assert heard.segment.text == "We went home early."
    assert heard.findings == ()
    assert told == (["We", " went", " home", " early."] if stream else [])
    assert len(engine.requests) == 1
    assert engine.aborted == []


@both
async def test_a_wrapper_split_over_pieces_is_not_passed_on(stream: bool) -> None:
    heard, _, _ = await hear(lambda _: says("The original content of this audio is: 'We went home.'"), stream=stream)

    assert heard.segment.text == "We went home."
    assert heard.findings == ("wrapper",)


@both
async def test_a_chinese_wrapper_and_its_language(stream: bool) -> None:
    answer = Act(words=tuple("这段音频是用中文说的：“今天天气真好。”"), space="")

    heard, _, _ = await hear(lambda _: answer, stream=stream, options=TranscriptionOptions())

    assert heard.segment.text == "今天天气真好。"
    assert heard.findings == ("wrapper",)
    assert heard.language == "zh"


def loops_once(request: SpeechRequest) -> Act:
    if request.request_id == "r":
        return Act(words=("We", "went", *("home",) * 500))
    return says("We went home and we ate.")


@both
async def test_a_loop_is_cut_and_tried_once_more(stream: bool) -> None:
    heard, _, engine = await hear(loops_once, stream=stream)

    assert heard.segment.text == "We went home and we ate."
    assert heard.findings == ("repetition",)
    first, second = engine.requests
    assert (first.temperature, second.temperature) == (0.0, 0.3)
    assert second.seed is not None
    assert engine.aborted == (["r"] if stream else [])
    assert first.end_repetition is not stream
    assert heard.output_tokens <= 2 + 40 + 7  # of more than 500


@both
async def test_words_that_are_said_often_are_kept_although_the_engine_ended_them(stream: bool) -> None:
    said = "dhanyavaad " * 6 + "bas"  # a token for each letter, as in a script that the tokenizer spells out
    heard, _, engine = await hear(lambda _: Act(words=tuple(said), space=""), stream=stream)

    assert heard.segment.text == said
    assert heard.findings == ()
    assert [request.request_id for request in engine.requests] == (["r"] if stream else ["r", "r-along"])
    assert engine.aborted == []


@both
async def test_a_sentence_said_over_and_over_ends_while_it_is_decoded(stream: bool) -> None:
    sentence = "I will send the report to you before noon today."
    heard, _, engine = await hear(lambda _: Act(words=tuple(sentence.split()), repeat=100), stream=stream)

    assert heard.segment.text == sentence
    assert heard.findings == ("repetition",)
    assert len(engine.requests) == 2
    assert heard.output_tokens <= 2 * 50


@both
async def test_a_loop_that_comes_again_is_cut(stream: bool) -> None:
    heard, _, engine = await hear(lambda _: Act(words=("no", "way"), repeat=250), stream=stream)

    assert heard.segment.text == "no way"
    assert heard.findings == ("repetition",)
    assert len(engine.requests) == 2


@both
async def test_a_loop_may_pass_where_the_guard_is_off(stream: bool) -> None:
    policy = GuardPolicy(repetition_loops=False)

    heard, _, engine = await hear(lambda _: Act(words=("no",), repeat=50), stream=stream, policy=policy)

    assert heard.segment.text == " ".join(["no"] * 50)
    assert len(engine.requests) == 1


@both
async def test_a_prompt_given_back_where_it_is_not_spoken_is_dropped(stream: bool) -> None:
    options = TranscriptionOptions(language="en", prompt="Meeting of", hotwords=("Grigson", "RTFx"))

    def script(request: SpeechRequest) -> Act:
        return says("Grigson, RTFx.") if request.context else Act()

    heard, told, engine = await hear(script, stream=stream, options=options)

    assert heard.segment.text == ""
    assert heard.findings == ("prompt_echo",)
    assert told == []
    assert [request.context for request in engine.requests] == ["Meeting of Grigson, RTFx", ""]


@both
async def test_words_of_the_prompt_that_are_spoken_stay(stream: bool) -> None:
    options = TranscriptionOptions(language="en", hotwords=("Grigson", "RTFx"))

    def script(request: SpeechRequest) -> Act:
        return says("Grigson, RTFx.") if request.context else says("Grigson, RT effects.")

    heard, _, engine = await hear(script, stream=stream, options=options)

    assert heard.segment.text == "Grigson, RTFx."
    assert heard.findings == ()
    assert len(engine.requests) == 2


@both
async def test_a_prompt_costs_nothing_where_it_is_not_given_back(stream: bool) -> None:
    options = TranscriptionOptions(language="en", hotwords=("Grigson", "RTFx"))

    heard, told, engine = await hear(lambda _: says("Grigson opens it now"), stream=stream, options=options)

    assert heard.segment.text == "Grigson opens it now"
    assert told == (["Grigson opens", " it", " now"] if stream else [])
    assert len(engine.requests) == 1


@both
async def test_an_answer_at_its_budget_is_reported(stream: bool) -> None:
    heard, _, _ = await hear(lambda _: Act(words=("cut",), finish_reason="length"), stream=stream)

    assert heard.findings == ("output_limit",)
