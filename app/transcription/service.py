"""The use case: an upload becomes a transcript, told at once or as it grows."""

import asyncio
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from app.transcription.admission import Admission
from app.transcription.exceptions import InferenceTimeoutError
from app.transcription.guards import PROMPT_ECHO, REPETITION, SPECIAL_TOKENS, WRAPPER
from app.transcription.hearing import OUTPUT_LIMIT, Heard, Listener
from app.transcription.joining import Joining, join
from app.transcription.preparation import Preparer, map_waveform
from app.transcription.transcript import Segment, StageSeconds, Transcript, TranscriptionOptions
from app.transcription.types import AudioWarning, PreparedAudio


class Audience(Protocol):
    """Learns of a transcript as it grows."""

    async def text(self, piece: str) -> None:
        """Take what is new of the text; all pieces join to the whole."""

    async def segment(self, segment: Segment) -> None:
        """Take a segment that is complete and not empty, after its text."""


MOST_TIMES: Final = 10  # named in one warning
MESSAGES: Final = {
    OUTPUT_LIMIT: "The text was cut at the token budget.",
    SPECIAL_TOKENS: "Markup of the model was removed from the text.",
    WRAPPER: "Words of the model around the transcript were removed.",
    REPETITION: "The model repeated itself; one copy was kept, and what a second attempt has after it.",
    PROMPT_ECHO: "The model gave back the prompt where it was not spoken; that was dropped.",
}


@dataclass(frozen=True, slots=True)
class _Turn:
    """A segment in the engine, and what it has told since somebody looked; None at its end."""

    channel: int | None
    task: asyncio.Task[Heard]
    told: asyncio.Queue[str | None]


class Transcriber:
    """Takes an upload through admission, preparation and the engine."""

    def __init__(
        self,
        *,
        listener: Listener,
        preparer: Preparer,
        admission: Admission,
        segments_per_request: int,
        inference_timeout_seconds: float,
    ) -> None:
        self._listener = listener
        self._preparer = preparer
        self._admission = admission
        self._segments_per_request = segments_per_request
        self._inference_timeout_seconds = inference_timeout_seconds

    async def transcribe(
        self, upload: Path, options: TranscriptionOptions, *, request_id: str, audience: Audience | None = None
    ) -> Transcript:
        """Transcribe one upload; the decoded waveform is written beside it.

        Cancellation aborts what the engine holds of it.

        Args:
            audience: told in order of time, and waited for. Without one the engine is asked for whole texts, which
                costs it less.

        Raises:
            OverloadedError, InvalidInputError, PreparationError, PreparationTimeoutError, InferenceTimeoutError,
            EngineError.
        """
        async with self._admission.permit() as queue_seconds:
            decoded = upload.with_suffix(".waveform")
            prepared = await self._preparer.prepare(upload, decoded, separate=options.separate_channels)
            begun = time.monotonic()
            heard = await self._hear_all(prepared, decoded, options, request_id, audience) if prepared.segments else []
            stages = StageSeconds(
                queue=queue_seconds,
                decode=prepared.decode_seconds,
                segment=prepared.segment_seconds,
                inference=time.monotonic() - begun,
            )
        segments = [result.segment for result in heard if result.segment.text]
        warnings = list(prepared.warnings)
        warnings.extend(_explain(heard))
        named = {result.language for result in heard if result.language}
        return Transcript(
            text=join(((segment.text, segment.channel) for segment in segments), options.text_language),
            task=options.task,
            language=options.text_language or (named.pop() if len(named) == 1 else None),
            duration=prepared.seconds,
            n_channels=prepared.n_channels if options.separate_channels else 0,
            segments=tuple(segments),
            warnings=tuple(warnings),
            input_tokens=sum(result.input_tokens for result in heard),
            output_tokens=sum(result.output_tokens for result in heard),
            stages=stages,
        )

    async def _hear_all(
        self,
        prepared: PreparedAudio,
        decoded: Path,
        options: TranscriptionOptions,
        request_id: str,
        audience: Audience | None,
    ) -> list[Heard]:
        try:
            async with asyncio.timeout(self._inference_timeout_seconds):
                return await self._hear_in_order(prepared, decoded, options, request_id, audience)
        except TimeoutError:
            msg = f"transcribing took longer than {self._inference_timeout_seconds:g} s; send a shorter file"
            raise InferenceTimeoutError(msg) from None

    async def _hear_in_order(
        self,
        prepared: PreparedAudio,
        decoded: Path,
        options: TranscriptionOptions,
        request_id: str,
        audience: Audience | None,
    ) -> list[Heard]:
        """Results in order of time, with at most `segments_per_request` in the engine at once."""
        waveform = map_waveform(decoded, prepared)
        waiting = deque(enumerate(prepared.segments))
        running: deque[_Turn] = deque()
        heard: list[Heard] = []
        joining = Joining(options.text_language)
        try:
            while waiting or running:
                while waiting and len(running) < self._segments_per_request:
                    index, span = waiting.popleft()
                    told: asyncio.Queue[str | None] = asyncio.Queue()
                    hearing = self._listener.hear(
                        waveform,
                        index,
                        span,
                        options,
                        request_id=f"{request_id}-{index}",
                        tell=told.put_nowait if audience else None,
                    )
                    task = asyncio.create_task(hearing)
                    task.add_done_callback(partial(_end, told))
                    running.append(_Turn(span.channel + 1 if options.separate_channels else None, task, told))
                if audience is not None:
                    await _pass_on(running[0], joining, audience)
                heard.append(await running[0].task)
                running.popleft()
                if audience is not None and heard[-1].segment.text:
                    await audience.segment(heard[-1].segment)
        finally:
            for turn in running:
                turn.task.cancel()
            await asyncio.gather(*(turn.task for turn in running), return_exceptions=True)
        return heard


def _explain(heard: list[Heard]) -> list[AudioWarning]:
    """One warning for each kind of finding, with the times of the segments concerned."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for result in heard:
        for code in result.findings:
            found[code].append(f"{result.segment.start:.1f} s")
    warnings = []
    for code, times in found.items():
        rest = f" and {len(times) - MOST_TIMES} more" if len(times) > MOST_TIMES else ""
        warnings.append(
            AudioWarning(code, f"{MESSAGES[code]} In segments from: {', '.join(times[:MOST_TIMES])}{rest}.")
        )
    return warnings


def _end(told: "asyncio.Queue[str | None]", _: object) -> None:
    told.put_nowait(None)


async def _pass_on(turn: _Turn, joining: Joining, audience: Audience) -> None:
    """Tell the pieces of one segment as they come, what joins it to those before included."""
    begun = False
    while (piece := await turn.told.get()) is not None:
        await audience.text(joining.go_on(piece) if begun else joining.begin(piece, turn.channel))
        begun = True
