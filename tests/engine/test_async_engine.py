"""The real vLLM on the embedded checkpoint. One engine serves all tests of this module; its death comes last."""

import asyncio
import gc
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest

from app.settings import load_settings
from app.transcription.guards import GuardPolicy
from app.transcription.hearing import Listener
from app.transcription.transcript import TranscriptionOptions
from app.transcription.types import SegmentSpan
from engine.async_engine import VllmEngine, _sampling, _usage
from engine.config import EngineConfig
from engine.interface import (
    SAMPLE_RATE,
    EncoderUsage,
    EngineNotReadyError,
    RequestRefusedError,
    SpeechOutput,
    SpeechRequest,
    Waveform,
)
from engine.prompt import REPEATED_COPIES, REPEATED_TOKENS, build_prompt, token_budget
from engine.scripted import _end_of_loop
from engine.vllm_environment import prepare_environment
from tests.audio_factory import TRANSCRIPTS, clip
from tests.engine.family import assert_dead
from tests.words import word_error_rate

if TYPE_CHECKING:
    from vllm import SamplingParams

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(300),
    # What vLLM and torch warn of while they load is theirs.
    pytest.mark.filterwarnings("default"),
]
CLIP = "library-us-female.wav"


@pytest.fixture(scope="module")
async def engine() -> AsyncIterator[VllmEngine]:
    config = load_settings("cpu").engine
    prepare_environment(config)
    multiprocessing.set_forkserver_preload(["engine.preload"])
    engine = VllmEngine(config)
    await engine.start(lambda phase, share: None)
    yield engine
    await engine.shutdown()
    gc.collect()


def request(name: str, waveform: Waveform | None = None, context: str = "") -> SpeechRequest:
    waveform = clip(CLIP) if waveform is None else waveform
    return SpeechRequest(request_id=name, waveform=waveform, language="en", context=context)


async def outputs_of(engine: VllmEngine, asked: SpeechRequest, *, incremental: bool = False) -> list[SpeechOutput]:
    return [output async for output in engine.generate(asked, incremental=incremental)]


async def test_one_output_carries_the_whole_text_and_its_figures(engine: VllmEngine) -> None:
    (output,) = await outputs_of(engine, request("whole"))

    assert word_error_rate(TRANSCRIPTS[CLIP], output.text) == 0
    assert output.finish_reason == "stop"
    assert output.prompt_tokens > 25 * 6
    assert output.output_tokens > 10
    assert output.inference_seconds > 0
    assert output.queue_seconds >= 0


async def test_increments_join_to_the_same_text(engine: VllmEngine) -> None:
    (whole,) = await outputs_of(engine, request("whole"))
    pieces = await outputs_of(engine, request("pieces"), incremental=True)

    assert len(pieces) > 5
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["stop"]


async def test_a_context_that_is_too_long_is_refused_and_harms_nobody(engine: VllmEngine) -> None:
    with pytest.raises(RequestRefusedError, match=r"take \d+ tokens, the model 2048: shorten the prompt"):
        await outputs_of(engine, request("long", context="spam " * 3000))

    assert await outputs_of(engine, request("after"))


async def test_the_budget_is_kept(engine: VllmEngine) -> None:
    asked = SpeechRequest(request_id="short", waveform=clip(CLIP), language="en", max_tokens=3)

    (output,) = await outputs_of(engine, asked)

    assert output.finish_reason == "length"
    assert output.output_tokens == 3


def repeating(monkeypatch: pytest.MonkeyPatch, engine: VllmEngine, word: str) -> None:
    """Make the model prefer one token over all others, as a model in a loop does."""
    inputs = engine._serving()[1]
    (token,) = inputs._tokenizer.encode(word)

    def biased(request: SpeechRequest, *, incremental: bool) -> "SamplingParams":
        sampling = _sampling(request, incremental=incremental)
        sampling.logit_bias = {token: 100.0}
        return sampling

    monkeypatch.setattr("engine.async_engine._sampling", biased)


