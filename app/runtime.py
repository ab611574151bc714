"""What lives as long as the service, and where its start-up stands."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from app.metrics import Metrics
from app.settings import Settings
from app.transcription.service import Transcriber
from engine.interface import SpeechEngine

LOADING_RETRY_SECONDS = 5.0


@dataclass(slots=True)
class Readiness:
    """Changed by the lifespan alone.

    Attributes:
        phase: what goes on, in words.
        progress: share of start-up that is done, 0 to 1.
        ready: whether requests are served.
    """

    phase: str = "starting"
    progress: float = 0.0
    ready: bool = False


@dataclass(frozen=True, slots=True)
class Runtime:
    """All that lives as long as the service."""

    settings: Settings
    engine: SpeechEngine
    transcriber: Transcriber
    readiness: Readiness
    metrics: Metrics
    spool: Path
    started: float  # Unix seconds


class State(TypedDict):
    """What Starlette puts on `request.state`."""

    runtime: Runtime
