"""An engine without a model: same contract, every outcome on demand.

A script maps the number of a request (0, 1, ...) to what happens to it. Without one, every request answers with a
sentence that depends on its audio alone, so that the service runs for work on HTTP.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

from prometheus_client.metrics_core import Metric

from engine.interface import (
    SAMPLE_RATE,
    EncoderUsage,
    EngineDeadError,
    EngineDescription,
    EngineNotReadyError,
    EngineStartError,
    FinishReason,
    GenerationError,
    ReportProgress,
    SpeechOutput,
    SpeechRequest,
)
from engine.prompt import REPEATED_COPIES, REPEATED_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What happens to one request, in this order.

    Attributes:
        gate: waited for before the first word; an event that is never set stalls.
        words: answered one at a time.
        space: between the words.
        repeat: how often the words are said over.
        fail: raise GenerationError after the words.
        die: the whole engine dies after the words.
        finish_reason: "length" for an answer that was cut.
    """

    words: tuple[str, ...] = ()
    space: str = " "
    repeat: int = 1
    gate: asyncio.Event | None = None
    fail: bool = False
    die: bool = False
    finish_reason: FinishReason = "stop"


def speak_length(request: SpeechRequest) -> Act:
    """The default: tells how long the audio is, so that texts differ and can be predicted."""
    return Act(words=(f"audio of {len(request.waveform) / SAMPLE_RATE:.2f} seconds.",))


def _end_of_loop(words: Sequence[str]) -> int | None:
    """After how many words `SpeechRequest.end_repetition` ends an answer of which each word is a token."""
    shortest, longest = REPEATED_TOKENS
    agreeing = [0] * (longest + 1)  # by period: how many last words equal the one that long before
    for count, word in enumerate(words, 1):
        for period in range(1, min(longest, count - 1) + 1):
            agreeing[period] = agreeing[period] + 1 if words[count - 1 - period] == word else 0
            if period >= shortest and agreeing[period] >= (REPEATED_COPIES - 1) * period:
                return count
    return None


@dataclass
class ScriptedEngine:
    """Deterministic; counts what was asked of it.

    Attributes:
        script: called for each request in order of arrival.
        start_gate: start-up waits for it.
        start_error: start-up fails with this message.
        remembers: keep what arrived; a service that runs for hours must not.
        requests: all that arrived, where it remembers.
        running: ids that have not ended.
        aborted: ids that were left or aborted before their end.
    """

    script: Callable[[SpeechRequest], Act] = speak_length
    start_gate: asyncio.Event | None = None
    start_error: str | None = None
    remembers: bool = True
    requests: list[SpeechRequest] = field(default_factory=list)
    running: dict[str, asyncio.Event] = field(default_factory=dict)
    aborted: list[str] = field(default_factory=list)
    peak_running: int = 0
    usage: EncoderUsage | None = field(default_factory=EncoderUsage)
    _ready: bool = False
    _dead: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self, report: ReportProgress) -> None:
        """Wait for the gate, or fail as scripted."""
        report("loading the script", 0.5)
        if self.start_gate is not None:
            await self.start_gate.wait()
        if self.start_error is not None:
            raise EngineStartError(self.start_error)
        self._ready = True

    async def generate(
        self, request: SpeechRequest, *, incremental: bool = False
    ) -> AsyncGenerator[SpeechOutput, None]:
        """Play the act that the script gives for this request."""
        await self.check_health()
        if self.remembers:
            self.requests.append(request)
        act = self.script(request)
        stop = self.running[request.request_id] = asyncio.Event()
        self.peak_running = max(self.peak_running, len(self.running))
        ended = False
        try:
            if act.gate is not None:
                await self._first_of(act.gate, stop)
            words = list(act.words) * act.repeat
            looped = _end_of_loop(words) if request.end_repetition else None
            words = words[:looped]
            if incremental:
                for count, word in enumerate(words, 1):
                    await asyncio.sleep(0)
                    if stop.is_set() or self._dead.is_set():
                        break
                    yield SpeechOutput(text=word if count == 1 else f"{act.space}{word}", output_tokens=count)
            await self._check_alive()
            if stop.is_set():
                yield SpeechOutput(text="", finish_reason="abort")
                return
            if act.die:
                self.die()
                await self._check_alive()
            if act.fail:
                ended = True
                msg = "scripted failure"
                raise GenerationError(msg)
            ended = True
            yield SpeechOutput(
                text="" if incremental else act.space.join(words),
                finish_reason=act.finish_reason if looped is None else "repetition",
                prompt_tokens=1,
                output_tokens=len(words),
            )
        finally:
            del self.running[request.request_id]
            if not ended:
                self.aborted.append(request.request_id)

    async def _first_of(self, *events: asyncio.Event) -> None:
        waits = [asyncio.create_task(event.wait()) for event in (*events, self._dead)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*waits, return_exceptions=True)

    async def _check_alive(self) -> None:
        if self._dead.is_set():
            msg = "the scripted engine died"
            raise EngineDeadError(msg)

    def die(self) -> None:
        """Fail every request from now on, those that run included."""
        self._dead.set()

    async def abort(self, request_id: str) -> None:
        """End a request early."""
        if (stop := self.running.get(request_id)) is not None:
            stop.set()

    async def check_health(self) -> None:
        """Raise unless started and alive."""
        await self._check_alive()
        if not self._ready:
            msg = "the scripted engine has not started"
            raise EngineNotReadyError(msg)

    async def describe(self) -> EngineDescription:
        """Says that no model serves."""
        return EngineDescription(
            backend="scripted",
            model="scripted",
            dtype="none",
            device="none",
            max_audio_seconds=30.0,
            requests=len(self.running),
        )

    async def encoder_usage(self) -> EncoderUsage | None:
        """There is no encoder; `usage` stands for what one would count."""
        return self.usage

    async def metrics(self) -> list[Metric]:
        """No library counts anything."""
        return []

    async def shutdown(self) -> None:
        """Nothing to free."""
        self._ready = False
