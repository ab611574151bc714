"""Each limit passed, one at a time: refused with its name, its value and its setting."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from app.settings import Clients, Limits
from engine.scripted import Act, ScriptedEngine
from tests.audio_factory import clip, encode, pcm16, wav
from tests.conftest import MakeClient
from tests.waiting import eventually

SPEECH = wav(pcm16(clip("library-us-female.wav")))
STEREO = wav(pcm16(np.stack([clip("library-us-female.wav")] * 2)), channels=2)
MINUTES = encode(np.tile(clip("harbor-story-long.flac"), 6), "opus")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A limit that is so low, and a request that passes it, beside another one where that is `held` in the engine."""

    value: float
    status: int
    audio: bytes = SPEECH
    form: dict[str, str] = field(default_factory=dict)
    held: bool = False


CASES = {
    "limits.max_upload_bytes": Case(value=1000, status=413),
    "limits.max_audio_seconds": Case(value=2, status=413),
    "limits.max_decoded_bytes": Case(value=1000, status=413),
    "limits.max_channels": Case(value=1, status=413, audio=STEREO),
    "limits.max_sample_rate": Case(value=8000, status=413),
    "limits.min_sample_rate": Case(value=22_050, status=415),
    "limits.max_prompt_characters": Case(value=5, status=422, form={"prompt": "Grigson"}),
    "limits.decode_timeout_seconds": Case(value=0.1, status=504, audio=MINUTES),
    "limits.inference_timeout_seconds": Case(value=0.2, status=504, held=True),
    "concurrency.max_requests": Case(value=1, status=429, held=True),
    "concurrency.max_audio_seconds": Case(value=1, status=429, held=True),
}
ELSEWHERE = {
    "limits.upload_idle_seconds": "test_slow_uploads",
    "limits.min_upload_rate": "test_slow_uploads",
    "clients.max_requests": "test_access",
    "clients.requests_per_minute": "test_faults",
}


def test_there_is_a_case_for_every_limit() -> None:
    fields = {f"limits.{name}" for name in Limits.model_fields} | {f"clients.{name}" for name in Clients.model_fields}
    assert fields | {"concurrency.max_requests", "concurrency.max_audio_seconds"} == {*CASES, *ELSEWHERE}


@pytest.mark.parametrize("route", ["/v1/transcribe", "/v1/audio/transcriptions"])
@pytest.mark.parametrize("key", CASES)
async def test_a_limit_that_is_passed_names_itself(key: str, route: str, make_client: MakeClient) -> None:
    case, (section, name) = CASES[key], key.split(".")
    gate = asyncio.Event()
    engine = ScriptedEngine(
        lambda asked: Act(words=("fine",), gate=gate if case.held and asked.request_id != "warm-up" else None)
    )
    sections: dict[str, Any] = {section: {name: case.value}}
    async with make_client(engine, **sections) as client:
        first = asyncio.create_task(client.post(route, files={"file": SPEECH})) if section == "concurrency" else None
        if first is not None:
            await eventually(lambda: engine.running, seconds=20)
        answer = await client.post(route, files={"file": case.audio}, data=case.form)
        gate.set()
        if first is not None:
            assert (await first).status_code == 200

    assert answer.status_code == case.status
    error = answer.json()["error"]
    assert error["limit"]["name"]
    assert error["limit"]["value"] == case.value
    assert error["limit"]["setting"] == f"OMNIHEAR_{key.replace('.', '_').upper()}"
