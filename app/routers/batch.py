"""POST /v1/transcribe/batch"""

import asyncio

from fastapi import APIRouter, Request

from app.dependencies import ReadyRuntimeDep, SpoolDep, TicketDep
from app.documentation import ERROR_RESPONSES, batch_body
from app.errors import explain
from app.routers.transcribe import note_audio, options_of, render_body
from app.schemas.batch import BatchResponse, FileResult
from app.schemas.requests import BatchFields, parse_fields
from app.streaming import while_connected
from app.upload import UploadedFile, read_batch

router = APIRouter(tags=["transcription"])


@router.post(
    "/v1/transcribe/batch",
    summary="Transcribe several audio files",
    responses=ERROR_RESPONSES,
    openapi_extra={"requestBody": batch_body(BatchFields)},
)
async def transcribe_batch(
    request: Request, runtime: ReadyRuntimeDep, ticket: TicketDep, spool: SpoolDep
) -> BatchResponse:
    """Send each file as an `audio` part of one form; the other fields hold for all.

    The answer is 200 with a status for each file, whatever became of them: one bad file does not fail the rest.
    """
    batch = await read_batch(request, spool, runtime.settings.limits)
    fields = parse_fields(BatchFields, batch.fields)
    options = options_of(fields, runtime)
    places = asyncio.Semaphore(runtime.settings.concurrency.files_per_batch)

    async def one(index: int, file: UploadedFile) -> FileResult:
        request_id = f"{request.scope['state']['request_id']}-{index}"
        try:
            file.check()
            async with places:
                transcript = await runtime.transcriber.transcribe(
                    file.path, options, request_id=request_id, ticket=ticket
                )
        except Exception as error:  # told to the caller, and logged where it is ours
            fault = explain(request, error)
            return FileResult(index=index, name=file.name, status=fault.status, error=fault.detail)
        note_audio(request, transcript)
        return FileResult(index=index, name=file.name, status=200, transcript=render_body(transcript, fields))

    async def all_files() -> list[FileResult]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(index, file)) for index, file in enumerate(batch.files)]
        return [task.result() for task in tasks]

    results = await while_connected(request.receive, all_files())
    succeeded = sum(result.error is None for result in results)
    return BatchResponse(succeeded=succeeded, failed=len(results) - succeeded, results=results)
