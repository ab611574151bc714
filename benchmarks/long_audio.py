"""`python -m benchmarks.long_audio`: hours in one file, through upload, decoding, segments, seams and engine.

With `--engine numbers` the real service on an engine that knows where in the recording it is: every word that is lost
or doubled at a cut shows, and four hours take minutes. With `--engine real` the profile's model: the text of each
passage must be the text that it has in a file of its own.
"""

import datetime as dt
import json
import sys
import tempfile
import time
import wave
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import jiwer
import numpy as np
import psutil
import typer

from benchmarks import machine
from benchmarks.clips import Samples, clip
from benchmarks.long_speech import (
    BREATHLESS,
    CLEAR_EDGES,
    CLEAR_TEXTS,
    GAP_SECONDS,
    Passage,
    assemble,
    gap,
    mark,
    numbers_in,
    numbers_spoken,
    recordings,
)
from benchmarks.processes import SAMPLE_SECONDS, ProcessTree, Sampler
from benchmarks.servers import Launch, Server, omnihear, running
from engine.interface import SAMPLE_RATE

RESULTS = Path(__file__).parent / "results"
LIMIT = {"OMNIHEAR_LIMITS_MAX_UPLOAD_BYTES": "2GiB"}  # 4 h of bare samples are 440 MiB
MIB = 2**20

