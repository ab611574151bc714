"""Many files at a time, with progress by the seconds of audio that have been heard."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio.to_thread
import av
import httpx
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from app.command.outputs import STANDARD, Job, OutputFormat
from app.command.remote import RemoteError, transcribe
from app.command.wishes import Wishes


@dataclass(slots=True)
class Outcome:
    """What became of the files."""

    done: list[Path] = field(default_factory=list)
    skipped: list[Path] = field(default_factory=list)
    failed: dict[Path, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """0 where every file has its transcript, 1 where some have, 3 where none has."""
        if not self.failed:
            return 0
        return 1 if self.done or self.skipped else 3


class Runner:
    """Sends files to a service, several at a time."""

    def __init__(
        self,
        console: Console,
        complaints: Console,
        *,
        formats: Sequence[OutputFormat],
        wishes: Wishes,
        parallel: int,
    ) -> None:
        self._console = console
        self._complaints = complaints
        self._formats = formats
        self._wishes = wishes
        self._places = asyncio.Semaphore(parallel)

    async def run(self, url: str, jobs: Sequence[Job], *, api_key: str | None = None) -> Outcome:
        """Transcribe all files that are to be done; what fails is told at once and does not stop the others."""
        outcome = Outcome()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} s of audio"),
            TimeRemainingColumn(),
        )
        timeout = httpx.Timeout(60.0, read=None)  # a comment every few seconds keeps the stream alive
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        async with httpx.AsyncClient(base_url=url, timeout=timeout, headers=headers) as client:
            shown = self._console.is_terminal
            with Progress(*columns, console=self._console, transient=True, disable=not shown) as progress:
                lengths = [await anyio.to_thread.run_sync(seconds, job.source) for job in jobs]
                total = progress.add_task("all", total=sum(lengths)) if len(jobs) > 1 else None
                async with asyncio.TaskGroup() as group:
                    for job, length in zip(jobs, lengths, strict=True):
                        bars = _Bars(progress, total, length)
                        group.create_task(self._one(client, job, bars, outcome))
        return outcome

    async def _one(self, client: httpx.AsyncClient, job: Job, bars: "_Bars", outcome: Outcome) -> None:
        async with self._places:
            bars.begin(job.source.name)
            try:
                transcript = await transcribe(client, job.source, self._wishes, bars.heard)
                job.write(transcript, self._formats, self._wishes.temperature)
            except (RemoteError, OSError) as error:
                reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
                outcome.failed[job.source] = reason
                tell(self._complaints, f"{job.source}: {reason}", style="red")
            else:
                outcome.done.append(job.source)
                for warning in transcript.warnings:
                    tell(self._console, f"{job.source}: {warning.message} ({warning.code})", style="yellow")
            finally:
                bars.end()


def tell(console: Console, text: str, style: str | None = None) -> None:
    """Write one line as it is, whatever it holds and however long it is: others read it by lines."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


class _Bars:
    """The bar of one file, and its share of the bar for all."""

    def __init__(self, progress: Progress, total: TaskID | None, length: float) -> None:
        self._progress = progress
        self._total = total
        self._length = length
        self._own: TaskID | None = None
        self._heard = 0.0

    def begin(self, name: str) -> None:
        self._own = self._progress.add_task(name, total=self._length)

    def heard(self, until: float) -> None:
        """Move on to a second of the audio."""
        step, self._heard = max(0.0, until - self._heard), max(self._heard, until)
        for task in (self._own, self._total):
            if task is not None:
                self._progress.advance(task, step)

    def end(self) -> None:
        """Take the bar away, and count the file as heard to its end."""
        self.heard(self._length)
        if self._own is not None:
            self._progress.remove_task(self._own)


def seconds(source: Path) -> float:
    """Length of a file by its header, 0 where it does not say; good enough for an estimate."""
    if source == STANDARD:
        return 0.0
    try:
        with av.open(source, "r") as container:
            return (container.duration or 0) / 1e6
    except (OSError, av.FFmpegError):
        return 0.0
