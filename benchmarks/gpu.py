"""How busy a GPU is."""

import shutil
import subprocess
import threading
from collections import defaultdict
from typing import Self

_QUERY = ("--query-gpu=index,utilization.gpu", "--format=csv,noheader,nounits", "--loop-ms=200")


class GpuBusy:
    """Asks `nvidia-smi` from a thread while its block runs.

    Attributes:
        share: of the time in which a kernel ran on the busiest GPU, as NVML counts it; None without a GPU.
    """

    def __init__(self) -> None:
        self.share: float | None = None
        self._process: subprocess.Popen[str] | None = None
        self._samples: defaultdict[str, list[float]] = defaultdict(list)
        self._thread = threading.Thread(target=self._read, name="gpu-busy")

    def __enter__(self) -> Self:
        program = shutil.which("nvidia-smi")
        if program is not None:
            self._process = subprocess.Popen(
                [program, *_QUERY], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._thread.join()
            self._process.wait()
        self.share = max((sum(each) / len(each) / 100 for each in self._samples.values()), default=None)

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                index, _, busy = line.strip().partition(", ")
                if busy.isdigit():  # "[N/A]" on some devices, a message without a driver
                    self._samples[index].append(float(busy))
