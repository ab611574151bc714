"""What lives as long as the service."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from app.lifecycle import LifeCycle
from app.metrics import Metrics
from app.settings import Settings
from app.transcription.admission import Admission
from app.transcription.pool import Pool
from app.transcription.service import Transcriber
from app.transcription.turns import Turns
from engine.interface import SpeechEngine


@dataclass(frozen=True, slots=True)
class Runtime:
    """All that lives as long as the service."""

    settings: Settings
    engine: SpeechEngine
    transcriber: Transcriber
    admission: Admission
    turns: Turns
    pool: Pool
    life: LifeCycle
    metrics: Metrics
    spool: Path
    started: float  # Unix seconds


class State(TypedDict):
    """What Starlette puts on `request.state`."""

    runtime: Runtime
