"""What was measured, as data."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.answers import Load
from benchmarks.machine import Machine
from benchmarks.processes import Memory
from benchmarks.words import Heard


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What it took to come up.

    Attributes:
        ready_seconds: from the start of the process until it says ready.
        cpu_seconds: of all its processes until then.
        memory: that they hold then.
    """

    ready_seconds: float
    cpu_seconds: float
    memory: Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOnServer:
    """One load, and what the server took for it; None where its processes are not ours to watch.

    Attributes:
        cpu_seconds: of the server's processes meanwhile.
        memory: at most, meanwhile.
        gpu_busy: share of the time, where there is a GPU.
    """

    load: Load
    cpu_seconds: float | None = None
    memory: Memory | None = None
    gpu_busy: float | None = None

    @property
    def cpu_seconds_per_audio_hour(self) -> float | None:
        """Processor seconds for an hour of answered audio."""
        if self.cpu_seconds is None or not self.load.audio_seconds:
            return None
        return self.cpu_seconds / self.load.audio_seconds * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Everything about one server.

    Attributes:
        command: that started it, or its address.
        start: None where it ran already.
        first_seconds: latency of the very first request, None where it failed.
        heard: the demo clips, one at a time; none where nothing sensible can be heard.
        failure: why it could not be measured, or not to the end; None where it could.
    """

    name: str
    command: str
    start: Start | None = None
    first_seconds: float | None = None
    loads: tuple[LoadOnServer, ...] = ()
    heard: tuple[Heard, ...] = ()
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One run of the benchmark.

    Attributes:
        date: ISO, UTC.
        command: that ran the benchmark.
        commit: of omnihear.
        profiles: of this service, in the order of the servers.
        model: name, or what is known of random weights.
        clip_seconds: of the clips that are equally long.
        servers: this service in each profile, and its peer, if there is one, as the last.
        has_peer: whether there is one.
    """

    date: str
    command: str
    commit: str
    versions: Mapping[str, str]
    machine: Machine
    profiles: tuple[str, ...]
    model: str
    clip_seconds: float
    servers: tuple[Measured, ...]
    has_peer: bool

    @property
    def peer(self) -> Measured | None:
        """The server that the others are compared with."""
        return self.servers[-1] if self.has_peer and self.servers else None
