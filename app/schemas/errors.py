"""The one shape of every error."""

from pydantic import BaseModel, Field


class LimitDetail(BaseModel):
    """A limit that was passed."""

    name: str = Field(description="what is limited, with its unit", examples=["audio seconds"])
    value: float = Field(description="the limit", examples=[14400])
    setting: str = Field(
        description="environment variable that changes it", examples=["OMNIHEAR_LIMITS_MAX_AUDIO_SECONDS"]
    )


class ErrorDetail(BaseModel):
    """What went wrong, for programs and for people."""

    code: str = Field(description="stable, for programs", examples=["not_audio"])
    type: str = Field(description="`invalid_request_error` or `server_error`", examples=["invalid_request_error"])
    message: str = Field(description="for people; says what to do", examples=["the file looks like a PNG image"])
    param: str | None = Field(default=None, description="the field at fault", examples=["audio"])
    limit: LimitDetail | None = Field(default=None, description="the limit that was passed")
    request_id: str = Field(description="also in the header X-Request-ID", examples=["0b9d6d1f4b7a4c0f"])


class ErrorEnvelope(BaseModel):
    """Body of every answer with a status of 400 or above."""

    error: ErrorDetail
