"""The use case: an upload becomes a transcript."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

from app.transcription.admission import Admission
from app.transcription.exceptions import InferenceTimeoutError
from app.transcription.preparation import Preparer, map_waveform
from app.transcription.transcript import Segment, StageSeconds, Transcript, TranscriptionOptions
from app.transcription.types import AudioWarning, PreparedAudio, SegmentSpan
from engine.interface import SAMPLE_RATE, SpeechEngine, SpeechRequest, Waveform

JOINER = " "  # between the texts of segments


@dataclass(frozen=True, slots=True)
class _Heard:
    """What the engine made of one segment."""

    segment: Segment
    complete: bool
    input_tokens: int
    output_tokens: int


class Transcriber:
    """Takes an upload through admission, preparation and the engine."""

    def __init__(
        self,
        *,
        engine: SpeechEngine,
        preparer: Preparer,
        admission: Admission,
        segments_per_request: int,
        inference_timeout_seconds: float,
    ) -> None:
        self._engine = engine
        self._preparer = preparer
        self._admission = admission
        self._segments_per_request = segments_per_request
        self._inference_timeout_seconds = inference_timeout_seconds

    async def transcribe(self, upload: Path, options: TranscriptionOptions, *, request_id: str) -> Transcript:
        """Transcribe one upload; the decoded waveform is written beside it.

        Raises:
            OverloadedError, InvalidInputError, PreparationError, PreparationTimeoutError, InferenceTimeoutError,
            EngineError.
        """
        async with self._admission.permit() as queue_seconds:
            decoded = upload.with_name("waveform")
            prepared = await self._preparer.prepare(upload, decoded)
            begun = time.monotonic()
            heard = await self._hear_all(prepared, decoded, options, request_id) if prepared.segments else []
            stages = StageSeconds(
                queue=queue_seconds,
                decode=prepared.decode_seconds,
                segment=prepared.segment_seconds,
                inference=time.monotonic() - begun,
            )
        segments = [result.segment for result in heard if result.segment.text]
        warnings = list(prepared.warnings)
        cut = [f"{result.segment.start:.1f} s" for result in heard if not result.complete]
        if cut:
            warnings.append(
                AudioWarning("output_limit", f"The text was cut at the token budget from {', '.join(cut)}.")
            )
        return Transcript(
            text=JOINER.join(segment.text for segment in segments),
            language=options.language,
            duration=prepared.seconds,
            segments=tuple(segments),
            warnings=tuple(warnings),
            input_tokens=sum(result.input_tokens for result in heard),
            output_tokens=sum(result.output_tokens for result in heard),
            stages=stages,
        )

    async def _hear_all(
        self, prepared: PreparedAudio, decoded: Path, options: TranscriptionOptions, request_id: str
    ) -> list[_Heard]:
        waveform = map_waveform(decoded, prepared)
        try:
            async with (
                asyncio.timeout(self._inference_timeout_seconds),
                aclosing(self._hear(waveform, prepared.segments, options, request_id)) as results,
            ):
                return [result async for result in results]
        except TimeoutError:
            msg = f"transcribing took longer than {self._inference_timeout_seconds:g} s; send a shorter file"
            raise InferenceTimeoutError(msg) from None

    async def _hear(
        self, waveform: Waveform, spans: tuple[SegmentSpan, ...], options: TranscriptionOptions, request_id: str
    ) -> AsyncGenerator[_Heard, None]:
        """Results in order of time, with at most `segments_per_request` in the engine at once."""
        running: deque[asyncio.Task[_Heard]] = deque()
        numbers = count()
        try:
            for span in spans:
                if len(running) == self._segments_per_request:
                    yield await running.popleft()
                index = next(numbers)
                running.append(asyncio.create_task(self._hear_one(waveform, index, span, options, request_id)))
            while running:
                yield await running.popleft()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _hear_one(
        self, waveform: Waveform, index: int, span: SegmentSpan, options: TranscriptionOptions, request_id: str
    ) -> _Heard:
        request = SpeechRequest(
            request_id=f"{request_id}-{index}",
            waveform=np.array(waveform[span.start : span.end]),
            language=options.language,
            context=options.prompt,
            temperature=options.temperature,
        )
        texts: list[str] = []
        async with aclosing(self._engine.generate(request)) as outputs:
            async for output in outputs:
                texts.append(output.text)
        return _Heard(
            segment=Segment(
                index=index,
                start=span.start / SAMPLE_RATE,
                end=span.end / SAMPLE_RATE,
                text="".join(texts).strip(),
            ),
            complete=output.finish_reason == "stop",
            input_tokens=output.prompt_tokens,
            output_tokens=output.output_tokens,
        )