Segment = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seams:
    """What became of the words at cuts.

    Attributes:
        words: expected.
        lost: of those not heard.
        doubled: heard more often than once, or not expected at all.
        other: heard as another word, by a model.
    """

    words: int
    lost: int
    doubled: int
    other: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One file.

    Attributes:
        segments: of the answer.
        time_error: largest distance of a segment's edge from where it is in a file of its own, in seconds.
        time_error_at_end: the same, of the last passages alone.
        seconds: from the first byte sent to the last received.
        idle_mib, peak_mib: resident memory by kind of process, and of that what is not mapped from files.
    """

    engine: str
    hours: float
    segments: int
    time_error: float
    time_error_at_end: float
    seams: Seams
    stream_is_whole: bool
    seconds: float
    idle_mib: dict[str, tuple[int, int]]
    peak_mib: dict[str, tuple[int, int]]


class Watch(Sampler):
    """Largest memory of each kind of process while its block runs: (resident, of that private) in MiB."""

    def __init__(self, tree: ProcessTree) -> None:
        super().__init__(SAMPLE_SECONDS)
        self.peak: Counter[tuple[str, int]] = Counter()
        self._tree = tree

    def look(self) -> None:
        """Read the sizes of all."""
        for kind, (resident, private) in memory(self._tree).items():
            self.peak[kind, 0] = max(self.peak[kind, 0], resident)
            self.peak[kind, 1] = max(self.peak[kind, 1], private)

    def result(self) -> dict[str, tuple[int, int]]:
        """By kind."""
        return {kind: (self.peak[kind, 0], self.peak[kind, 1]) for kind in sorted({kind for kind, _ in self.peak})}


def memory(tree: ProcessTree) -> dict[str, tuple[int, int]]:
    """(resident, of that private) in MiB of the largest process of each kind."""
    found: dict[str, tuple[int, int]] = {}
    for index, process in enumerate(tree.processes()):
        try:
            command, held = " ".join(process.cmdline()), process.memory_info()
        except psutil.Error:
            continue
        kind = "service" if index == 0 else "decode worker" if "transcription.nursery" in command else "engine"
        sizes = held.rss // MIB, (held.rss - held.shared) // MIB
        found[kind] = max(found.get(kind, (0, 0)), sizes)
    return found


def main(
    *,
    hours: Annotated[float, typer.Option(min=0.05, help="Of audio.")] = 1.0,
    engine: Annotated[str, typer.Option(help="`numbers` or `real`.")] = "numbers",
    output: Annotated[Path, typer.Option(help="Folder of the reports.")] = RESULTS,
) -> None:
    """Send one file of so many hours, whole and streamed, and look at what comes back."""
    if engine not in ("numbers", "real"):
        msg = "--engine is numbers or real"
        raise typer.BadParameter(msg)
    launch = omnihear(environment=LIMIT) if engine == "real" else _numbers()
    with tempfile.TemporaryDirectory(prefix="omnihear-long-") as folder, running(launch, Path(folder)) as server:
        measured = measure(server, Path(folder), hours, "real" if engine == "real" else "numbers")
    report = write(measured)
    stem = f"long-audio-{engine}-{hours:g}h-{dt.datetime.now(dt.UTC):%Y-%m-%d}"
    output.mkdir(parents=True, exist_ok=True)
    (output / f"{stem}.md").write_text(report, encoding="utf-8")
    (output / f"{stem}.json").write_text(json.dumps(asdict(measured), indent=1) + "\n", encoding="utf-8")
    print(report)


def _numbers() -> Launch:
    """The real service on the engine that hears numbers."""
    return Launch(command=(sys.executable, "-m", "benchmarks.numbers_server"), environment=LIMIT)


def measure(server: Server, folder: Path, hours: float, engine: Literal["numbers", "real"]) -> Measured:
    """Send everything to a running server."""
    sources = recordings()
    if engine == "real":  # a model makes nonsense of speech without pauses, and other nonsense in another batch
        sources = {name: sources[name] for name in CLEAR_TEXTS}
    tree = ProcessTree(server.process.pid)
    with httpx.Client(base_url=server.url, timeout=None) as client:
        alone = {name: verbose(client, between_gaps(samples)) for name, samples in sources.items()}
        path = folder / "long.wav"
        passages = record(path, sources, hours * 3600)
        idle = memory(tree)
        begun = time.monotonic()
        with Watch(tree) as watch:
            whole = verbose(client, path)
            seconds = time.monotonic() - begun
            streamed = stream(client, path)
    errors = time_errors(whole["segments"], passages, alone)
    return Measured(
        engine=engine,
        hours=hours,
        segments=len(whole["segments"]),
        time_error=round(max(errors), 3),
        time_error_at_end=round(max(errors[-20:]), 3),
        seams=numbered_seams(whole["text"], passages, sources)
        if engine == "numbers"
        else spoken_seams(whole["text"], passages, alone),
        stream_is_whole=streamed == whole["text"],
        seconds=round(seconds, 1),
        idle_mib=idle,
        peak_mib=watch.result(),
    )


def between_gaps(samples: Samples) -> bytes:
    """A passage in a file of its own, with the silence around it that it has in the long one."""
    return clip("alone.wav", mark(np.concatenate([gap(), samples, gap()]))).content


def record(path: Path, sources: dict[str, Samples], seconds: float) -> list[Passage]:
    """Write the long file, passage by passage; returns where each is."""
    passages = []
    with wave.open(str(path), "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(SAMPLE_RATE)
        place = 0
        for passage, samples in assemble(sources, seconds):
            writer.writeframes(mark(samples, place).astype("<i2").tobytes())
            place += len(samples)
            passages.append(passage)
    return passages


def verbose(client: httpx.Client, audio: bytes | Path) -> dict[str, Any]:
    """The whole answer to one file."""
    fields = {"response_format": "verbose_json"}
    if isinstance(audio, bytes):
        answer = client.post("/v1/transcribe", content=audio, params=fields)
    else:
        with audio.open("rb") as file:
            answer = client.post("/v1/transcribe", content=file, params=fields)
    body: dict[str, Any] = answer.raise_for_status().json()
    return body


def stream(client: httpx.Client, path: Path) -> str:
    """All deltas of a streamed answer, joined."""
    with (
        path.open("rb") as file,
        client.stream("POST", "/v1/transcribe", content=file, params={"stream": "true"}) as answer,
    ):
        events = [json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line.startswith("data: ")]
    return "".join(event["delta"] for event in events if event["type"] == "transcript.text.delta")


def time_errors(
    segments: Sequence[Segment], passages: Sequence[Passage], alone: dict[str, dict[str, Any]]
) -> list[float]:
    """For each passage with clear edges the larger distance of both from where they must be, in seconds."""
    errors = []
    starts, ends = [each["start"] for each in segments], [each["end"] for each in segments]
    for passage in passages:
        if passage.name in CLEAR_EDGES:
            shift = passage.start / SAMPLE_RATE - GAP_SECONDS
            own = alone[passage.name]["segments"]
            first, last = own[0]["start"] + shift, own[-1]["end"] + shift
            errors.append(max(min(abs(at - first) for at in starts), min(abs(at - last) for at in ends)))
    return errors


def numbered_seams(text: str, passages: Sequence[Passage], sources: dict[str, Samples]) -> Seams:
    """Every number whose sound is speech from its first to its last moment must come once."""
    expected: set[int] = set()
    for passage in passages:
        expected.update(numbers_spoken(sources[passage.name], passage.start))
    heard = Counter(numbers_in(text))
    doubled = sum(times - 1 for times in heard.values())
    return Seams(words=len(expected), lost=len(expected - set(heard)), doubled=doubled)


def spoken_seams(text: str, passages: Sequence[Passage], alone: dict[str, dict[str, Any]]) -> Seams:
    """The text must be that of all passages, each heard in a file of its own."""
    expected = " ".join(alone[passage.name]["text"] for passage in passages)
    counts = jiwer.process_words(expected, text)
    words = len(expected.split())
    return Seams(words=words, lost=counts.deletions, doubled=counts.insertions, other=counts.substitutions)


def write(measured: Measured) -> str:
    """The report for people."""
    rows = [
        "| memory, MiB | before | of that private | at most | of that private |",
        "|---|---|---|---|---|",
        *(
            f"| {kind} | {measured.idle_mib.get(kind, (0, 0))[0]} | {measured.idle_mib.get(kind, (0, 0))[1]} "
            f"| {peak} | {private} |"
            for kind, (peak, private) in measured.peak_mib.items()
        ),
    ]
    seams = measured.seams
    breathless = f" and {BREATHLESS} speech" if measured.engine == "numbers" else ""
    return "\n".join(
        [
            f"# {measured.hours:g} h in one file, engine: {measured.engine}",
            "",
            f"`python -m benchmarks.long_audio --hours {measured.hours:g} --engine {measured.engine}`",
            "",
            f"- date: {dt.datetime.now(dt.UTC):%Y-%m-%d}, commit {machine.commit()}",
            f"- machine: {machine.Machine.here()}",
            f"- versions: {machine.versions()}",
            f"- a 16-bit wav of clips{breathless}, {GAP_SECONDS:g} s apart; sent whole, then streamed",
            "",
            "| | |",
            "|---|---|",
            f"| segments | {measured.segments} |",
            f"| time error, at most | {measured.time_error:g} s |",
            f"| time error of the last 20 passages, at most | {measured.time_error_at_end:g} s |",
            f"| words expected; lost, doubled, other | {seams.words}; {seams.lost}, {seams.doubled}, {seams.other} |",
            f"| streamed text equals the whole one | {'yes' if measured.stream_is_whole else 'NO'} |",
            f"| whole answer | {measured.seconds:g} s, {measured.hours * 3600 / measured.seconds:.0f} x real time |",
            "",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    typer.run(main)
