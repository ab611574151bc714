"""`python -m benchmarks.soak`: thousands of mixed requests, some bad and some cancelled, and what stays behind of them.

After a warm-up the service's tree is weighed at rest, and again after the soak: memory within 5 %, no more descriptors,
threads or processes, nothing in the spool folder. Each good answer has to be the one that the same request has alone.
"""

import asyncio
import datetime as dt
import json
import re
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Final

import httpx
import psutil
import typer

from benchmarks import machine
from benchmarks.measuring import connect
from benchmarks.mixture import Mixture, Request
from benchmarks.processes import ProcessTree
from benchmarks.servers import Server, omnihear, running

RESULTS = Path(__file__).parent / "results"
MIB: Final = 2**20
GROWTH: Final = 0.05  # of memory that may be
IDLE_THREADS_SECONDS: Final = 11.0  # after which anyio ends worker threads that had nothing to do


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """What the tree of processes holds at rest."""

    pss_mib: float
    rss_mib: float
    descriptors: int
    threads: int
    processes: int
    spooled_files: int


@dataclass(slots=True, kw_only=True)
class Report:
    """All figures.

    Attributes:
        sent: by kind.
        statuses: by kind, then by status; "left" where the client did.
        compared: good answers that were held against that of the same request alone.
        different: names of those that differed.
        warm, after: the tree at rest.
        on_the_way: PSS in MiB while it ran, evenly spread.
    """

    engine: str
    date: str
    commit: str
    machine: str
    requests: int = 0
    at_once: int = 0
    seconds: float = 0.0
    sent: dict[str, int] = field(default_factory=dict)
    statuses: dict[str, dict[str, int]] = field(default_factory=dict)
    compared: int = 0
    different: list[str] = field(default_factory=list)
    warm: Weight | None = None
    after: Weight | None = None
    on_the_way: list[float] = field(default_factory=list)

    def faults(self) -> list[str]:
        """What ought not to be."""
        assert self.warm is not None
        assert self.after is not None
        found = [f"another answer: {name}" for name in self.different]
        if abs(self.after.pss_mib / self.warm.pss_mib - 1) > GROWTH:
            found.append(f"memory went from {self.warm.pss_mib:.0f} to {self.after.pss_mib:.0f} MiB")
        for name in ("descriptors", "threads", "processes", "spooled_files"):
            before, after = getattr(self.warm, name), getattr(self.after, name)
            if after > before:
                found.append(f"{name} went from {before} to {after}")
        for kind, counts in self.statuses.items():
            odd = {status: count for status, count in counts.items() if not _expected(kind, status)}
            if odd:
                found.append(f"{kind} requests were answered {odd}")
        return found


def _expected(kind: str, status: str) -> bool:
    if kind == "good":
        return status == "200"
    return status[0] in "24" or (kind == "cancelled" and status == "left")


class Soak:
    """Sends a mixture to one server."""

    def __init__(self, server: Server, spool: Path, report: Report, *, at_once: int) -> None:
        self._server = server
        self._spool = spool
        self._report = report
        self._at_once = at_once
        self._tree = ProcessTree(server.process.pid)
        self._alone: dict[str, bytes] = {}

    async def run(self, *, warm_up: int, requests: int) -> None:
        """All of it."""
        mixture, report = Mixture(), self._report
        warm, main = list(mixture.requests(warm_up)), list(mixture.requests(requests))
        async with connect(self._server.url) as client:
            for request in {each.name: each for each in (*warm, *main) if each.kind == "good"}.values():
                answer = await client.post(**request.post)
                self._alone[request.name] = _comparable(answer)
            await self._send(client, warm)
        report.warm = await self.weigh()
        report.statuses, report.compared, report.different = {}, 0, []
        begun = time.monotonic()
        part = max(1, len(main) // 10)
        async with connect(self._server.url) as client:
            for start in range(0, len(main), part):
                await self._send(client, main[start : start + part])
                report.on_the_way.append(round(self._tree.memory().pss / MIB, 1))
            report.seconds = round(time.monotonic() - begun, 1)
        report.after = await self.weigh()
        report.requests, report.at_once = len(main), self._at_once
        report.sent = dict(Counter(each.kind for each in main))

    async def _send(self, client: httpx.AsyncClient, requests: list[Request]) -> None:
        waiting = iter(requests)

        async def sender() -> None:
            for request in waiting:
                await self._one(client, request)

        async with asyncio.TaskGroup() as group:
            for _ in range(self._at_once):
                group.create_task(sender())

    async def _one(self, client: httpx.AsyncClient, request: Request) -> None:
        report = self._report
        counts = report.statuses.setdefault(request.kind, {})
        try:
            async with asyncio.timeout(request.leaves_after):
                answer = await client.post(**request.post)
        except TimeoutError:
            status = "left"
        else:
            status = str(answer.status_code)
            if request.kind == "good":
                report.compared += 1
                if _comparable(answer) != self._alone[request.name]:
                    report.different.append(request.name)
        counts[status] = counts.get(status, 0) + 1

    async def weigh(self) -> Weight:
        """The tree at rest, after the same requests each time: all workers there, connections and idle threads gone."""
        same = [each for each in Mixture(seed=1).requests(100) if each.kind == "good"]
        async with connect(self._server.url) as client:
            await asyncio.gather(*(client.post(**each.post) for each in same[: self._at_once]))
            while "\nomnihear_admitted_requests 0.0\n" not in (await client.get("/metrics")).text:
                pass
        await asyncio.sleep(IDLE_THREADS_SECONDS)
        async with connect(self._server.url) as client:
            await client.post(**same[0].post)  # anyio looks for idle threads when it needs one
        await asyncio.sleep(1.0)
        memory = self._tree.memory()
        processes = self._tree.processes()
        return Weight(
            pss_mib=round(memory.pss / MIB, 1),
            rss_mib=round(memory.rss / MIB, 1),
            descriptors=sum(map(psutil.Process.num_fds, processes)),
            threads=sum(map(psutil.Process.num_threads, processes)),
            processes=len(processes),
            spooled_files=sum(path.is_file() for path in self._spool.rglob("*")),
        )


def _comparable(answer: httpx.Response) -> bytes:
    """What has to be the same: all but the name of the request and, in a stream, how the text was cut into pieces."""
    body = answer.content
    if answer.headers["content-type"].startswith("text/event-stream"):
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
        told = "".join(event["delta"] for event in events if event["type"] == "transcript.text.delta")
        body = json.dumps([told, [event for event in events if "delta" not in event]]).encode()
    return f"{answer.status_code} ".encode() + re.sub(rb'"request_id": ?"[^"]*"', b"", body)


def main(
    *,
    requests: Annotated[int, typer.Option(help="After the warm-up.")] = 5000,
    warm_up: Annotated[int, typer.Option(help="Requests before the tree is weighed.")] = 1000,
    at_once: Annotated[int, typer.Option(help="Clients.")] = 16,
    engine: Annotated[str, typer.Option(help="`scripted`, or `real`: that of the machine's profile.")] = "scripted",
    output: Annotated[Path, typer.Option(help="Folder of the reports.")] = RESULTS,
) -> None:
    """Soak one service; fails where something stays behind or differs."""
    if engine not in ("scripted", "real"):
        msg = "--engine is scripted or real"
        raise typer.BadParameter(msg)
    report = Report(
        engine=engine,
        date=dt.datetime.now(dt.UTC).date().isoformat(),
        commit=machine.commit(),
        machine=str(machine.Machine.here()),
    )
    with tempfile.TemporaryDirectory() as folder:
        (spool := Path(folder) / "spool").mkdir()
        environment = {"OMNIHEAR_SERVER_SPOOL_DIR": str(spool)}
        if engine == "scripted":
            environment["OMNIHEAR_ENGINE_BACKEND"] = "scripted"
        with running(omnihear(environment=environment), Path(folder)) as server:
            soak = Soak(server, spool, report, at_once=at_once)
            asyncio.run(soak.run(warm_up=warm_up, requests=requests))
    text = write(report)
    stem = f"soak-{engine}-{report.date}"
    output.mkdir(parents=True, exist_ok=True)
    (output / f"{stem}.md").write_text(text, encoding="utf-8")
    (output / f"{stem}.json").write_text(json.dumps(asdict(report), indent=1) + "\n", encoding="utf-8")
    print(text)
    raise typer.Exit(1 if report.faults() else 0)


def write(report: Report) -> str:
    """For people."""
    assert report.warm is not None
    assert report.after is not None
    faults = report.faults()
    change = report.after.pss_mib / report.warm.pss_mib - 1
    rows = [
        f"| {name.replace('_', ' ')} | {getattr(report.warm, name):g} | {getattr(report.after, name):g} |"
        for name in Weight.__dataclass_fields__
    ]
    told = [
        f"| {kind} | {report.sent.get(kind, 0)} | "
        + ", ".join(f"{status}: {count}" for status, count in sorted(counts.items()))
        + " |"
        for kind, counts in sorted(report.statuses.items())
    ]
    lines = [
        f"# Soak, {report.engine} engine",
        "",
        f"`python -m benchmarks.soak --engine {report.engine} --requests {report.requests}`",
        "",
        f"- {report.date}, commit {report.commit}; {report.machine}",
        f"- {report.requests} requests of {report.at_once} clients in {report.seconds:g} s; {report.compared} good "
        f"answers compared with the same request alone, {len(report.different)} different; memory {change:+.1%}",
        "- " + ("nothing stayed behind" if not faults else "; ".join(faults)),
        "",
        "| requests | sent | answers |",
        "|---|---:|---|",
        *told,
        "",
        "| all processes, at rest | after warm-up | after the soak |",
        "|---|---:|---:|",
        *rows,
        "",
        f"PSS on the way, MiB: {', '.join(f'{pss:g}' for pss in report.on_the_way)}",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    typer.run(main)
