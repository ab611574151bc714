"""One segment: from its samples to its text, guards included."""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from app.transcription.guards import PROMPT_ECHO, GuardPolicy, SegmentGuard, is_echo, may_be_echo
from app.transcription.mixing import Channels
from app.transcription.observing import traced
from app.transcription.transcript import Segment, TranscriptionOptions
from app.transcription.types import SegmentSpan
from app.transcription.units import append, continuation, similarity
from engine.interface import SAMPLE_RATE, SpeechEngine, SpeechOutput, SpeechRequest

Tell = Callable[[str], None]
"""Takes what is new of a segment's text; all it takes joins to the whole."""

# How an answer that repeats itself is tried again: away from the greedy path, but the same way every time.
RETRY_TEMPERATURE: Final = 0.3
RETRY_SEED: Final = 1
OUTPUT_LIMIT: Final = "output_limit"
GENUINE: Final = 0.5  # share of the letters that come again without the prompt, where they were spoken


@dataclass(frozen=True, slots=True)
class Heard:
    """What the engine made of one segment.

    Attributes:
        findings: codes of what had to be done about the text, such as "repetition".
        language: code of the language, where the model named it.
        input_tokens: of all prompts, audio included.
        output_tokens: of all attempts.
    """

    segment: Segment
    findings: tuple[str, ...]
    language: str | None
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class _Answer:
    """What came of one request."""

    guard: SegmentGuard
    last: SpeechOutput

    @property
    def text(self) -> str:
        return self.guard.text

    @property
    def broken_off(self) -> bool:
        """Whether the engine ended it as repetition."""
        return self.last.finish_reason == "repetition"


class Listener:
    """Asks the engine for the text of single segments."""

    def __init__(self, engine: SpeechEngine, policy: GuardPolicy) -> None:
        self._engine = engine
        self._policy = policy

    async def hear(
        self,
        waveform: Channels,
        index: int,
        span: SegmentSpan,
        options: TranscriptionOptions,
        *,
        request_id: str,
        tell: Tell | None,
    ) -> Heard:
        """Turn one stretch of `waveform` into text, with two requests as a rule and three at most.

        Args:
            waveform: shape = (n_channels, n_samples).
            index: of the segment in its file.
            request_id: unique among the engine's requests.
            tell: learns of the text as it grows; the engine is asked for the whole at once when None.

        Raises:
            EngineError
        """
        request = SpeechRequest(
            request_id=request_id,
            waveform=np.array(waveform[span.channel, span.start : span.end]),
            task=options.task,
            language=options.language,
            context=options.context,
            temperature=options.temperature,
        )
        told = _Told(tell)
        first = await self._ask(request, told)
        answers = [first]
        if first.broken_off and not first.guard.looped:
            # The engine counts tokens, and a word that people may well say five times can be many of them.
            first = await self._ask(replace(request, request_id=f"{request_id}-along"), told, along=True)
            answers.append(first)
        text, findings = first.text, list(first.guard.findings)
        if first.guard.looped:
            retry = replace(request, request_id=f"{request_id}-again", temperature=RETRY_TEMPERATURE, seed=RETRY_SEED)
            again = await self._ask(retry, None)
            answers.append(again)
            if not again.guard.looped and not again.broken_off:
                text = append(text, continuation(text, again.text), options.text_language)
        elif self._policy.prompt_echo and is_echo(text, request.context):
            again = await self._ask(replace(request, request_id=f"{request_id}-again", context=""), None)
            answers.append(again)
            if similarity(text, again.text) < GENUINE:
                text = again.text
                findings += [PROMPT_ECHO, *(code for code in again.guard.findings if code not in findings)]
        told(text)
        if answers[-1].last.finish_reason == "length" and not first.guard.looped:
            findings.append(OUTPUT_LIMIT)
        return Heard(
            segment=Segment(
                index=index,
                start=span.start / SAMPLE_RATE,
                end=span.end / SAMPLE_RATE,
                text=text,
                channel=span.channel + 1 if options.separate_channels else None,
            ),
            findings=tuple(findings),
            language=first.guard.language,
            input_tokens=sum(answer.last.prompt_tokens for answer in answers),
            output_tokens=sum(answer.last.output_tokens for answer in answers),
        )

    async def _ask(self, request: SpeechRequest, told: "_Told | None", *, along: bool = False) -> _Answer:
        """Read one answer; it ends where it repeats itself.

        Args:
            along: read it as it grows although nobody listens, and leave it at a loop, which aborts it in the engine.
                Otherwise the engine itself looks for loops, by its tokens, and answers at the end.
        """
        guard = SegmentGuard(self._policy)
        along = along or (told is not None and told.listens)
        request = replace(request, end_repetition=self._policy.repetition_loops and not along)
        with traced("engine", request_id=request.request_id) as span:
            async with aclosing(self._engine.generate(request, incremental=along)) as outputs:
                async for output in outputs:
                    guard.feed(output.text)
                    if guard.looped:
                        break
                    if told is not None and not self._may_be_dropped(guard.text, request):
                        told(guard.text)
            span.set_attributes(
                {
                    "prompt_tokens": output.prompt_tokens,
                    "output_tokens": output.output_tokens,
                    "queue_seconds": output.queue_seconds,
                    "inference_seconds": output.inference_seconds,
                }
            )
        guard.finish()
        return _Answer(guard, output)

    def _may_be_dropped(self, text: str, request: SpeechRequest) -> bool:
        return self._policy.prompt_echo and request.context != "" and may_be_echo(text, request.context)


class _Told:
    """What of a segment's text has been passed on."""

    def __init__(self, tell: Tell | None) -> None:
        self._tell = tell
        self._length = 0

    @property
    def listens(self) -> bool:
        """Whether anybody does."""
        return self._tell is not None

    def __call__(self, text: str) -> None:
        """Pass on what is new in `text`, which begins with all texts before."""
        if self._tell is not None and len(text) > self._length:
            self._tell(text[self._length :])
            self._length = len(text)
