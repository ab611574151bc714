"""Starts the real service as its users do: another process, a real port, the embedded checkpoint."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

START_SECONDS = 300.0
_LISTENING = re.compile(r"running on (http://\S+)")
COMMAND = (sys.executable, "-m", "app.cli", "serve", "--port", "0")


@dataclass(frozen=True)
class Server:
    """A running service."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=300)


@contextmanager
def serving(
    folder: Path, *, command: Sequence[str] = COMMAND, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run the service until the block ends; its log is in `folder` and shown when it does not come up."""
    log = folder / "server.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command, stderr=sink, stdout=sink, env={**os.environ, "HF_HUB_OFFLINE": "1", **(environment or {})}
        )
    try:
        url = _wait(process, log, time.monotonic() + START_SECONDS)
        yield Server(url, process, log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[bytes], log: Path, deadline: float) -> str:
    """Poll, as an orchestrator does, until the service is ready."""
    while time.monotonic() < deadline and process.poll() is None:
        if (listening := _LISTENING.search(log.read_text())) is not None:
            url = listening.group(1)
            if httpx.get(f"{url}/health/ready").status_code == 200:
                return url
        time.sleep(0.25)
    raise AssertionError(f"the service did not become ready:\n{log.read_text()[-4000:]}")
