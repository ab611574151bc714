"""What a load looks like: who sends what, and when.

A scenario is written as its name in reports: `8` is a closed loop of 8 callers, `20/s` an open loop of 20 arrivals a
second; `:mixed`, a container and `:stream` may follow, as in `32:mixed:opus` or `20/s:stream`.
"""

from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Self

import numpy as np

from benchmarks.containers import CONTAINERS, Container

SHORTEST, LONGEST = 1.0, 30.0  # seconds of mixed clips
_SEED = 20
_FEWEST_ROUNDS = 4  # that a caller makes, or the last answers would weigh more than the steady state


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One load.

    Attributes:
        callers: of a closed loop, each of whom sends its next clip when it has its answer; None for an open loop.
        rate: arrivals a second of an open loop, as a Poisson process, whatever the server does; None for a closed one.
        mixed: clips of SHORTEST to LONGEST seconds, equally likely, in place of equally long ones.
        stream: ask for the text as it grows.
    """

    callers: int | None = None
    rate: float | None = None
    mixed: bool = False
    container: Container = "wav"
    stream: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` writes.

        Raises:
            ValueError: it is no scenario; says what one looks like.
        """
        who, *what = text.strip().split(":")
        try:
            closed = None if who.endswith("/s") else int(who)
            rate = float(who.removesuffix("/s")) if closed is None else None
        except ValueError:
            closed = rate = None
        containers = [name for name in CONTAINERS if name in what]
        unknown = set(what) - {"mixed", "stream", *CONTAINERS}
        if not (closed or rate or 0) > 0 or unknown or len(containers) > 1 or len(what) > len(set(what)):
            msg = f"{text!r} is no load: write 8 or 20/s, then any of :mixed, :stream, :{', :'.join(CONTAINERS)}"
            raise ValueError(msg)
        return cls(
            callers=closed,
            rate=rate,
            mixed="mixed" in what,
            container=containers[0] if containers else "wav",
            stream="stream" in what,
        )

    def __str__(self) -> str:
        """As it is written on the command line."""
        who = f"{self.rate:g}/s" if self.callers is None else str(self.callers)
        kinds = {"mixed": self.mixed, self.container: self.container != "wav", "stream": self.stream}
        return ":".join([who, *(kind for kind, given in kinds.items() if given)])

    @property
    def plain(self) -> bool:
        """Whether it is a closed loop of equally long wav files: what is compared over concurrency."""
        return self == Scenario(callers=self.callers)

    def arrivals(self, seconds: float) -> list[float]:
        """Seconds from the start at which an open loop sends, the same in every run; empty for a closed loop."""
        if self.rate is None:
            return []
        gaps = np.random.default_rng(_SEED).exponential(1 / self.rate, round(2 * self.rate * seconds) + 20)
        return list(takewhile(lambda due: due < seconds, accumulate(gaps.tolist()))) or [0.0]

    def clips(self, fewest: int, seconds: float) -> int:
        """How many to have ready: `fewest` at least for a closed loop, what arrives in `seconds` for an open one."""
        if self.callers is None:
            return len(self.arrivals(seconds))
        return max(fewest, _FEWEST_ROUNDS * self.callers)
