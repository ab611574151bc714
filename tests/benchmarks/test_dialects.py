import base64
import json

import httpx
import numpy as np

from benchmarks.clips import clip
from benchmarks.dialects import Chat, Transcribe
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
        text = chat.text(await client.send(request))

    body = json.loads(request.content)
    system, user = body["messages"]
    audio, words = user["content"]
    assert request.url.path == "/v1/chat/completions"
    assert body["model"] == "first"
    assert (body["temperature"], body["max_tokens"]) == (0, token_budget(1.0))
    assert system == {"role": "system", "content": SYSTEM}
    assert words == {"type": "text", "text": instruction("en")}
    assert base64.b64decode(audio["input_audio"]["data"]) == CLIP.wav
    assert text == "some words"


def test_chat_takes_an_answer_without_content_for_silence() -> None:
    response = httpx.Response(200, json={"choices": [{"message": {"content": None}}]})

    assert Chat("en").text(response) == ""


async def test_transcribe_sends_the_file_to_the_services_route(scripted_client: httpx.AsyncClient) -> None:
    transcribe = await Transcribe("en").prepared(scripted_client)
    request = transcribe.request(scripted_client, CLIP)
    response = await scripted_client.send(request)

    assert request.url.path == "/v1/transcribe"
    assert response.status_code == 200
    assert response.json()["duration"] == 1.0
    assert transcribe.text(response) == response.json()["text"]
