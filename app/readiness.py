"""Where start-up stands."""

from dataclasses import dataclass

LOADING_RETRY_SECONDS = 5.0


@dataclass(slots=True)
class Readiness:
    """Changed by the lifespan alone.

    Attributes:
        phase: what goes on, in words.
        progress: share of start-up that is done, 0 to 1.
        ready: whether requests are served.
        failure: why start-up failed, None where it did not.
    """

    phase: str = "starting"
    progress: float = 0.0
    ready: bool = False
    failure: str | None = None
