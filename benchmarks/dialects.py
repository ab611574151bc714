"""How to ask a server for the words of a clip, and where its answer has them."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, Self

import httpx

from benchmarks.clips import Clip
from benchmarks.containers import MEDIA_TYPES
from engine.prompt import SYSTEM, instruction, token_budget


class Told(NamedTuple):
    """What an answer, or an event of a streamed one, says.

    Attributes:
        text: new.
        tokens: of the whole answer, where the server counts them here.
    """

    text: str
    tokens: int | None = None


class Dialect(Protocol):
    """A way of asking."""

    async def prepared(self, client: httpx.AsyncClient) -> Self:
        """The same, after it has asked the server for what it has to know."""
        ...

    def request(self, client: httpx.AsyncClient, clip: Clip, *, stream: bool = False) -> httpx.Request:
        """A request, whole and not sent."""
        ...

    def answer(self, body: Mapping[str, Any]) -> Told:
        """The words of a successful answer."""
        ...

    def event(self, data: Mapping[str, Any]) -> Told:
        """The words of one event of a streamed answer."""
        ...


@dataclass(frozen=True, slots=True)
class Transcribe:
    """This service's own route: the file in a form."""

    language: str

    async def prepared(self, client: httpx.AsyncClient) -> Self:
        """Nothing is missing."""
        return self

    def request(self, client: httpx.AsyncClient, clip: Clip, *, stream: bool = False) -> httpx.Request:
        """A form with the file."""
        fields = {"language": self.language, "temperature": "0", **({"stream": "true"} if stream else {})}
        files = {"audio": (clip.name, clip.content, MEDIA_TYPES[clip.container])}
        request = client.build_request("POST", "/v1/transcribe", data=fields, files=files)
        request.read()  # renders the form now, as one piece
        return request

    def answer(self, body: Mapping[str, Any]) -> Told:
        """The field `text`."""
        return Told(str(body["text"]))

    def event(self, data: Mapping[str, Any]) -> Told:
        """A delta, or the count of the last event."""
        if data.get("type") == "transcript.text.done":
            return Told("", int(data["usage"]["output_tokens"]))
        return Told(str(data.get("delta", "")))


@dataclass(frozen=True, slots=True)
class Chat:
    """OpenAI's chat completions with `input_audio`: all that stock vLLM offers for this model.

    The words around the audio and the room for the answer are those that the service uses.

    Attributes:
        tokens: of every answer, no fewer and no more; as many as the clip may need, at most, when None.
    """

    language: str
    model: str = ""
    tokens: int | None = None

    async def prepared(self, client: httpx.AsyncClient) -> Self:
        """With the model that the server lists first."""
        response = (await client.get("/v1/models")).raise_for_status()
        return replace(self, model=str(response.json()["data"][0]["id"]))

    def request(self, client: httpx.AsyncClient, clip: Clip, *, stream: bool = False) -> httpx.Request:
        """A JSON body with the file in base64."""
        audio = {"data": base64.b64encode(clip.content).decode(), "format": clip.container}
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [
                {"role": "system", "content": SYSTEM},
                {
                    "role": "user",
                    "content": [
                        {"type": "input_audio", "input_audio": audio},
                        {"type": "text", "text": instruction(self.language)},
                    ],
                },
            ],
            "temperature": 0,
            "max_tokens": self.tokens or token_budget(clip.seconds),
        }
        if self.tokens:
            body["ignore_eos"] = True
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return client.build_request(
            "POST", "/v1/chat/completions", content=json.dumps(body), headers={"Content-Type": "application/json"}
        )

    def answer(self, body: Mapping[str, Any]) -> Told:
        """The first choice's message."""
        text = str(body["choices"][0]["message"]["content"] or "").strip()
        return Told(text, _completion_tokens(body))

    def event(self, data: Mapping[str, Any]) -> Told:
        """The first choice's delta; the last event has the count and no choice."""
        text = "".join(str(choice["delta"].get("content") or "") for choice in data.get("choices", ())[:1])
        return Told(text, _completion_tokens(data))


def _completion_tokens(body: Mapping[str, Any]) -> int | None:
    usage = body.get("usage")
    return int(usage["completion_tokens"]) if usage else None
