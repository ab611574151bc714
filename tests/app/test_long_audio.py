"""Long files: seams without a pause, order, and times at the end of an hour."""

import httpx
import numpy as np
import pytest

from benchmarks.long_audio import between_gaps, numbered_seams, time_errors
from benchmarks.long_speech import (
    CLEAR_EDGES,
    WORD_SECONDS,
    assemble,
    breathless,
    hear_numbers,
    mark,
    numbers_in,
    recordings,
)
from engine.interface import SAMPLE_RATE, SpeechRequest
from engine.scripted import Act, ScriptedEngine
from tests.audio_factory import clip, pcm16, silence, wav
from tests.conftest import MakeClient


async def post(client: httpx.AsyncClient, audio: bytes, **fields: str) -> httpx.Response:
    answer = await client.post("/v1/transcribe", files={"file": audio}, data=fields)
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize("seconds", [40.0, 95.0])
async def test_no_word_is_lost_or_doubled_where_there_is_no_pause(seconds: float, make_client: MakeClient) -> None:
    speech = mark(breathless(list(recordings().values()), seconds))
    async with make_client(ScriptedEngine(hear_numbers)) as client:
        body = (await post(client, wav(speech.tobytes()), response_format="verbose_json")).json()
        stream = (await post(client, wav(speech.tobytes()), stream="true")).text

    heard = numbers_in(body["text"])
    assert len(body["segments"]) >= 2
    assert heard == list(range(heard[0], heard[-1] + 1))
    assert len(heard) == pytest.approx(seconds / WORD_SECONDS, abs=2)
    scraps = [word for word in body["text"].split() if not word.startswith("word")]
    assert len(scraps) <= 2  # at the ends of the file alone
    assert f'"text":"{body["text"]}"' in stream
    for left, right in zip(body["segments"], body["segments"][1:], strict=False):
        assert left["end"] <= right["start"]


async def test_a_small_long_file_stands_up_to_the_measure_of_the_large_ones(make_client: MakeClient) -> None:
    sources = recordings()
    passages, samples = zip(*assemble(sources, 240.0), strict=True)
    audio = wav(mark(np.concatenate(samples)).tobytes())
    async with make_client(ScriptedEngine(hear_numbers)) as client:
        whole = (await post(client, audio, response_format="verbose_json")).json()
        alone = {
            name: (await post(client, between_gaps(sources[name]), response_format="verbose_json")).json()
            for name in CLEAR_EDGES
        }

    seams = numbered_seams(whole["text"], passages, sources)
    assert seams.words > 200
    assert (seams.lost, seams.doubled) == (0, 0)
    errors = time_errors(whole["segments"], passages, alone)
    assert len(errors) >= 5
    assert max(errors) <= 0.3


@pytest.mark.parametrize("seconds", [29, 30, 31, 59.9, 60.1, 299, 301])
async def test_the_last_word_is_there_whatever_the_length(seconds: float, make_client: MakeClient) -> None:
    last = clip("test-flite-male.wav")
    speech = np.concatenate([np.tile(clip("harbor-story-long.flac"), 7)[: round(seconds * SAMPLE_RATE)], last])
    speech = speech[-round(seconds * SAMPLE_RATE) :]
    covered: list[int] = []

    def script(request: SpeechRequest) -> Act:
        covered.append(len(request.waveform))
        return Act(words=("and", "done"))

    async with make_client(ScriptedEngine(script)) as client:
        body = (await post(client, wav(pcm16(speech)), response_format="verbose_json")).json()

    assert body["segments"][-1]["end"] > seconds - 1
    assert max(covered) <= 30 * SAMPLE_RATE


async def test_times_at_the_end_of_an_hour_are_as_exact_as_at_its_start(make_client: MakeClient) -> None:
    short = clip("report-us-male.wav")
    hour = np.concatenate([short, silence(3600 - 2 * len(short) / SAMPLE_RATE), short])
    async with make_client() as client:
        segments = (await post(client, wav(pcm16(hour)), response_format="verbose_json")).json()["segments"]

    first, last = segments
    shift = 3600 - len(short) / SAMPLE_RATE
    assert last["start"] - first["start"] == pytest.approx(shift, abs=0.3)
    assert last["end"] - first["end"] == pytest.approx(shift, abs=0.3)
