"""Who is told what becomes of uploads: an observer that counts, and traces."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal, Protocol

from opentelemetry import trace
from opentelemetry.trace import Span, Status, StatusCode

from app.transcription.transcript import Transcript

Stage = Literal["queue", "decode", "segment", "inference"]
"""As `StageSeconds` names them."""

_TRACER: Final = trace.get_tracer("omnihear")


class Observer(Protocol):
    """Told on the event loop, so nothing here may wait or fail."""

    def stage(self, stage: Stage, seconds: float) -> None:
        """An upload has passed a stage, whatever becomes of it later."""

    def decoded(self, seconds: float) -> None:
        """An upload was decoded to so many seconds of audio."""

    def transcribed(self, transcript: Transcript) -> None:
        """A transcript is complete."""


@contextmanager
def traced(name: str, **attributes: str | int | float) -> Iterator[Span]:
    """A part of the request's trace (OpenTelemetry); records nothing unless the process sends traces somewhere.

    A failure is told by its class: its message may quote what the caller sent.
    """
    with _TRACER.start_as_current_span(
        name, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield current
        except BaseException as error:
            current.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise
