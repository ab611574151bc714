"""`omnihear transcribe` from the order to the exit status."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from app.command.jobs import Outcome, Runner, tell
from app.command.outputs import Job, OutputError, OutputFormat, plan
from app.command.own import StartError, own_service
from app.command.wishes import Wishes
from app.settings import load_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the command line says of files and places; see its help."""

    files: tuple[Path, ...]
    server: str | None
    api_key: str | None = field(repr=False)
    profile: str | None
    formats: tuple[OutputFormat, ...]
    output: Path | None
    parallel: int
    overwrite: bool
    quiet: bool


def run(order: Order, wishes: Wishes) -> int:
    """Do it, and return the exit status: 0 all, 1 some, 3 none, 2 nothing was tried.

    Raises:
        SettingsError: the profile of a service of one's own cannot be served.
    """
    console = Console(stderr=True, quiet=order.quiet)
    complaints = Console(stderr=True)
    try:
        jobs = plan(order.files, order.formats, order.output)
        _make_folders(jobs)
    except (OutputError, OSError) as error:
        tell(complaints, str(error), style="red")
        return 2
    open_jobs = [job for job in jobs if order.overwrite or not job.done]
    outcome = Outcome()
    try:
        if open_jobs:
            outcome = asyncio.run(_run(order, wishes, open_jobs, console, complaints))
    except StartError as error:
        tell(complaints, str(error), style="red")
        return 2
    except KeyboardInterrupt:
        complaints.print("interrupted; what is done is done, and skipped the next time")
        return 130
    outcome.skipped.extend(job.source for job in jobs if job not in open_jobs)
    tell(console, f"{len(outcome.done)} transcribed, {len(outcome.skipped)} skipped, {len(outcome.failed)} failed")
    return outcome.exit_code


def _make_folders(jobs: list[Job]) -> None:
    for job in jobs:
        for target in job.targets.values():
            target.parent.mkdir(parents=True, exist_ok=True)


async def _run(order: Order, wishes: Wishes, jobs: list[Job], console: Console, complaints: Console) -> Outcome:
    runner = Runner(console, complaints, formats=order.formats, wishes=wishes, parallel=order.parallel)
    async with _service(order, console) as url:
        return await runner.run(url, jobs, api_key=order.api_key)


def base_url(server: str) -> str:
    """A service as people name it: without a scheme, or with the `/v1` that OpenAI's SDK wants."""
    url = server.strip().rstrip("/").removesuffix("/v1")
    return url if "://" in url else f"http://{url}"


@asynccontextmanager
async def _service(order: Order, console: Console) -> AsyncIterator[str]:
    if order.server is not None:
        yield base_url(order.server)
        return
    async with own_service(load_settings(order.profile), console) as url:
        yield url
