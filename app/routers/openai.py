"""OpenAI's dialect of transcription."""

from fastapi import APIRouter, Request, Response

from app.dependencies import ReadyRuntimeDep, SpoolDep
from app.documentation import ERROR_RESPONSES, TRANSCRIPT_RESPONSE, audio_body
from app.routers.transcribe import answer

router = APIRouter(tags=["OpenAI"])


@router.post(
    "/v1/audio/transcriptions",
    summary="Transcribe audio, as OpenAI's API does",
    responses={200: TRANSCRIPT_RESPONSE, **ERROR_RESPONSES},
    response_class=Response,
    openapi_extra={"requestBody": audio_body("file", raw=False)},
)
async def create_transcription(request: Request, runtime: ReadyRuntimeDep, spool: SpoolDep) -> Response:
    """For clients of OpenAI's SDKs: the audio as `file` of a form."""
    return await answer(request, runtime, spool, raw_allowed=False)
