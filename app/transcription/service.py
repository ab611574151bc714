"""The use case: an upload becomes a transcript, told at once or as it grows."""

import asyncio
import itertools
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from app.transcription.admission import Share, Ticket
from app.transcription.exceptions import InferenceTimeoutError, Limit
from app.transcription.guards import PROMPT_ECHO, REPETITION, SPECIAL_TOKENS, WRAPPER
from app.transcription.hearing import OUTPUT_LIMIT, Heard, Listener, Tell
from app.transcription.mixing import Channels
from app.transcription.observing import Observer, traced
from app.transcription.preparation import Preparer, map_waveform
from app.transcription.telling import Audience, Telling
from app.transcription.transcript import StageSeconds, Transcript, TranscriptionOptions
from app.transcription.turns import Turns
from app.transcription.types import AudioWarning, PreparedAudio, SegmentSpan
from engine.interface import SAMPLE_RATE

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

    task: asyncio.Task[Heard]
    told: asyncio.Queue[str | None]
    overlaps_next: bool


class Transcriber:
    """Takes an upload through preparation and the engine."""

    def __init__(
        self,
        *,
        listener: Listener,
        preparer: Preparer,
        turns: Turns,
        observer: Observer,
        segments_per_request: int,
        inference_timeout_seconds: float,
    ) -> None:
        self._listener = listener
        self.preparer = preparer
        self._turns = turns
        self._observer = observer
        self._segments_per_request = segments_per_request
        self._numbers = itertools.count(1)
        self._inference_timeout_seconds = inference_timeout_seconds

    async def transcribe(
        self,
        upload: Path,
        options: TranscriptionOptions,
        *,
        request_id: str,
        ticket: Ticket,
        audience: Audience | None = None,
    ) -> Transcript:
        """Transcribe one upload; the decoded waveform is written beside it.

        Cancellation aborts what the engine holds of it.

        Args:
            request_id: for logs and traces; need not be unique.
            ticket: of the request that the upload belongs to.
            audience: told in order of time, and waited for. Without one the engine is asked for whole texts, which
                costs it less.

        Raises:
            InvalidInputError, PreparationError, PreparationTimeoutError, InferenceTimeoutError,
            EngineError.
        """
        telling = Telling(options.text_language, audience)
        observer = self._observer
        begun = time.monotonic()
        with ticket.share(upload) as share:
            decoded = upload.with_suffix(".waveform")
            with traced("decode") as step:
                prepared = await self.preparer.prepare(
                    upload, decoded, separate=options.separate_channels, learn=share.expect
                )
                step.set_attributes(
                    {
                        "audio_seconds": prepared.seconds,
                        "decode_seconds": prepared.decode_seconds,
                        "segment_seconds": prepared.segment_seconds,
                    }
                )
            decode_ended = time.monotonic()
            observer.decoded(prepared.seconds)
            observer.stage("decode", prepared.decode_seconds)
            observer.stage("segment", prepared.segment_seconds)
            _correct(share, prepared)
            # Callers choose ids, and two may choose the same; no id of theirs has a tilde in it.
            hearing = _Hearing(share, options, f"{request_id}~{next(self._numbers)}", telling)
            if prepared.segments:
                # Mapped anew for each segment: pages that were read count as memory for as long as they are mapped.
                waveform = partial(map_waveform, decoded, prepared)
                with traced("inference", segments=len(prepared.segments)):
                    await self._hear_all(waveform, prepared.segments, hearing)
            ended = time.monotonic()
        heard = hearing.heard
        stages = StageSeconds(
            queue=decode_ended - begun - prepared.decode_seconds - prepared.segment_seconds + hearing.queue_seconds,
            decode=prepared.decode_seconds,
            segment=prepared.segment_seconds,
            inference=ended - decode_ended - hearing.queue_seconds,
        )
        observer.stage("queue", stages.queue)
        observer.stage("inference", stages.inference)
        named = {result.language for result in heard if result.language}
        transcript = Transcript(
            text=telling.text,
            task=options.task,
            language=options.text_language or (named.pop() if len(named) == 1 else None),
            duration=prepared.seconds,
            n_channels=prepared.n_channels if options.separate_channels else 0,
            segments=tuple(telling.segments),
            warnings=(*prepared.warnings, *_explain(heard)),
            input_tokens=sum(result.input_tokens for result in heard),
            output_tokens=sum(result.output_tokens for result in heard),
            stages=stages,
        )
        observer.transcribed(transcript)
        return transcript

    async def _hear_all(
        self, waveform: Callable[[], Channels], spans: tuple[SegmentSpan, ...], hearing: "_Hearing"
    ) -> None:
        try:
            async with asyncio.timeout(self._inference_timeout_seconds):
                await self._hear_in_order(waveform, spans, hearing)
        except TimeoutError:
            setting = "OMNIHEAR_LIMITS_INFERENCE_TIMEOUT_SECONDS"
            limit = Limit("seconds of inference", self._inference_timeout_seconds, setting)
            msg = f"transcribing took longer than {limit.value:g} s; send a shorter file"
            raise InferenceTimeoutError(msg, limit=limit) from None

    async def _hear_in_order(
        self, waveform: Callable[[], Channels], spans: tuple[SegmentSpan, ...], hearing: "_Hearing"
    ) -> None:
        """Results in order of time, with at most `segments_per_request` at once that have a turn or wait for one."""
        waiting = deque(enumerate(spans))
        running: deque[_Turn] = deque()
        telling, options = hearing.telling, hearing.options
        try:
            while waiting or running:
                while waiting and len(running) < self._segments_per_request:
                    index, span = waiting.popleft()
                    told: asyncio.Queue[str | None] = asyncio.Queue()
                    tell = told.put_nowait if telling.has_audience else None
                    task = asyncio.create_task(self._hear(waveform, index, span, hearing, tell))
                    task.add_done_callback(partial(_end, told))
                    running.append(_Turn(task, told, bool(waiting) and span.overlaps(waiting[0][1])))
                turn = running[0]
                if telling.has_audience:
                    channel = spans[len(hearing.heard)].channel + 1 if options.separate_channels else None
                    await telling.follow(turn.told.get, channel, overlaps_next=turn.overlaps_next)
                hearing.heard.append(await turn.task)
                running.popleft()
                await telling.complete(hearing.heard[-1].segment, overlaps_next=turn.overlaps_next)
        finally:
            for turn in running:
                turn.task.cancel()
            await asyncio.gather(*(turn.task for turn in running), return_exceptions=True)

    async def _hear(
        self,
        waveform: Callable[[], Channels],
        index: int,
        span: SegmentSpan,
        hearing: "_Hearing",
        tell: Tell | None,
    ) -> Heard:
        arrived = time.monotonic()
        async with self._turns.turn(hearing.share):
            if index == 0:
                hearing.queue_seconds = time.monotonic() - arrived
            with traced("segment", index=index, start=span.start / SAMPLE_RATE, end=span.end / SAMPLE_RATE):
                heard = await self._listener.hear(
                    waveform(), index, span, hearing.options, request_id=f"{hearing.request_id}-{index}", tell=tell
                )
        hearing.share.done((span.end - span.start) / SAMPLE_RATE)
        return heard


@dataclass(slots=True)
class _Hearing:
    """One file on its way through the engine.

    Attributes:
        request_id: unique in this process.
        heard: results in order of time.
        queue_seconds: that its first segment waited for a turn.
    """

    share: Share
    options: TranscriptionOptions
    request_id: str
    telling: Telling
    heard: list[Heard] = field(default_factory=list)
    queue_seconds: float = 0.0


def _correct(share: Share, prepared: PreparedAudio) -> None:
    """The length is known now, and that nothing is left to do about what is not speech."""
    speech = sum(span.end - span.start for span in prepared.segments) / SAMPLE_RATE
    share.expect(max(prepared.seconds, speech))  # of several channels, more may be spoken than time goes by
    share.done(share.seconds - speech)


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
