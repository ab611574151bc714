"""POST /v1/transcribe, and the way every transcription request takes."""

from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from app.dependencies import ReadyRuntimeDep, SpoolDep, TicketDep
from app.documentation import ERROR_RESPONSES, TRANSCRIPT_RESPONSE, audio_body
from app.fetching import Fetcher
from app.runtime import Runtime
from app.schemas.events import TextDelta, TextDone, TextSegment
from app.schemas.requests import (
    BatchFields,
    Channels,
    CommonFields,
    ResponseFormat,
    TranscribeFields,
    TranscriptionFields,
    parse_fields,
)
from app.schemas.responses import TranscriptionResponse, VerboseTranscriptionResponse
from app.streaming import EventStream, SendEvent, while_connected
from app.transcription.admission import Ticket
from app.transcription.exceptions import InvalidFieldError, Limit, UnknownModelError
from app.transcription.formats import to_srt, to_text, to_vtt
from app.transcription.languages import parse_language
from app.transcription.transcript import Segment, StageSeconds, Transcript, TranscriptionOptions
from app.upload import Upload, read_upload
from engine.prompt import Task

router = APIRouter(tags=["transcription"])

_PLAIN = {ResponseFormat.TEXT: to_text, ResponseFormat.SRT: to_srt, ResponseFormat.VTT: to_vtt}


@router.post(
    "/v1/transcribe",
    summary="Transcribe one audio file",
    responses={200: TRANSCRIPT_RESPONSE, **ERROR_RESPONSES},
    response_class=Response,
    openapi_extra={"requestBody": audio_body("audio", TranscribeFields, raw=True)},
)
async def transcribe(request: Request, runtime: ReadyRuntimeDep, ticket: TicketDep, spool: SpoolDep) -> Response:
    """Send the audio as `audio` (or `file`) of a form, or as the bare body with the fields in the query; or its `url`.

    The container and codec are found from the bytes: wav, flac, mp3, ogg, opus, m4a, mp4, webm, aac, amr, wma, aiff,
    caf and au, whatever the name or the declared type says. A file without speech gives an empty text.
    """
    settings = runtime.settings
    upload = await read_upload(request, spool, settings.limits)
    if upload.url is not None:
        parse_fields(TranscribeFields, upload.fields)  # nothing is fetched for a request that will be refused
        fetcher = Fetcher(
            settings.fetch.allowed_hosts,
            max_bytes=int(settings.limits.max_upload_bytes),
            timeout_seconds=settings.fetch.timeout_seconds,
        )
        await while_connected(request.receive, fetcher.fetch(upload.url, upload.path))
    return await answer(request, runtime, ticket, upload, TranscribeFields)


async def answer(
    request: Request,
    runtime: Runtime,
    ticket: Ticket,
    upload: Upload,
    schema: type[CommonFields],
    *,
    task: Task = "transcribe",
) -> Response:
    """Transcribe and render; the response of a stream does both itself."""
    fields = parse_fields(schema, upload.fields)
    options = options_of(fields, runtime, task)
    request_id = request.scope["state"]["request_id"]

    async def stream(send_event: SendEvent) -> TextDone:
        audience = _Stream(send_event, segments=fields.response_format is ResponseFormat.VERBOSE_JSON)
        transcript = await runtime.transcriber.transcribe(
            upload.path, options, request_id=request_id, ticket=ticket, audience=audience
        )
        note_audio(request, transcript)
        return TextDone.of(transcript)

    if isinstance(fields, TranscriptionFields) and fields.stream:
        return EventStream(request, stream, keep_alive_seconds=runtime.settings.server.keep_alive_seconds)
    work = runtime.transcriber.transcribe(upload.path, options, request_id=request_id, ticket=ticket)
    transcript = await while_connected(request.receive, work)
    note_audio(request, transcript)
    response = render(transcript, fields)
    response.headers["Server-Timing"] = _server_timing(transcript.stages)
    return response


def note_audio(request: Request, transcript: Transcript) -> None:
    """Leave the length of the audio for the access log; a batch adds up."""
    state = request.scope["state"]
    state["audio_seconds"] = state.get("audio_seconds", 0.0) + transcript.duration


@dataclass(frozen=True, slots=True)
class _Stream:
    """Tells a client of a transcript as it grows."""

    send_event: SendEvent
    segments: bool

    async def text(self, piece: str) -> None:
        await self.send_event(TextDelta(delta=piece))

    async def segment(self, segment: Segment) -> None:
        if self.segments:
            await self.send_event(TextSegment.of(segment))


def render(transcript: Transcript, fields: CommonFields) -> Response:
    """The transcript in the form that was asked for, with the media types of OpenAI's API."""
    body = render_body(transcript, fields)
    if isinstance(body, str):
        return Response(body, media_type="text/plain")
    return Response(body.model_dump_json(), media_type="application/json")


def render_body(transcript: Transcript, fields: CommonFields) -> TranscriptionResponse | str:
    """The transcript in the form that was asked for."""
    if (write := _PLAIN.get(fields.response_format)) is not None:
        return write(transcript)
    if fields.response_format is ResponseFormat.VERBOSE_JSON:
        return VerboseTranscriptionResponse.verbose(transcript, fields.temperature)
    return TranscriptionResponse.of(transcript)


def options_of(fields: CommonFields, runtime: Runtime, task: Task = "transcribe") -> TranscriptionOptions:
    """What the fields ask of the domain.

    Raises:
        UnknownModelError, InvalidFieldError: it cannot be served.
    """
    settings = runtime.settings
    if fields.model is not None and fields.model not in settings.model_names:
        known = ", ".join(settings.model_names)
        raise UnknownModelError(f"there is no model {fields.model[:100]!r}; served are {known}", param="model")
    options = TranscriptionOptions(
        task=task,
        language=parse_language(fields.language, settings.engine.languages),
        separate_channels=isinstance(fields, BatchFields) and fields.channels is Channels.SEPARATE,
        prompt=fields.prompt,
        hotwords=fields.all_hotwords,
        temperature=fields.temperature,
    )
    allowed = settings.limits.max_prompt_characters
    if len(options.context) > allowed:
        limit = Limit("prompt characters", allowed, "OMNIHEAR_LIMITS_MAX_PROMPT_CHARACTERS")
        param = "prompt" if len(fields.prompt) > allowed or not fields.all_hotwords else "hotwords"
        msg = f"prompt and hotwords have {len(options.context)} characters; at most {allowed} are taken"
        raise InvalidFieldError(msg, param=param, limit=limit)
    return options


def _server_timing(stages: StageSeconds) -> str:
    """W3C Server Timing; durations in milliseconds."""
    timed: dict[str, Any] = {name: getattr(stages, name) for name in stages.__dataclass_fields__}
    return ", ".join(f"{name};dur={seconds * 1000:.1f}" for name, seconds in timed.items())
