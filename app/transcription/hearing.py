"""One segment: from its samples to its text."""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np

from app.transcription.transcript import Segment, TranscriptionOptions
from app.transcription.types import SegmentSpan
from engine.interface import SAMPLE_RATE, SpeechEngine, SpeechRequest, Waveform

Tell = Callable[[str], None]
"""Takes what is new of a segment's text; all it takes joins to the whole."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What the engine made of one segment.

    Attributes:
        complete: false where the text was cut at the token budget.
        input_tokens: of the prompt, audio included.
    """

    segment: Segment
    complete: bool
    input_tokens: int
    output_tokens: int


class Listener:
    """Asks the engine for the text of single segments."""

    def __init__(self, engine: SpeechEngine) -> None:
        self._engine = engine

    async def hear(
        self,
        waveform: Waveform,
        index: int,
        span: SegmentSpan,
        options: TranscriptionOptions,
        *,
        request_id: str,
        tell: Tell | None,
    ) -> Heard:
        """Turn one stretch of `waveform` into text.

        Args:
            index: of the segment in its file.
            request_id: unique among the engine's requests.
            tell: learns of the text as it grows; the engine is asked for the whole at once when None.

        Raises:
            EngineError
        """
        request = SpeechRequest(
            request_id=request_id,
            waveform=np.array(waveform[span.start : span.end]),
            language=options.language,
            context=options.prompt,
            temperature=options.temperature,
        )
        raw = text = ""
        async with aclosing(self._engine.generate(request, incremental=tell is not None)) as outputs:
            async for output in outputs:
                raw += output.text
                settled = raw.strip()
                if tell is not None and len(settled) > len(text):
                    tell(settled[len(text) :])
                text = settled
        return Heard(
            segment=Segment(index=index, start=span.start / SAMPLE_RATE, end=span.end / SAMPLE_RATE, text=text),
            complete=output.finish_reason == "stop",
            input_tokens=output.prompt_tokens,
            output_tokens=output.output_tokens,
        )
