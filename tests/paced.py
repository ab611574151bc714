"""A scripted engine that takes time as a real one does: the more it does at once, the longer each takes."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

from engine.interface import SAMPLE_RATE, EngineDescription, SpeechOutput, SpeechRequest
from engine.scripted import ScriptedEngine

TICK_SECONDS = 0.005


@dataclass
class PacedEngine(ScriptedEngine):
    """Requests share the engine's rate evenly.

    Attributes:
        solo_rate: audio seconds a second of a request that is alone.
        gain: how much more all do together, once that many run.
    """

    solo_rate: float = 30.0
    gain: float = 1.0
    working: int = 0

    async def generate(
        self, request: SpeechRequest, *, incremental: bool = False
    ) -> AsyncGenerator[SpeechOutput, None]:
        """Wait as long as the audio takes, then play the act."""
        left = len(request.waveform) / SAMPLE_RATE
        self.working += 1
        try:
            clock = asyncio.get_running_loop().time
            then = clock()
            while left > 0:
                await asyncio.sleep(TICK_SECONDS)
                then, passed = clock(), clock() - then
                left -= passed * self.solo_rate * min(1.0, self.gain / self.working)
        finally:
            self.working -= 1
        async for output in super().generate(request, incremental=incremental):
            yield output

    async def describe(self) -> EngineDescription:
        """Counts those that take their time as well."""
        return replace(await super().describe(), requests=len(self.running) + self.working)
