"""What a server takes of the machine: processor time and memory of all its processes."""

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

import psutil

SAMPLE_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that processes hold.

    Attributes:
        rss: sum of the resident sizes; a page that two processes share counts twice.
        pss: sum of the proportional sizes; a page that two processes share counts half in each.
    """

    rss: int
    pss: int

    def or_more(self, other: "Memory") -> "Memory":
        """The larger of each sum."""
        return Memory(max(self.rss, other.rss), max(self.pss, other.pss))


class ProcessTree:
    """A process and all that descend from it."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)

    def processes(self) -> list[psutil.Process]:
        """Those that live now, the root first; none when it has ended."""
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def cpu_seconds(self) -> float:
        """Processor time of user and system so far, with that of descendants that have ended."""
        total = 0.0
        for process in self.processes():
            try:
                total += sum(process.cpu_times()[:4])  # user, system, and both of the children it has waited for
            except psutil.NoSuchProcess:
                continue
        return total

    def rss(self) -> int:
        """Bytes; as `Memory.rss`."""
        total = 0
        for process in self.processes():
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return total

    def memory(self) -> Memory:
        """Both sums; the kernel walks every page for it, some 25 ms a GiB."""
        rss = pss = 0
        for process in self.processes():
            try:
                full = process.memory_full_info()
            except psutil.NoSuchProcess:
                continue
            rss, pss = rss + full.rss, pss + full.pss
        return Memory(rss, pss)


class Sampler(ABC):
    """Looks at something when its block begins, and from a thread again and again while it runs."""

    def __init__(self, seconds: float) -> None:
        """Set up; `seconds` lie between two looks."""
        self._seconds = seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__)

    def __enter__(self) -> Self:
        self.look()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            self.look()

    @abstractmethod
    def look(self) -> None:
        """Note what is there now."""


class PeakMemory(Sampler):
    """Watches a tree; `peak` is what it held at most.

    The proportional size is read only when the resident one has grown by a hundredth, because reading it costs the
    server time that is being measured.
    """

    def __init__(self, tree: ProcessTree) -> None:
        super().__init__(SAMPLE_SECONDS)
        self._tree = tree
        self.peak = Memory(0, 0)

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self.peak = self.peak.or_more(self._tree.memory())

    def look(self) -> None:
        """Read the resident size, and both where it has grown."""
        if self._tree.rss() > 1.01 * self.peak.rss:
            self.peak = self.peak.or_more(self._tree.memory())
