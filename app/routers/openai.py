"""OpenAI's dialect of transcription and translation."""

from fastapi import APIRouter, Request, Response

from app.dependencies import ReadyRuntimeDep, SpoolDep, TicketDep
from app.documentation import ERROR_RESPONSES, TRANSCRIPT_RESPONSE, audio_body
from app.routers.transcribe import answer
from app.schemas.requests import OpenAITranscriptionFields, TranslationFields
from app.transcription.exceptions import InvalidFieldError
from app.upload import read_upload

router = APIRouter(tags=["OpenAI"])


@router.post(
    "/v1/audio/transcriptions",
    summary="Transcribe audio, as OpenAI's API does",
    responses={200: TRANSCRIPT_RESPONSE, **ERROR_RESPONSES},
    response_class=Response,
    openapi_extra={"requestBody": audio_body("file", OpenAITranscriptionFields, raw=False)},
)
async def create_transcription(
    request: Request, runtime: ReadyRuntimeDep, ticket: TicketDep, spool: SpoolDep
) -> Response:
    """For clients of OpenAI's SDKs: the audio as `file` of a form."""
    upload = await read_upload(request, spool, runtime.settings.limits, raw_allowed=False)
    return await answer(request, runtime, ticket, upload, OpenAITranscriptionFields)


@router.post(
    "/v1/audio/translations",
    summary="Translate speech into English text, as OpenAI's API does",
    responses={200: TRANSCRIPT_RESPONSE, **ERROR_RESPONSES},
    response_class=Response,
    openapi_extra={"requestBody": audio_body("file", TranslationFields, raw=False)},
)
async def create_translation(
    request: Request, runtime: ReadyRuntimeDep, ticket: TicketDep, spool: SpoolDep
) -> Response:
    """Refused with 422 where the profile's model does not translate (`engine.tasks`)."""
    settings = runtime.settings
    if "translate" not in settings.engine.tasks:
        msg = f"the model {settings.model_name} does not translate; transcribe with /v1/audio/transcriptions"
        raise InvalidFieldError(msg, param="model", code="task_not_served")
    upload = await read_upload(request, spool, settings.limits, raw_allowed=False)
    return await answer(request, runtime, ticket, upload, TranslationFields, task="translate")
