import asyncio
from contextlib import aclosing

import numpy as np
import pytest

from engine.interface import EngineDeadError, EngineNotReadyError, EngineStartError, GenerationError, SpeechRequest
from engine.scripted import Act, ScriptedEngine


def request(name: str = "a", seconds: float = 1.0) -> SpeechRequest:
    return SpeechRequest(request_id=name, waveform=np.zeros(int(seconds * 16_000), np.float32))


async def started(engine: ScriptedEngine) -> ScriptedEngine:
    await engine.start(lambda phase, share: None)
    return engine


async def texts(engine: ScriptedEngine, *, incremental: bool = False, name: str = "a") -> list[str]:
    return [output.text async for output in engine.generate(request(name), incremental=incremental)]


async def test_answers_whole_or_in_pieces_that_join_to_the_same() -> None:
    engine = await started(ScriptedEngine(lambda _: Act(words=("one", "two"), repeat=2)))

    whole = await texts(engine)
    pieces = await texts(engine, incremental=True)

    assert whole == ["one two one two"]
    assert len(pieces) > 1
    assert "".join(pieces) == whole[0]


async def test_refuses_before_the_start() -> None:
    with pytest.raises(EngineNotReadyError):
        await texts(ScriptedEngine())


async def test_a_start_can_fail() -> None:
    with pytest.raises(EngineStartError, match="no memory"):
        await started(ScriptedEngine(start_error="no memory"))


async def test_a_failure_is_of_one_request() -> None:
    engine = await started(ScriptedEngine(lambda asked: Act(words=("x",), fail=asked.request_id == "bad")))

    with pytest.raises(GenerationError):
        await texts(engine, name="bad")
    assert await texts(engine, name="good") == ["x"]


async def test_death_is_of_all_requests() -> None:
    stalled = Act(gate=asyncio.Event())
    engine = await started(ScriptedEngine(lambda asked: Act(die=True) if asked.request_id == "last" else stalled))
    waiting = asyncio.create_task(texts(engine, name="waiting"))
    await asyncio.sleep(0)

    with pytest.raises(EngineDeadError):
        await texts(engine, name="last")
    with pytest.raises(EngineDeadError):
        await waiting
    with pytest.raises(EngineDeadError):
        await engine.check_health()


async def test_counts_those_who_leave_and_those_who_are_aborted() -> None:
    engine = await started(ScriptedEngine(lambda _: Act(words=("one", "two"), gate=asyncio.Event())))
    leaving = asyncio.create_task(texts(engine, name="leaves"))
    aborted = asyncio.create_task(texts(engine, name="aborted"))
    await asyncio.sleep(0)

    leaving.cancel()
    await engine.abort("aborted")

    assert await aborted == [""]
    assert sorted(engine.aborted) == ["aborted", "leaves"]
    assert engine.running == {}


async def test_leaving_the_iteration_counts_as_an_abort() -> None:
    engine = await started(ScriptedEngine(lambda _: Act(words=("one", "two"))))

    async with aclosing(engine.generate(request(), incremental=True)) as outputs:
        async for _ in outputs:
            break

    assert engine.aborted == ["a"]
