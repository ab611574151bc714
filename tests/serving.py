"""Starts the real service as its users do: another process, a real port, the embedded checkpoint."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.servers import Launch, Server, omnihear, running

__all__ = ["Server", "serving"]


@contextmanager
def serving(
    folder: Path, *, command: Sequence[str] = omnihear().command, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run the service until the block ends; its log is in `folder` and shown when it does not come up."""
    launch = Launch(command=tuple(command), environment={"HF_HUB_OFFLINE": "1", **(environment or {})})
    with running(launch, folder) as server:
        yield server
