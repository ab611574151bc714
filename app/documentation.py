"""What the OpenAPI document says where a signature cannot: bodies that are read by hand, answers in several forms."""

from typing import Any

from fastapi.sse import format_sse_event
from pydantic import BaseModel

from app.schemas.errors import ErrorEnvelope
from app.schemas.events import TextDelta, TextDone, TokenUsage
from app.schemas.responses import TranscriptionResponse, VerboseTranscriptionResponse

DESCRIPTION = """\
Speech to text on Qwen2.5-Omni, served by an accelerated vLLM.

    curl -F audio=@clip.wav http://localhost:8000/v1/transcribe

Every error has one shape, names the field, the limit and the remedy, and carries the request id that is also in the
header `X-Request-ID`. `Server-Timing` says where the time of a request went.
"""

TEXT = "Good morning. The library opens at nine o'clock."
_BRIEF = {
    "text": TEXT,
    "language": "en",
    "duration": 6.22,
    "no_speech": False,
    "usage": {"type": "duration", "seconds": 6.22},
    "warnings": [],
}
_SEGMENT = {
    "id": 0,
    "seek": 12,
    "start": 0.12,
    "end": 6.02,
    "text": TEXT,
    "tokens": [],
    "temperature": 0.0,
    "avg_logprob": None,
    "compression_ratio": 0.92,
    "no_speech_prob": None,
}

_USAGE = TokenUsage(input_tokens=187, output_tokens=12, total_tokens=199)
_DONE = TextDone(text=TEXT, usage=_USAGE, language="en", duration=6.22, no_speech=False, warnings=[])
_DELTAS = (TextDelta(delta=TEXT[:13]), TextDelta(delta=TEXT[13:]))
_EVENTS = "".join(format_sse_event(data_str=event.model_dump_json()).decode() for event in (*_DELTAS, _DONE))

TRANSCRIPT_RESPONSE: dict[str, Any] = {
    "description": "The transcript in the form of `response_format`",
    "model": TranscriptionResponse | VerboseTranscriptionResponse,
    "content": {
        "application/json": {
            "examples": {
                "json": {"value": _BRIEF},
                "verbose_json": {
                    "value": {**_BRIEF, "language": "english", "task": "transcribe", "segments": [_SEGMENT]}
                },
            }
        },
        "text/event-stream": {
            "schema": {"type": "string"},
            "examples": {"stream=true": {"value": _EVENTS}},
        },
        "text/plain": {
            "schema": {"type": "string"},
            "examples": {
                "text": {"value": f"{TEXT}\n"},
                "srt": {"value": f"1\n00:00:00,120 --> 00:00:06,020\n{TEXT}\n"},
                "vtt": {"value": f"WEBVTT\n\n00:00:00.120 --> 00:00:06.020\n{TEXT}\n"},
            },
        },
    },
    "headers": {
        "X-Request-ID": {"schema": {"type": "string"}},
        "Server-Timing": {
            "description": "milliseconds of each stage",
            "schema": {"type": "string"},
            "example": "queue;dur=0.1, decode;dur=6.2, segment;dur=21.0, inference;dur=240.3",
        },
    },
}

_ERRORS = {
    400: "the form or the file cannot be read",
    401: "the API key is missing or not valid, where the operator has set keys",
    404: "the model is not served",
    408: "the body came too slowly",
    413: "a limit was passed: bytes, seconds, channels or sample rate",
    415: "not audio, or nothing of it can be decoded",
    422: "a field cannot be served, a URL cannot be read, or there is no sound",
    429: "the queue is full; `Retry-After` says when to ask again",
    500: "the service failed on this request",
    503: "loading or shutting down; `Retry-After` says when to ask again",
    504: "decoding or transcribing took too long",
    507: "no room for the upload; `Retry-After` says when to ask again",
}

ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorEnvelope, "description": description} for status, description in _ERRORS.items()
}


_AUDIO = {"type": "string", "format": "binary", "description": "the audio, in any container that is served"}


def audio_body(name: str, fields: type[BaseModel], *, raw: bool) -> dict[str, Any]:
    """The request body: a form with the audio and all fields; where `raw` also the bare audio, or its URL."""
    form = _form(name, _AUDIO, fields)
    content: dict[str, Any] = {"multipart/form-data": {"schema": form}}
    if raw:
        del form["required"]  # there may be a `url`
        content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
        without = {key: value for key, value in form["properties"].items() if key != name}
        content["application/json"] = {"schema": {**form, "properties": without, "required": ["url"]}}
    return {"required": True, "content": content}


def batch_body(fields: type[BaseModel]) -> dict[str, Any]:
    """The request body of a batch: a form with several audio parts and all fields."""
    files = {"type": "array", "items": _AUDIO, "minItems": 1, "description": "one part for each file"}
    return {"required": True, "content": {"multipart/form-data": {"schema": _form("audio", files, fields)}}}


def _form(name: str, audio: dict[str, Any], fields: type[BaseModel]) -> dict[str, Any]:
    schema = fields.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs", {})
    properties = {name: audio, **{key: _inline(value, definitions) for key, value in schema["properties"].items()}}
    return {"type": "object", "properties": properties, "required": [name], "additionalProperties": False}


def _inline(value: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Replace a reference by what it refers to: a body that is read by hand registers no components."""
    if (reference := value.get("$ref")) is None:
        return value
    rest = {key: kept for key, kept in value.items() if key != "$ref"}
    return {**definitions[reference.rsplit("/", 1)[-1]], **rest}
