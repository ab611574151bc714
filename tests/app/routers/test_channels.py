"""`channels=separate`: a call, one party on each channel."""

import re
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest

from engine.interface import SpeechRequest
from engine.scripted import Act, ScriptedEngine
from tests.audio_factory import FORMATS, clip, encode, noise, pcm16, silence, wav
from tests.conftest import Client, MakeClient
from tests.live import live

REPORT, LIBRARY = clip("report-us-male.wav"), clip("library-us-female.wav")
# Channel 1 speaks, then channel 2, then channel 1 again.
FIRST = np.concatenate([REPORT, silence(len(LIBRARY) / 16_000 + 3), REPORT])
SECOND = np.concatenate([silence(len(REPORT) / 16_000 + 1.5), LIBRARY, silence(len(REPORT) / 16_000 + 1.5)])
CALL = np.stack([FIRST, SECOND[: len(FIRST)]])


def names_the_loudness(request: SpeechRequest) -> Act:
    seconds = len(request.waveform) / 16_000
    return Act(words=("please", "send.") if seconds < 5.2 else ("good", "morning."))


async def post(client: httpx.AsyncClient, audio: bytes, **fields: Any) -> httpx.Response:
    return await client.post("/v1/transcribe", files={"file": audio}, data={"channels": "separate", **fields})


def stereo() -> bytes:
    return wav(pcm16(CALL), channels=2)


TEXT = "Channel 1: please send.\nChannel 2: good morning.\nChannel 1: please send."


async def test_each_channel_has_its_transcript(make_client: MakeClient) -> None:
    async with make_client(ScriptedEngine(names_the_loudness)) as client:
        body = (await post(client, stereo())).json()

    assert body["text"] == TEXT
    assert body["channels"] == [
        {"channel": 1, "text": "please send. please send.", "no_speech": False},
        {"channel": 2, "text": "good morning.", "no_speech": False},
    ]


async def test_subtitles_are_merged_by_time_and_labelled(make_client: MakeClient) -> None:
    async with make_client(ScriptedEngine(names_the_loudness)) as client:
        srt = (await post(client, stereo(), response_format="srt")).text
        vtt = (await post(client, stereo(), response_format="vtt")).text
        verbose = (await post(client, stereo(), response_format="verbose_json")).json()

    labels = re.findall(r"^(Channel \d): ", srt, re.MULTILINE)
    assert labels == re.findall(r"^(Channel \d): ", vtt, re.MULTILINE) == ["Channel 1", "Channel 2", "Channel 1"]
    starts = re.findall(r"^(\S+) -->", srt, re.MULTILINE)
    assert starts == sorted(starts)
    assert [segment["channel"] for segment in verbose["segments"]] == [1, 2, 1]
    assert verbose["text"] == TEXT


async def test_channels_stream_to_the_same_text(one_event_loop: None) -> None:
    async with live(ScriptedEngine(names_the_loudness)) as client:
        answer = await post(client, stereo(), stream="true")

    deltas = re.findall(r'"delta":"(.*?)"}', answer.text)
    assert "".join(deltas).replace(r"\n", "\n") == TEXT
    assert '"channels":[{"channel":1,' in answer.text


@pytest.mark.parametrize("name", ["flac", "opus"])
async def test_a_silent_channel_is_listed_as_such(name: str, make_client: MakeClient) -> None:
    layout = np.stack([LIBRARY, noise(len(LIBRARY) / 16_000, -80)[: len(LIBRARY)]])
    async with make_client(ScriptedEngine(names_the_loudness)) as client:
        body = (await post(client, encode(layout, replace(FORMATS[name], layout="stereo")))).json()

    assert [channel["no_speech"] for channel in body["channels"]] == [False, True]


async def test_a_single_channel_is_channel_1(scripted_client: Client) -> None:
    body = (await post(scripted_client, wav(pcm16(LIBRARY)))).json()

    assert body["text"].startswith("Channel 1: audio of")
    assert len(body["channels"]) == 1


async def test_a_mix_has_no_channels(scripted_client: Client) -> None:
    body = (await post(scripted_client, stereo(), channels="mix")).json()

    assert "channels" not in body
    assert "Channel" not in body["text"]


async def test_the_samples_of_each_channel_reach_the_engine(make_client: MakeClient) -> None:
    engine = ScriptedEngine()
    tone = np.stack([LIBRARY, np.zeros_like(LIBRARY), LIBRARY / 2])
    async with make_client(engine) as client:
        await post(client, wav(pcm16(tone), channels=3))

    first, third = (request.waveform for request in engine.requests[-2:])
    assert np.abs(first / 2 - third).max() < 1e-3
