"""Events of a streamed answer, in OpenAI's form."""

from typing import Literal, Self

from pydantic import BaseModel, Field

from app.schemas.errors import ErrorDetail
from app.schemas.responses import ChannelTranscript, WarningDetail
from app.transcription.transcript import Segment, Transcript


class TextDelta(BaseModel):
    """Text that has become known; all deltas join to the whole text."""

    type: Literal["transcript.text.delta"] = "transcript.text.delta"
    delta: str = Field(examples=["Good morning,"])


class TextSegment(BaseModel):
    """A segment that is complete; with `verbose_json`."""

    type: Literal["transcript.text.segment"] = "transcript.text.segment"
    id: str
    start: float = Field(description="seconds")
    end: float = Field(description="seconds")
    speaker: str = Field(description="`Channel 1` and so on with `channels=separate`, else empty")
    text: str

    @classmethod
    def of(cls, segment: Segment) -> Self:
        """Wire form of a segment."""
        speaker = "" if segment.channel is None else f"Channel {segment.channel}"
        return cls(id=str(segment.index), start=segment.start, end=segment.end, speaker=speaker, text=segment.text)


class TokenUsage(BaseModel):
    """What the engine has read and written, in the form that OpenAI's streams have."""

    type: Literal["tokens"] = "tokens"
    input_tokens: int = Field(description="of all prompts, audio included")
    output_tokens: int
    total_tokens: int


class TextDone(BaseModel):
    """The last event of a stream that succeeds."""

    type: Literal["transcript.text.done"] = "transcript.text.done"
    text: str = Field(description="all deltas, joined", examples=["Good morning, the library opens at nine."])
    usage: TokenUsage
    language: str | None = Field(description="ISO code; null when nobody said and the model does not tell")
    duration: float = Field(description="seconds of audio", examples=[6.22])
    no_speech: bool = Field(description="whether the audio holds no speech")
    warnings: list[WarningDetail]
    channels: list[ChannelTranscript] | None = Field(
        default=None, exclude_if=lambda value: value is None, description="with `channels=separate`"
    )

    @classmethod
    def of(cls, transcript: Transcript) -> Self:
        """Wire form of a transcript."""
        return cls(
            text=transcript.text,
            usage=TokenUsage(
                input_tokens=transcript.input_tokens,
                output_tokens=transcript.output_tokens,
                total_tokens=transcript.input_tokens + transcript.output_tokens,
            ),
            language=transcript.language,
            duration=transcript.duration,
            no_speech=transcript.no_speech,
            warnings=[WarningDetail.of(warning) for warning in transcript.warnings],
            channels=ChannelTranscript.all_of(transcript),
        )


class ErrorEvent(BaseModel):
    """The last event of a stream that fails after it has begun."""

    type: Literal["error"] = "error"
    error: ErrorDetail
