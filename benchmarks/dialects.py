"""How to ask a server for the words of a clip, and where its answer has them."""

import base64
import json
from dataclasses import dataclass, replace
from typing import Protocol, Self

import httpx

from benchmarks.clips import Clip
from engine.prompt import SYSTEM, instruction, token_budget


class Dialect(Protocol):
    """A way of asking."""

    async def prepared(self, client: httpx.AsyncClient) -> Self:
        """The same, after it has asked the server for what it has to know."""
        ...

    def request(self, client: httpx.AsyncClient, clip: Clip) -> httpx.Request:
        """A request, whole and not sent."""
        ...

    def text(self, response: httpx.Response) -> str:
        """The words of a successful answer."""
        ...


@dataclass(frozen=True, slots=True)
class Transcribe:
    """This service's own route: the file in a form."""

    language: str

    async def prepared(self, client: httpx.AsyncClient) -> Self:
        """Nothing is missing."""
        return self

    def request(self, client: httpx.AsyncClient, clip: Clip) -> httpx.Request:
        """A form with the wav file."""
        fields = {"language": self.language, "temperature": "0"}
        return client.build_request(
            "POST", "/v1/transcribe", data=fields, files={"audio": (clip.name, clip.wav, "audio/wav")}
        )

    def text(self, response: httpx.Response) -> str:
        """The field `text`."""
        return str(response.json()["text"])


@dataclass(frozen=True, slots=True)
class Chat:
    """OpenAI's chat completions with `input_audio`: all that stock vLLM offers for this model.

    The words around the audio and the room for the answer are those that the service uses.
    """

    language: str
    model: str = ""

    async def prepared(self, client: httpx.AsyncClient) -> Self:
        """With the model that the server lists first."""
        response = (await client.get("/v1/models")).raise_for_status()
        return replace(self, model=str(response.json()["data"][0]["id"]))

    def request(self, client: httpx.AsyncClient, clip: Clip) -> httpx.Request:
        """A JSON body with the wav file in base64."""
        audio = {"type": "input_audio", "input_audio": {"data": base64.b64encode(clip.wav).decode(), "format": "wav"}}
        body = {
            "model": self.model,
            "messages": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": [audio, {"type": "text", "text": instruction(self.language)}]},
            ],
            "temperature": 0,
            "max_tokens": token_budget(clip.seconds),
        }
        return client.build_request(
            "POST", "/v1/chat/completions", content=json.dumps(body), headers={"Content-Type": "application/json"}
        )

    def text(self, response: httpx.Response) -> str:
        """The first choice's message."""
        return str(response.json()["choices"][0]["message"]["content"] or "").strip()
