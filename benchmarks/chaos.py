"""`python -m benchmarks.chaos`: what is done to a running service, and whether what the documents promise comes of it.

A decode worker is killed, the engine process is stopped and goes on, the disk of the spool folder is full, the service
itself is killed and started again. A clean clip is transcribed in a loop meanwhile. (A wall clock that jumps cannot be
had for one process alone: `tests/app/test_faults.py` replaces it.)
"""

import datetime as dt
import json
import resource
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

import httpx
import numpy as np
import psutil
import typer

from app.spool import PREFIX
from benchmarks import machine
from benchmarks.processes import ProcessTree
from benchmarks.servers import Launch, Server, omnihear, running
from tests import audio_factory as factory

Found = TypeVar("Found")

RESULTS = Path(__file__).parent / "results"
STALL_SECONDS: Final = 3
PATIENCE: Final = 60.0  # for what ought to happen in a second or a few
ROOM: Final = 1 << 20  # bytes a file may have where the disk is to be full
CLEAN: Final = factory.wav(factory.pcm16(factory.clip("library-us-female.wav")))
LONG: Final = factory.encode(np.tile(factory.clip("harbor-story-long.flac"), 10), "opus")


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that was done, what is promised for it, and what came."""

    done: str
    promised: str
    came: str
    kept: bool


class Beside:
    """Somebody who asks for the same clean clip again and again."""

    def __init__(self, server: Server) -> None:
        self.answers: Counter[str] = Counter()
        self._server = server
        self._over = threading.Event()

    def _ask(self) -> None:
        with self._server.client() as client:
            while not self._over.is_set():
                answer = client.post("/v1/transcribe", content=CLEAN)
                self.answers[str(answer.status_code)] += 1

    @contextmanager
    def asking(self) -> Iterator[None]:
        self.answers.clear()
        self._over.clear()
        thread = threading.Thread(target=self._ask, name="beside")
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def told(self) -> str:
        return "beside it: " + ", ".join(f"{status} x {count}" for status, count in sorted(self.answers.items()))


class Stage:
    """A running service and what may be done to it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._client = server.client()
        self._tree = ProcessTree(server.process.pid)
        self._beside = Beside(server)

    def close(self) -> None:
        self._client.close()

    def kill_a_worker(self) -> Act:
        """While it decodes a long file; twice on one file would be the file's fault."""
        with self._beside.asking(), ThreadPoolExecutor(1) as pool:
            long = pool.submit(self._post, LONG)
            busy = _until(self._busiest_worker)
            busy.kill()
            answer = long.result()
        kept = answer.status_code == 200 and set(self._beside.answers) == {"200"}
        return Act(
            "kill -9 of a decode worker at a long file",
            "the file is tried again, others do not notice, a worker takes its place",
            f"the long file: {answer.status_code}; {self._beside.told()}; workers: {len(self._workers())}",
            kept and bool(_until(lambda: len(self._workers()) == 2)),
        )

    def stop_the_engine(self) -> Act:
        """SIGSTOP to the engine process, and SIGCONT once the watchdog has seen it."""
        engine = max(self._tree.processes()[1:], key=lambda process: process.memory_info().rss)
        with ThreadPoolExecutor(4) as pool:
            engine.send_signal(signal.SIGSTOP)
            begun = time.monotonic()
            waiting = [pool.submit(self._post, CLEAN) for _ in range(4)]
            stalled = _until(lambda: (ready := self._client.get("/health/ready")).status_code == 503 and ready)
            seconds = time.monotonic() - begun
            live = self._client.get("/health/live").status_code
            refused = self._post(CLEAN)
            engine.send_signal(signal.SIGCONT)
            answers = {each.result().status_code for each in waiting}
        recovered = _until(lambda: self._client.get("/health/ready").status_code == 200)
        code = refused.json()["error"]["code"]
        return Act(
            f"SIGSTOP of the engine process, then SIGCONT (stall_seconds = {STALL_SECONDS})",
            "while it stands ready 503, live 200, new work 503; then those that waited are answered, ready 200",
            f"ready 503 after {seconds:.1f} s: {stalled.json()['phase']!r}; live {live}; new work "
            f"{refused.status_code} {code}; those that waited {sorted(answers)}; ready again: {bool(recovered)}",
            (live, refused.status_code, code, answers) == (200, 503, "not_ready", {200}) and bool(recovered),
        )

    def fill_the_disk(self) -> Act:
        """No process of the service may make a file larger than ROOM, as under a quota."""
        processes = self._tree.processes()
        limits = [
            resource.prlimit(each.pid, resource.RLIMIT_FSIZE, (ROOM, resource.RLIM_INFINITY)) for each in processes
        ]
        try:
            with self._beside.asking():
                upload = self._post(bytes(2 * ROOM))
                waveform = self._post(LONG[: ROOM // 2])
        finally:
            for each, limit in zip(processes, limits, strict=True):
                resource.prlimit(each.pid, resource.RLIMIT_FSIZE, limit)
        after = self._post(LONG[: ROOM // 2])
        codes = [answer.json()["error"]["code"] for answer in (upload, waveform) if answer.status_code != 200]
        return Act(
            f"no room for files over {ROOM >> 20} MiB in the spool folder",
            "507 storage_full for an upload and a waveform that do not fit; others are served, later all",
            f"upload {upload.status_code}, waveform {waveform.status_code}, {codes}; {self._beside.told()}; "
            f"after: {after.status_code}",
            (upload.status_code, waveform.status_code, after.status_code) == (507, 507, 200)
            and codes == ["storage_full"] * 2
            and set(self._beside.answers) == {"200"},
        )

    def kill_the_service(self, spool: Path) -> Act:
        """While it works."""
        processes = self._tree.processes()[1:]
        with ThreadPoolExecutor(1) as pool:
            lost = pool.submit(self._post, LONG)
            _until(self._busiest_worker)
            self._server.process.kill()
            self._server.process.wait()
            with suppress(httpx.TransportError):
                lost.result()
        _, orphans = psutil.wait_procs(processes, PATIENCE)
        left = list(spool.glob(f"{PREFIX}*/*"))
        with tempfile.TemporaryDirectory() as folder, running(_launch(spool, scripted=True), Path(folder)):
            swept = not list(spool.glob(f"{PREFIX}*/*")) and len(list(spool.iterdir())) == 1
        return Act(
            "kill -9 of the service at work, and another start",
            "no process stays; the next start removes what callers had sent",
            f"orphans {len(orphans)}; folders of requests left {len(left)}, after the next start gone: {swept}",
            not orphans and bool(left) and swept,
        )

    def _post(self, content: bytes) -> httpx.Response:
        with self._server.client() as client:
            return client.post("/v1/transcribe", content=content)

    def _workers(self) -> list[psutil.Process]:
        nursery = next(each for each in self._tree.processes() if "app.transcription.nursery" in each.cmdline())
        return [each for each in nursery.children() if each.status() != psutil.STATUS_ZOMBIE]

    def _busiest_worker(self) -> psutil.Process | None:
        """The one that has computed in the last moment."""
        workers = self._workers()
        before = [sum(each.cpu_times()[:2]) for each in workers]
        time.sleep(0.2)
        try:
            used = [sum(each.cpu_times()[:2]) - then for each, then in zip(workers, before, strict=True)]
        except psutil.NoSuchProcess:
            return None
        return workers[int(np.argmax(used))] if used and max(used) > 0.1 else None


def _until(look: Callable[[], Found | Literal[False] | None]) -> Found:
    """What a look gives, once it gives something.

    Raises:
        TimeoutError: it does not.
    """
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.05)
    raise TimeoutError


def _launch(spool: Path, *, scripted: bool) -> Launch:
    environment = {
        "OMNIHEAR_SERVER_SPOOL_DIR": str(spool),
        "OMNIHEAR_SERVER_STALL_SECONDS": str(STALL_SECONDS),
    }
    return omnihear(environment=environment | ({"OMNIHEAR_ENGINE_BACKEND": "scripted"} if scripted else {}))


def main(
    *,
    engine: Annotated[str, typer.Option(help="`real`, or `scripted`, which has no process to stop.")] = "real",
    output: Annotated[Path, typer.Option(help="Folder of the reports.")] = RESULTS,
) -> None:
    """Do all of it to one service; fails where a promise is not kept."""
    if engine not in ("scripted", "real"):
        msg = "--engine is scripted or real"
        raise typer.BadParameter(msg)
    here = str(machine.Machine.here())
    with tempfile.TemporaryDirectory() as folder:
        (spool := Path(folder) / "spool").mkdir()
        with running(_launch(spool, scripted=engine == "scripted"), Path(folder)) as server:
            stage = Stage(server)
            acts = [stage.kill_a_worker(), stage.fill_the_disk()]
            if engine == "real":
                acts.append(stage.stop_the_engine())
            acts.append(stage.kill_the_service(spool))
            stage.close()
    date = dt.datetime.now(dt.UTC).date().isoformat()
    lines = [
        f"# Chaos, {engine} engine",
        "",
        f"`python -m benchmarks.chaos --engine {engine}`; {date}, commit {machine.commit()}; {here}",
        "",
        "| done | promised | came | kept |",
        "|---|---|---|---|",
        *(f"| {act.done} | {act.promised} | {act.came} | {'yes' if act.kept else 'NO'} |" for act in acts),
    ]
    text = "\n".join(lines) + "\n"
    output.mkdir(parents=True, exist_ok=True)
    (output / f"chaos-{engine}-{date}.md").write_text(text, encoding="utf-8")
    (output / f"chaos-{engine}-{date}.json").write_text(
        json.dumps([asdict(act) for act in acts], indent=1) + "\n", encoding="utf-8"
    )
    print(text)
    raise typer.Exit(0 if all(act.kept for act in acts) else 1)


if __name__ == "__main__":
    typer.run(main)