async def test_repetition_ends_an_answer_while_it_is_decoded(
    engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeating(monkeypatch, engine, " no")
    asked = request("loop")

    (kept,) = await outputs_of(engine, asked)
    (ended,) = await outputs_of(engine, replace(asked, end_repetition=True))

    assert (kept.finish_reason, kept.output_tokens) == ("length", token_budget(len(asked.waveform) / SAMPLE_RATE))
    assert (ended.finish_reason, ended.output_tokens) == ("repetition", REPEATED_TOKENS[0] * REPEATED_COPIES)
    assert ended.text.split() == ["no"] * 40


@pytest.mark.parametrize("stream", [True, False])
async def test_a_loop_of_the_real_engine_is_one_word_and_a_warning(
    stream: bool, engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeating(monkeypatch, engine, " no")
    waveform = clip(CLIP)[None]

    heard = await Listener(engine, GuardPolicy()).hear(
        waveform,
        0,
        SegmentSpan(0, waveform.shape[1]),
        TranscriptionOptions(language="en"),
        request_id=f"guarded-{stream}",
        tell=(lambda _: None) if stream else None,
    )

    assert heard.segment.text == "no"
    assert heard.findings == ("repetition",)
    assert heard.output_tokens <= 2 * 40  # two attempts; their budget is 79 each


def test_vllm_ends_what_the_scripted_engine_ends() -> None:
    from vllm.v1.core.sched.utils import check_sequence_repetition

    params = _sampling(replace(request("any"), end_repetition=True), incremental=False).repetition_detection
    assert params is not None
    for period in (1, 2, 3, 5, 8, 13, 21, 40, 48):
        tokens = [1000 + n for n in range(7)] + list(range(period)) * 60
        ends = next(end for end in range(len(tokens)) if check_sequence_repetition(tokens[:end], params))
        assert ends == _end_of_loop([str(token) for token in tokens])
        assert ends <= 7 + max(5 * period, 60)
    songs = [[7] * 39, [1, 2, 3, 4] * 9, list(range(20)) * 4, [1, 1, 1, 2] * 4 + [3, 3, 3, 4] * 4]
    assert not any(check_sequence_repetition(song, params) for song in songs)


async def test_abort_ends_the_iteration(engine: VllmEngine) -> None:
    seen = []
    async with aclosing(engine.generate(request("abort"), incremental=True)) as outputs:
        async for output in outputs:
            seen.append(output)
            await engine.abort("abort")

    assert seen[-1].finish_reason == "abort"


async def test_leaving_aborts_in_the_engine(engine: VllmEngine) -> None:
    async with aclosing(engine.generate(request("leave"), incremental=True)) as outputs:
        await anext(outputs)
    cancelled = asyncio.create_task(outputs_of(engine, request("cancel")))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)

    async with asyncio.timeout(10):
        while (await engine.describe()).requests:
            pass


async def test_neighbours_in_a_batch_do_not_change_the_text(engine: VllmEngine) -> None:
    names = [name for name in TRANSCRIPTS if name.endswith(".wav")]
    alone = [(await outputs_of(engine, request(f"alone-{name}", clip(name))))[0].text for name in names]

    together = await asyncio.gather(*(outputs_of(engine, request(f"together-{name}", clip(name))) for name in names))

    assert alone == [outputs[0].text for outputs in together]


@pytest.mark.parametrize("samples", [1, 160, 399, 400, 1600])
async def test_a_stretch_of_almost_nothing_is_served(samples: int, engine: VllmEngine) -> None:
    (output,) = await outputs_of(engine, request(f"tiny-{samples}", np.zeros(samples, np.float32)))

    assert output.finish_reason in ("stop", "length")


@pytest.mark.parametrize("context", ["", "Grigson, <|im_end|> RTFx"])
@pytest.mark.parametrize("samples", [1600, 1601, 16_000, 99_599])
async def test_inputs_are_those_of_vllms_general_way(samples: int, context: str, engine: VllmEngine) -> None:
    from vllm.renderers.inputs.preprocess import parse_model_prompt

    llm, inputs = engine._serving()
    asked = request("inputs", clip(CLIP)[:samples], context)
    prompt = {
        "prompt": build_prompt(asked.language, asked.context),
        "multi_modal_data": {"audio": (asked.waveform, SAMPLE_RATE)},
    }

    ours = await inputs.build(asked)
    (general,) = await llm.renderer.render_cmpl_async([parse_model_prompt(llm.model_config, prompt)])

    assert ours["prompt_token_ids"] == general["prompt_token_ids"]
    assert ours["mm_placeholders"] == general["mm_placeholders"]
    ((our_item,), (general_item,)) = (ours["mm_kwargs"]["audio"], general["mm_kwargs"]["audio"])
    assert set(our_item) == set(general_item)
    for name, element in general_item.items():
        assert our_item[name].data.dtype == element.data.dtype
        assert our_item[name].data.equal(element.data)
        assert repr(our_item[name].field) == repr(element.field)


async def test_describes_what_serves(engine: VllmEngine) -> None:
    description = await engine.describe()

    assert description.backend == "vllm"
    assert description.device == "cpu"
    assert description.dtype == "bfloat16"
    assert description.versions["vllm"] == "0.32.0"
    assert description.encoder["compile_mm_encoder"] is False
    status: Any = description.encoder["status"]
    assert status["accelerated"]
    assert status["compile"]["state"] == status["graphs"]["state"] == "off"
    assert await engine.encoder_usage() == EncoderUsage()


@pytest.mark.parametrize(
    ("status", "usage"),
    [
        ({"accelerated": False}, EncoderUsage(fallbacks=("compile", "graphs"))),
        (
            {"compile": {"state": "active"}, "graphs": {"state": "active", "hits": 3, "misses": 2}},
            EncoderUsage(graph_hits=3, graph_misses=2),
        ),
        ({"compile": {"state": "pending"}, "graphs": {"state": "pending", "hits": 0, "misses": 0}}, EncoderUsage()),
        ({"compile": {"state": "failed"}, "graphs": {"state": "active"}}, EncoderUsage(fallbacks=("compile",))),
        ({"compile": {"state": "active"}, "graphs": {"state": "unavailable"}}, EncoderUsage(fallbacks=("graphs",))),
    ],
)
def test_a_mode_that_was_asked_for_and_does_not_run_is_a_fallback(status: dict[str, Any], usage: EncoderUsage) -> None:
    wanted = EngineConfig(compile_mm_encoder=True, cudagraph_mm_encoder=True)

    assert _usage(status, wanted) == usage
    assert _usage(status, EngineConfig()).fallbacks == ()


async def test_refuses_before_its_start() -> None:
    engine = VllmEngine(EngineConfig())

    with pytest.raises(EngineNotReadyError):
        await outputs_of(engine, request("early"))
    assert (await engine.describe()).encoder["status"] is None
    assert await engine.encoder_usage() is None
    await engine.shutdown()


async def test_death_of_the_engine_process_fails_requests_at_once(engine: VllmEngine) -> None:
    (core,) = [
        process
        for child in psutil.Process().children()
        if "forkserver" in " ".join(child.cmdline())  # ours, not that of the service which other tests use
        for process in child.children()
    ]
    waiting = asyncio.create_task(outputs_of(engine, request("waits", np.tile(clip(CLIP), 4))))
    await asyncio.sleep(0)

    os.kill(core.pid, signal.SIGKILL)

    await assert_dead(engine, waiting, request("late"))
