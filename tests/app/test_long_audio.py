"""Long files: seams without a pause, order, and times at the end of an hour."""

import functools
import re
from pathlib import Path

import httpx
import numpy as np
import pytest

from engine.interface import SAMPLE_RATE, SpeechRequest
from engine.scripted import Act, ScriptedEngine, speak_length
from tests.audio_factory import CLIPS, TRANSCRIPTS, Samples, clip, pcm16, silence, wav
from tests.conftest import MakeClient

WORD_SECONDS = 0.4


@functools.cache
def breathless(seconds: float) -> Samples:
    """Speech of several voices from which every pause has been cut."""
    voiced = []
    for name in TRANSCRIPTS:
        samples = clip(name)
        frames = samples[: len(samples) // 160 * 160].reshape(-1, 160)
        levels = frames.std(axis=1)
        voiced.append(frames[levels > 0.08 * levels.max()].reshape(-1))
    speech = np.concatenate(voiced)
    whole = np.tile(speech, int(np.ceil(seconds * SAMPLE_RATE / len(speech))))[: round(seconds * SAMPLE_RATE)]
    # Unlike anywhere else: a request's place in the whole can be found from its samples.
    marked: Samples = whole + np.random.default_rng(0).normal(0, 1e-3, len(whole)).astype(np.float32)
    return np.round(np.clip(marked, -1, 1) * 32767).astype(np.float32) / np.float32(32767)


def numbered_words(whole: Samples) -> ScriptedEngine:
    """Hears a numbered word every WORD_SECONDS; of one that is cut apart it hears a scrap."""
    exact = (np.frombuffer(pcm16(whole), "<i2") / np.float32(32768)).astype(np.float32)

    def script(request: SpeechRequest) -> Act:
        if request.request_id == "warm-up":
            return Act()
        at = exact.tobytes().find(request.waveform[:200].tobytes())
        assert at >= 0
        assert at % 4 == 0
        start, end = at / 4 / SAMPLE_RATE, (at / 4 + len(request.waveform)) / SAMPLE_RATE
        first, last = int(np.ceil(start / WORD_SECONDS)), int(end / WORD_SECONDS)
        words = [f"word{n}" for n in range(first, last)]
        if start < first * WORD_SECONDS:
            words.insert(0, "ord")
        if end > last * WORD_SECONDS:
            words.append("wo")
        return Act(words=tuple(words))

    return ScriptedEngine(script)


async def post(client: httpx.AsyncClient, audio: bytes, **fields: str) -> httpx.Response:
    answer = await client.post("/v1/transcribe", files={"file": audio}, data=fields)
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize("seconds", [40.0, 95.0])
async def test_no_word_is_lost_or_doubled_where_there_is_no_pause(seconds: float, make_client: MakeClient) -> None:
    speech = breathless(seconds)
    engine = numbered_words(speech)
    async with make_client(engine) as client:
        body = (await post(client, wav(pcm16(speech)), response_format="verbose_json")).json()
        stream = (await post(client, wav(pcm16(speech)), stream="true")).text

    heard = [int(word.removeprefix("word")) for word in body["text"].split() if word.startswith("word")]
    assert len(body["segments"]) >= 2
    assert heard == list(range(heard[0], heard[-1] + 1))
    assert len(heard) == pytest.approx(seconds / WORD_SECONDS, abs=2)
    scraps = [word for word in body["text"].split() if not word.startswith("word")]
    assert len(scraps) <= 2  # at the ends of the file alone
    assert f'"text":"{body["text"]}"' in stream
    for left, right in zip(body["segments"], body["segments"][1:], strict=False):
        assert left["end"] <= right["start"]


@pytest.mark.parametrize("seconds", [29, 30, 31, 59.9, 60.1])
async def test_the_last_word_is_there_whatever_the_length(seconds: float, make_client: MakeClient) -> None:
    last = clip("test-flite-male.wav")
    speech = np.concatenate([np.tile(clip("harbor-story-long.flac"), 2)[: round(seconds * SAMPLE_RATE)], last])
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


async def test_no_more_of_a_file_is_mapped_than_the_segments_under_way(make_client: MakeClient) -> None:
    resident: list[int] = []

    def measure(request: SpeechRequest) -> Act:
        maps = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
        waveforms = [each for each in maps if ".waveform" in each.split("\n", 1)[0]]
        sizes = (re.search(r"^Rss:\s+(\d+) kB", each, re.MULTILINE) for each in waveforms)
        resident.append(sum(int(size[1]) << 10 for size in sizes if size))
        return speak_length(request)

    upload = (CLIPS / "harbor-story-long.flac").read_bytes()
    async with make_client(ScriptedEngine(script=measure), concurrency={"segments_per_request": 1}) as client:
        answer = await client.post("/v1/transcribe", content=upload)

    assert answer.status_code == 200
    assert len(resident) > 4
    assert 0 < max(resident) < answer.json()["duration"] * SAMPLE_RATE * 4 / 2


async def test_a_scripted_engine_that_serves_keeps_no_sound(make_client: MakeClient) -> None:
    engine = ScriptedEngine(remembers=False)
    async with make_client(engine) as client:
        answer = await client.post("/v1/transcribe", content=(CLIPS / "jfk-human.wav").read_bytes())

    assert (answer.status_code, engine.requests) == (200, [])
