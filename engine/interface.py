"""What the application needs of an inference engine, and nothing of how it is done.

Errors:
    EngineError
    |-- EngineStartError      start-up failed; the process cannot serve
    |-- EngineDeadError       the engine is gone; every request fails
    |-- EngineNotReadyError   start-up has not finished
    |-- RequestRefusedError   this request cannot be served as it is, such as a context that is too long
    `-- GenerationError       this request failed; others are not touched
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from prometheus_client.metrics_core import Metric

from engine.prompt import Task

SAMPLE_RATE = 16_000  # Hz, what the audio encoder's mel features are defined on

Waveform = NDArray[np.float32]
"""Mono samples at SAMPLE_RATE in [-1, 1], shape = (n_samples,)."""

ENCODER_MODES = ("compile", "graphs")
"""What an accelerated audio encoder may be asked for."""

FinishReason = Literal["stop", "length", "abort", "repetition"]

ReportProgress = Callable[[str, float], None]
"""Takes the name of the phase that begins and the share of start-up that is done, 0 to 1."""


class EngineError(Exception):
    """Base of everything an engine raises on purpose."""


class EngineStartError(EngineError):
    """Start-up failed; the message says what an operator can do."""


class EngineDeadError(EngineError):
    """The engine is gone and cannot come back within this process."""


class EngineNotReadyError(EngineError):
    """Start-up has not finished."""


class RequestRefusedError(EngineError):
    """The request cannot be served as it is; the message says why."""


class GenerationError(EngineError):
    """One request failed inside the engine; others are not touched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechRequest:
    """One stretch of speech to turn into text.

    Attributes:
        request_id: unique among the requests that run.
        waveform: at most `EngineDescription.max_audio_seconds` long.
        task: "translate" for English text of speech in any language.
        language: ISO 639-1 code of the speech, None to let the model tell.
        context: words or a sentence that are likely to occur.
        temperature: 0 decodes greedily.
        max_tokens: output budget, None for one in proportion to the audio.
        seed: makes sampling repeatable where temperature is above 0.
        end_repetition: end the answer with finish_reason "repetition" where a stretch of `REPEATED_TOKENS` has come
            REPEATED_COPIES times in a row, see `engine.prompt`; for those who do not read along.
    """

    request_id: str
    waveform: Waveform
    task: Task = "transcribe"
    language: str | None = None
    context: str = ""
    temperature: float = 0.0
    max_tokens: int | None = None
    seed: int | None = None
    end_repetition: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechOutput:
    """Text that has become known since the previous output of the same request.

    Attributes:
        text: the new text alone; the texts of all outputs join to the whole.
        finish_reason: None while more is to come.
        prompt_tokens: audio tokens included.
        output_tokens: all so far.
        queue_seconds: from arrival until the engine first scheduled the request.
        inference_seconds: from then until now.
    """

    text: str
    finish_reason: FinishReason | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    queue_seconds: float = 0.0
    inference_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDescription:
    """What serves: shown to operators, never to be parsed.

    Attributes:
        backend: the implementation, such as "vllm" or "scripted".
        model: local folder name or hub id.
        max_audio_seconds: longest waveform one request may carry.
        requests: that have not ended.
        encoder: state of the accelerated encoder's modes, by name.
        versions: of the libraries that do the work, by name.
    """

    backend: str
    model: str
    dtype: str
    device: str
    max_audio_seconds: float
    requests: int = 0
    encoder: Mapping[str, object] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderUsage:
    """What the audio encoder has done since it started.

    Attributes:
        graph_hits: clips that were encoded by replaying a CUDA graph.
        graph_misses: clips of batches that no graph holds, encoded eagerly; 0 where graphs are off.
        fallbacks: those of ENCODER_MODES that were asked for and that it runs without.
    """

    graph_hits: int = 0
    graph_misses: int = 0
    fallbacks: tuple[str, ...] = ()


class SpeechEngine(Protocol):
    """Turns waveforms into text. All methods belong to one event loop."""

    async def start(self, report: ReportProgress) -> None:
        """Load the model; returns once requests can be served.

        Raises:
            EngineStartError: with a message for the operator.
        """

    def generate(self, request: SpeechRequest, *, incremental: bool = False) -> AsyncGenerator[SpeechOutput, None]:
        """Yield the text as it grows, or once and whole where not `incremental`.

        Leaving the iteration early, by cancellation included, aborts the request in the engine.

        Raises:
            EngineNotReadyError, EngineDeadError, RequestRefusedError, GenerationError.
        """

    async def abort(self, request_id: str) -> None:
        """Stop a request; its iteration ends with finish_reason "abort". Unknown ids are ignored."""

    async def check_health(self) -> None:
        """Return if requests can be served.

        Raises:
            EngineNotReadyError, EngineDeadError.
        """

    async def describe(self) -> EngineDescription:
        """What serves, with counters as they stand."""

    async def encoder_usage(self) -> EncoderUsage | None:
        """Counters of the audio encoder, None where the engine does not answer."""

    async def metrics(self) -> list[Metric]:
        """What the libraries beneath count for Prometheus; empty where the engine does not answer."""

    async def shutdown(self) -> None:
        """Free everything, child processes included. Safe to call twice, or before start."""
