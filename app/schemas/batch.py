"""Answer to a batch: what became of each file."""

from pydantic import BaseModel, Field

from app.schemas.errors import ErrorDetail
from app.schemas.responses import TranscriptionResponse, VerboseTranscriptionResponse


def _is_none(value: object) -> bool:
    return value is None


class FileResult(BaseModel):
    """One file of a batch: a transcript, or why there is none."""

    index: int = Field(description="place of the file in the form, from 0")
    name: str | None = Field(description="of the file, as the client calls it", examples=["clip.wav"])
    status: int = Field(description="the status that the file alone would have got", examples=[200])
    transcript: VerboseTranscriptionResponse | TranscriptionResponse | str | None = Field(
        default=None, exclude_if=_is_none, description="in the form of `response_format`; with status 200"
    )
    error: ErrorDetail | None = Field(default=None, exclude_if=_is_none, description="with any other status")


class BatchResponse(BaseModel):
    """All files in the order of the form."""

    succeeded: int
    failed: int
    results: list[FileResult]
