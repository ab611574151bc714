"""Answers in JSON, all made from one `Transcript`."""

import zlib
from typing import Literal, Self

from pydantic import BaseModel, Field

from app.transcription.languages import language_name
from app.transcription.transcript import Segment, Transcript
from app.transcription.types import AudioWarning
from engine.prompt import Task

_SEEK_FRAMES_PER_SECOND = 100  # Whisper's mel frames, the unit of OpenAI's `seek`


class Usage(BaseModel):
    """What is billed where somebody bills: audio seconds."""

    type: Literal["duration"] = "duration"
    seconds: float = Field(description="of audio", examples=[6.22])


class WarningDetail(BaseModel):
    """Something the caller should know although there is a result."""

    code: str = Field(examples=["truncated"])
    message: str

    @classmethod
    def of(cls, warning: AudioWarning) -> Self:
        """Wire form of a warning."""
        return cls(code=warning.code, message=warning.message)


def _is_none(value: object) -> bool:
    return value is None


class ChannelTranscript(BaseModel):
    """What one channel of the audio says."""

    channel: int = Field(description="counted from 1", examples=[1])
    text: str
    no_speech: bool

    @classmethod
    def all_of(cls, transcript: Transcript) -> list[Self] | None:
        """One for each channel, None where they were mixed."""
        texts = transcript.channel_texts()
        if texts is None:
            return None
        return [cls(channel=number, text=text, no_speech=not text) for number, text in texts.items()]


class TranscriptionResponse(BaseModel):
    """`response_format=json`."""

    text: str = Field(description="empty where there is no speech", examples=["Good morning."])
    language: str | None = Field(description="ISO code; null when nobody said and the model does not tell")
    duration: float = Field(description="seconds of audio", examples=[6.22])
    no_speech: bool = Field(description="whether the audio holds no speech")
    usage: Usage
    warnings: list[WarningDetail]
    channels: list[ChannelTranscript] | None = Field(
        default=None, exclude_if=_is_none, description="with `channels=separate`"
    )

    @classmethod
    def of(cls, transcript: Transcript) -> Self:
        """Wire form of a transcript."""
        return cls(
            text=transcript.text,
            language=transcript.language,
            duration=transcript.duration,
            no_speech=transcript.no_speech,
            usage=Usage(seconds=transcript.duration),
            warnings=[WarningDetail.of(warning) for warning in transcript.warnings],
            channels=ChannelTranscript.all_of(transcript),
        )


class VerboseSegment(BaseModel):
    """One segment in OpenAI's form; what this model does not tell is null, not invented."""

    id: int
    seek: int = Field(description="start in frames of 10 ms")
    start: float = Field(description="seconds")
    end: float = Field(description="seconds")
    text: str
    tokens: list[int] = Field(description="always empty: token ids are the model's affair")
    temperature: float
    avg_logprob: float | None
    compression_ratio: float = Field(description="bytes of the text over bytes of its zlib form, as Whisper has it")
    no_speech_prob: float | None
    channel: int | None = Field(
        default=None, exclude_if=_is_none, description="counted from 1, with `channels=separate`"
    )

    @classmethod
    def of(cls, segment: Segment, temperature: float) -> Self:
        """Wire form of a segment."""
        encoded = segment.text.encode()
        return cls(
            id=segment.index,
            seek=round(segment.start * _SEEK_FRAMES_PER_SECOND),
            start=segment.start,
            end=segment.end,
            text=segment.text,
            tokens=[],
            temperature=temperature,
            avg_logprob=None,
            compression_ratio=len(encoded) / len(zlib.compress(encoded)),
            no_speech_prob=None,
            channel=segment.channel,
        )


class VerboseTranscriptionResponse(TranscriptionResponse):
    """`response_format=verbose_json`."""

    task: Task
    segments: list[VerboseSegment]

    @classmethod
    def verbose(cls, transcript: Transcript, temperature: float) -> Self:
        """Wire form of a transcript with its segments; the language is named in full, as OpenAI does."""
        brief = TranscriptionResponse.of(transcript).model_dump()
        segments = [VerboseSegment.of(segment, temperature) for segment in transcript.segments]
        return cls(
            **{**brief, "task": transcript.task, "language": language_name(transcript.language)}, segments=segments
        )
