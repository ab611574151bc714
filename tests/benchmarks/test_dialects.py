import base64
import json

import httpx
import numpy as np
import pytest

from benchmarks.clips import DEMO, Cuts, clip, read_recording
from benchmarks.containers import CONTAINERS, Container
from benchmarks.dialects import Chat, Told, Transcribe
from benchmarks.load import send
from engine.prompt import SYSTEM, instruction, token_budget

CLIP = clip("ramp.wav", np.arange(16_000, dtype=np.int16))


def answer(request: httpx.Request) -> httpx.Response:
    if request.url.path == "/v1/models":
        return httpx.Response(200, json={"data": [{"id": "first"}, {"id": "second"}]})
    return httpx.Response(200, json={"choices": [{"message": {"content": " some words\n"}}]})


async def test_chat_says_what_the_service_would_say_to_the_model() -> None:
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://peer") as client:
        chat = await Chat("en").prepared(client)
        request = chat.request(client, CLIP)
        told = chat.answer((await client.send(request)).json())

    body = json.loads(request.content)
    system, user = body["messages"]
    audio, words = user["content"]
    assert request.url.path == "/v1/chat/completions"
    assert body["model"] == "first"
    assert (body["temperature"], body["max_tokens"]) == (0, token_budget(1.0))
    assert system == {"role": "system", "content": SYSTEM}
    assert words == {"type": "text", "text": instruction("en")}
    assert base64.b64decode(audio["input_audio"]["data"]) == CLIP.content
    assert told == Told("some words", None)


def test_chat_takes_an_answer_without_content_for_silence() -> None:
    told = Chat("en").answer({"choices": [{"message": {"content": None}}], "usage": {"completion_tokens": 3}})

    assert told == Told("", 3)


async def test_chat_asks_for_exactly_as_many_tokens_as_are_fixed_and_for_a_stream_with_its_count() -> None:
    async with httpx.AsyncClient(base_url="http://peer") as client:
        request = Chat("en", "first", tokens=30).request(client, CLIP, stream=True)

    body = json.loads(request.content)
    assert (body["max_tokens"], body["ignore_eos"]) == (30, True)
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


def test_the_events_of_a_chat_are_read() -> None:
    chat = Chat("en")

    assert chat.event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}) == Told("")
    assert chat.event({"choices": [{"delta": {"content": " so"}}], "usage": None}) == Told(" so")
    assert chat.event({"choices": [], "usage": {"completion_tokens": 7}}) == Told("", 7)


async def test_transcribe_sends_the_file_to_the_services_route(scripted_client: httpx.AsyncClient) -> None:
    transcribe = await Transcribe("en").prepared(scripted_client)
    request = transcribe.request(scripted_client, CLIP)
    response = await scripted_client.send(request)

    assert request.url.path == "/v1/transcribe"
    assert response.status_code == 200
    assert response.json()["duration"] == 1.0
    assert transcribe.answer(response.json()) == Told(response.json()["text"])


@pytest.mark.parametrize("container", CONTAINERS)
async def test_the_service_takes_every_container_and_streams(
    scripted_client: httpx.AsyncClient, container: Container
) -> None:
    cut = Cuts([read_recording(DEMO / "jfk-human.wav")], 5.0).take(1, container)[0]

    answer = await send(scripted_client, Transcribe("en"), cut, stream=True)

    assert answer.error is None
    assert answer.text.startswith("audio of")
    assert answer.tokens is not None
    assert answer.first_seconds is not None
    assert answer.first_seconds <= answer.seconds
