"""Fields of a transcription request, and how a form's text becomes them."""

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from app.transcription.exceptions import InvalidFieldError


class ResponseFormat(StrEnum):
    """How the transcript is written."""

    JSON = "json"
    TEXT = "text"
    SRT = "srt"
    VTT = "vtt"
    VERBOSE_JSON = "verbose_json"


def _refuse(given: tuple[str, ...]) -> tuple[str, ...]:
    if given:
        raise PydanticCustomError("not_served", "this is not served here; leave the field out")
    return given


Refused = Annotated[tuple[str, ...], AfterValidator(_refuse)]
"""A field that the dialect documents and that cannot be honoured."""


class CommonFields(BaseModel):
    """What every route takes beside the audio."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str | None = Field(default=None, description="a name from `GET /v1/models`", examples=["omni-tiny-en"])
    language: str = Field(
        default="auto",
        description="of the speech: ISO code, regional tag, English name, or `auto`",
        examples=["en", "en-US", "english"],
    )
    prompt: str = Field(default="", description="words that are likely to occur", examples=["omnihear, RTFx"])
    hotwords: tuple[str, ...] = Field(
        default=(),
        description="names and terms that are likely to occur: separated by commas, or the field several times",
        examples=["Grigson, RTFx"],
    )
    response_format: ResponseFormat = Field(default=ResponseFormat.JSON, description="form of the answer")
    temperature: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = Field(
        default=0.0, description="0 decodes greedily"
    )

    @property
    def all_hotwords(self) -> tuple[str, ...]:
        """Under whatever name they came."""
        return self.hotwords

    @field_validator("hotwords", mode="before")
    @classmethod
    def _separate(cls, given: Sequence[str]) -> tuple[str, ...]:
        return tuple(word.strip() for text in given for word in text.split(",") if word.strip())


class Channels(StrEnum):
    """What becomes of the channels of the audio."""

    MIX = "mix"
    SEPARATE = "separate"


class BatchFields(CommonFields):
    """Fields of `/v1/transcribe/batch`; they hold for all files."""

    channels: Channels = Field(
        default=Channels.MIX, description="`separate` transcribes each channel, and labels what it says"
    )

    timestamp_granularities: tuple[Literal["segment"], ...] = Field(
        default=(), alias="timestamp_granularities[]", description="with `verbose_json`; segments alone have times"
    )

    @model_validator(mode="after")
    def _granularities_need_verbose(self) -> Self:
        if self.timestamp_granularities and self.response_format is not ResponseFormat.VERBOSE_JSON:
            msg = "timestamp_granularities[] needs response_format=verbose_json"
            raise InvalidFieldError(msg, param="timestamp_granularities[]")
        return self


class TranscriptionFields(BatchFields):
    """Fields of both routes that transcribe one file."""

    stream: bool = Field(
        default=False,
        description="answer with server-sent events as the text becomes known; `verbose_json` adds segments",
    )

    @model_validator(mode="after")
    def _streams_are_json(self) -> Self:
        if self.stream and self.response_format not in (ResponseFormat.JSON, ResponseFormat.VERBOSE_JSON):
            msg = f"stream=true needs response_format json or verbose_json; {self.response_format} has no events"
            raise InvalidFieldError(msg, param="response_format")
        return self


class TranscribeFields(TranscriptionFields):
    """Fields of `/v1/transcribe`."""

    url: str = Field(
        default="",
        description="where the audio is, in place of the audio itself; for hosts that the deployment allows",
        examples=["https://media.example.org/call.mp3"],
    )


class OpenAITranscriptionFields(TranscriptionFields):
    """Fields of OpenAI's `/v1/audio/transcriptions`; those that cannot be honoured are refused by name."""

    chunking_strategy: Literal["auto"] = Field(
        default="auto", description="always by voice activity; parameters of it are not taken"
    )
    keywords: tuple[str, ...] = Field(default=(), alias="keywords[]", description="the same as `hotwords`")
    languages: tuple[str, ...] = Field(
        default=(), alias="languages[]", max_length=1, description="one, in place of `language`"
    )
    include: Refused = Field(default=(), alias="include[]", description="refused: `logprobs` are not served")
    known_speaker_names: Refused = Field(
        default=(), alias="known_speaker_names[]", description="refused: speakers are not told apart"
    )
    known_speaker_references: Refused = Field(
        default=(), alias="known_speaker_references[]", description="refused: speakers are not told apart"
    )

    @property
    def all_hotwords(self) -> tuple[str, ...]:
        """Keywords included."""
        return (*self.hotwords, *self.keywords)

    @model_validator(mode="before")
    @classmethod
    def _one_language(cls, values: dict[str, Any]) -> dict[str, Any]:
        named = values.get("languages[]", [])
        if len(named) != 1:
            return values
        if "language" in values:
            raise InvalidFieldError("give `language` or `languages[]`, not both", param="languages[]")
        return {**values, "language": named[0]}


class TranslationFields(CommonFields):
    """Fields of OpenAI's `/v1/audio/translations`; `language` is that of the speech."""


_BRACKETS = re.compile(r"\[\d*\]$")

Fields = TypeVar("Fields", bound=BaseModel)


def parse_fields(schema: type[Fields], pairs: Iterable[tuple[str, str]]) -> Fields:
    """Read a form's fields.

    The name of a field that may come several times is taken with brackets and without, as clients write lists:
    `hotwords`, `hotwords[]`, `hotwords[0]`.

    Raises:
        InvalidFieldError: for the first field that is unknown, repeated or has a value that cannot be served.
    """
    lists = {field.alias or name for name, field in schema.model_fields.items() if field.default == ()}
    known = [field.alias or name for name, field in schema.model_fields.items()]
    spelled = {_BRACKETS.sub("", name): name for name in lists}
    values: defaultdict[str, list[str]] = defaultdict(list)
    for name, value in pairs:
        values[spelled.get(_BRACKETS.sub("", name), name)].append(value)
    for name, given in values.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean `{close[0]}`?" if close else f"known are {', '.join(known)}"
            raise InvalidFieldError(f"there is no field `{name}`; {hint}", param=name, code="unknown_field")
        if len(given) > 1 and name not in lists:
            raise InvalidFieldError(f"`{name}` is given {len(given)} times; give it once", param=name)
    try:
        return schema.model_validate({name: given if name in lists else given[0] for name, given in values.items()})
    except ValidationError as error:
        raise _refusal(error.errors()[0]) from None


def _refusal(fault: Any) -> InvalidFieldError:
    param = str(fault["loc"][0])
    shown = str(fault["input"])
    shown = f"{shown[:60]}..." if len(shown) > 60 else shown
    return InvalidFieldError(f"`{param}` = {shown!r}: {fault['msg']}", param=param)
