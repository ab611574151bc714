"""What can go wrong on the way from bytes to a transcript.

    TranscriptionError
    |-- InvalidInputError             the caller's fault
    |   |-- MalformedRequestError       body or multipart form that cannot be read
    |   |-- ClientGoneError             nobody waits for the answer any more
    |   |-- SlowUploadError             the body comes too slowly, or not at all
    |   |-- InvalidFieldError           a field's value, or the field itself
    |   |-- UnknownModelError
    |   |-- TooLargeError               bytes, seconds, channels, rate: names the limit
    |   |-- NotAudioError               says what the bytes look like
    |   |-- CorruptAudioError           audio by its container, but nothing could be decoded
    |   |-- NoAudioStreamError          a container without sound
    |   `-- EmptyAudioError             sound without samples
    `-- UnavailableError              ours
        |-- OverloadedError             the queue is full
        |   |-- ClientBusyError           one client has too many requests at once
        |   `-- RateLimitedError          one client asks too often
        |-- NotReadyError               loading, or nothing comes of what waits
        |   `-- ShuttingDownError         draining, or cut off at the end of the grace time
        |-- StorageFullError            no room for uploads
        |-- PreparationError            a decode worker failed
        |-- PreparationTimeoutError     decoding took too long
        `-- InferenceTimeoutError       the engine took too long

Exceptions carry data; `app/errors.py` alone knows what HTTP makes of them. They cross process borders, so each
is built from plain values by keyword and can be pickled.
"""

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that was passed, in the words an operator can act on.

    Attributes:
        name: what is limited, with its unit, such as "audio seconds".
        value: the limit itself.
        setting: the environment variable that changes it.
    """

    name: str
    value: float
    setting: str


class TranscriptionError(Exception):
    """Base of all domain errors.

    Attributes:
        code: stable, for programs.
        message: for people; says what to do about it.
        param: the field at fault, if one is.
        limit: the limit that was passed, if one was.
    """

    code: ClassVar[str] = "transcription_error"

    def __init__(self, message: str, *, param: str | None = None, limit: Limit | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.limit = limit

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.__dict__.copy())


def _rebuild(cls: type[TranscriptionError], message: str, state: dict[str, Any]) -> TranscriptionError:
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class InvalidInputError(TranscriptionError):
    """The caller's fault."""

    code = "invalid_input"


class MalformedRequestError(InvalidInputError):
    """The body or its multipart form cannot be read."""

    code = "malformed_request"


class ClientGoneError(InvalidInputError):
    """The client has closed the connection."""

    code = "client_gone"


class SlowUploadError(InvalidInputError):
    """The body comes too slowly, or has stopped coming."""

    code = "slow_upload"


class InvalidFieldError(InvalidInputError):
    """A field has a value that cannot be served, is missing, or does not exist."""

    code = "invalid_field"

    def __init__(self, message: str, *, param: str, code: str | None = None, limit: Limit | None = None) -> None:
        super().__init__(message, param=param, limit=limit)
        if code is not None:
            self.code = code  # type: ignore[misc]  # a more exact code than the class's


class UnknownModelError(InvalidInputError):
    """The request names a model that is not served here."""

    code = "model_not_found"


class TooLargeError(InvalidInputError):
    """A limit was passed while reading or decoding."""

    code = "too_large"

    def __init__(self, message: str, *, limit: Limit, param: str | None = "audio") -> None:
        super().__init__(message, param=param, limit=limit)


class NotAudioError(InvalidInputError):
    """The bytes are no audio container that is served."""

    code = "not_audio"


class CorruptAudioError(InvalidInputError):
    """An audio container, but nothing of it can be decoded."""

    code = "unsupported_or_corrupt"


class NoAudioStreamError(InvalidInputError):
    """A container without sound, such as a silent film."""

    code = "no_audio_stream"


class EmptyAudioError(InvalidInputError):
    """A sound stream without samples."""

    code = "empty_audio"


class UnavailableError(TranscriptionError):
    """Ours: the request was fine."""

    code = "unavailable"


class OverloadedError(UnavailableError):
    """The queue is full.

    Attributes:
        retry_after: seconds after which asking again makes sense.
    """

    code = "overloaded"

    def __init__(self, message: str, *, retry_after: float, limit: Limit | None = None) -> None:
        super().__init__(message, limit=limit)
        self.retry_after = retry_after


class ClientBusyError(OverloadedError):
    """One client has as many requests at once as it may."""

    code = "too_many_requests_at_once"


class RateLimitedError(OverloadedError):
    """One client asks more often than it may."""

    code = "rate_limited"


class NotReadyError(UnavailableError):
    """The service cannot serve at this moment.

    Attributes:
        retry_after: seconds after which asking again makes sense.
    """

    code = "not_ready"

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ShuttingDownError(NotReadyError):
    """The service is about to end."""

    code = "shutting_down"


class StorageFullError(UnavailableError):
    """There is no room left where uploads and decoded audio are kept.

    Attributes:
        retry_after: seconds after which asking again makes sense: requests that end make room.
    """

    code = "storage_full"
    retry_after = 10.0

    def __init__(self, message: str = "there is no room left for uploads; ask again later") -> None:
        super().__init__(message)


class PreparationError(UnavailableError):
    """A decode worker failed in a way that does not tell on the input."""

    code = "decode_failed"


class PreparationTimeoutError(UnavailableError):
    """Decoding took longer than allowed."""

    code = "decode_timeout"


class InferenceTimeoutError(UnavailableError):
    """The engine took longer than allowed."""

    code = "inference_timeout"
