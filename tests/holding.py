"""Requests that stay in the engine for as long as a test wants them to."""

import asyncio

from engine.interface import SpeechRequest
from engine.scripted import Act


class Holding:
    """A script that holds every request but the warm-up.

    Attributes:
        arrived: set by each request as it comes.
        gate: lets them go, those that come later too.
    """

    def __init__(self, *words: str) -> None:
        """Set up; `words` are the answer."""
        self.arrived, self.gate = asyncio.Event(), asyncio.Event()
        self._words = words

    def __call__(self, request: SpeechRequest) -> Act:
        if request.request_id == "warm-up":
            return Act()
        self.arrived.set()
        return Act(words=self._words, gate=self.gate)
