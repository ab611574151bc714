"""`python -m benchmarks.accuracy`: error rates of a model over recordings whose words are known, through HTTP.

    python -m benchmarks.accuracy                                    # default profile, the sets that packages carry
    python -m benchmarks.accuracy --profile eager LibriSpeech/test-clean
    python -m benchmarks.accuracy --model /models/Qwen2.5-Omni-7B clips.jsonl
    python -m benchmarks.accuracy --url http://host:8000 LibriSpeech/test-other

A folder is read as LibriSpeech's, a file as JSON lines of `path`, `text` and `set`. Texts are compared after Whisper's
English normalisation; every set is counted apart, with a 95 % interval.
"""

import asyncio
import datetime as dt
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks import machine
from benchmarks.clips import Clip, clip, read_recording
from benchmarks.dialects import Chat, Dialect, Transcribe
from benchmarks.evaluation_sets import prepare
from benchmarks.load import send
from benchmarks.manifests import Recording, read
from benchmarks.measuring import connect
from benchmarks.report import markdown_table
from benchmarks.scoring import CONFIDENCE, HEAD, RESAMPLES, Score, SetScore, row
from benchmarks.servers import omnihear, running

RESULTS = Path(__file__).parent / "results"
CACHE = Path.home() / ".cache" / "omnihear" / "evaluation"

console = Console(stderr=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcribed:
    """What a server wrote down for one recording.

    Attributes:
        error: why there is no answer; the text is empty then.
    """

    name: str
    set: str
    seconds: float
    spoken: str
    heard: str
    score: Score
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """One run.

    Attributes:
        server: command that started it, or its address.
        model: as the server names it.
        missing: why sets could not be had, by name.
    """

    date: str
    command: str
    commit: str
    machine: str
    versions: Mapping[str, str]
    server: str
    model: str
    seconds: float
    sets: tuple[SetScore, ...]
    missing: Mapping[str, str]
    clips: tuple[Transcribed, ...]


async def transcribe(url: str, dialect: Dialect, recordings: Sequence[Recording], callers: int) -> list[Transcribed]:
    """Send every recording once; results in their order.

    Raises:
        httpx.HTTPError: the server cannot be reached at all. What it refuses is an error of the clip.
    """
    heard: dict[int, Transcribed] = {}
    waiting = iter(enumerate(recordings))
    async with connect(url) as client:
        dialect = await dialect.prepared(client)
        columns = (TextColumn("transcribing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("", total=len(recordings))

            async def caller() -> None:
                for index, recording in waiting:
                    upload = await asyncio.to_thread(_upload, recording)
                    answer = await send(client, dialect, upload)
                    heard[index] = Transcribed(
                        name=recording.path.name,
                        set=recording.set,
                        seconds=upload.seconds,
                        spoken=recording.text,
                        heard=answer.text,
                        score=Score.of(recording.text, answer.text),
                        error=answer.error,
                    )
                    progress.advance(task)

            async with asyncio.TaskGroup() as asking:
                for _ in range(callers):
                    asking.create_task(caller())
    return [heard[index] for index in range(len(recordings))]


def summarize(clips: Sequence[Transcribed]) -> list[SetScore]:
    """Each set apart, and all but none together where there are several."""
    names = list(dict.fromkeys(each.set for each in clips))
    groups = {name: [each for each in clips if each.set == name] for name in names}
    if len(groups) > 2 and "asterisk" in groups:  # one speaker's prompts would be nearly all of a sum
        groups["all but asterisk"] = [each for each in clips if each.set != "asterisk"]
    return [
        SetScore.over(
            name,
            [each.score for each in group],
            sum(each.seconds for each in group),
            empty=sum(not each.heard for each in group),
            unanswered=sum(each.error is not None for each in group),
        )
        for name, group in groups.items()
    ]


def main(
    sources: Annotated[
        list[Path] | None, typer.Argument(help="Manifests and LibriSpeech folders; the sets of packages when none.")
    ] = None,
    *,
    profile: Annotated[str | None, typer.Option(help="As for `omnihear serve`.")] = None,
    model: Annotated[str | None, typer.Option(help="In the place of the profile's: a folder or a hub id.")] = None,
    url: Annotated[str | None, typer.Option(help="A server that runs already.")] = None,
    chat: Annotated[bool, typer.Option(help="The server speaks chat completions alone, as stock vLLM does.")] = False,
    language: Annotated[str, typer.Option(help="Of all recordings.")] = "en",
    callers: Annotated[int, typer.Option(min=1, help="Requests at the same time.")] = 4,
    name: Annotated[str | None, typer.Option(help="Of the report; the model's when not named.")] = None,
    texts: Annotated[
        bool,
        typer.Option(help="Write down what was said and heard too; licences of the recordings may not allow more."),
    ] = False,
    cache: Annotated[Path, typer.Option(help="Folder for what packages carry.")] = CACHE,
    output: Annotated[Path, typer.Option(help="Folder of the reports.")] = RESULTS,
) -> None:
    """Transcribe all recordings and count what is wrong."""
    missing: Mapping[str, str] = {}
    if sources:
        recordings = [recording for source in sources for recording in read(source)]
    else:
        recordings, missing = prepare(cache)
    for absent, reason in missing.items():
        console.print(f"without {absent}: {reason}", soft_wrap=True)
    if not recordings:
        raise typer.BadParameter("no recording")
    dialect = Chat(language) if chat else Transcribe(language)
    if url is not None:
        report = measure(url, dialect, recordings, missing=missing, callers=callers)
    else:
        launch = omnihear(profile=profile, environment={"OMNIHEAR_ENGINE_MODEL": model} if model else {})
        console.print(f"{launch}", soft_wrap=True)
        with tempfile.TemporaryDirectory() as folder, running(launch, Path(folder)) as server:
            report = measure(server.url, dialect, recordings, server=str(launch), missing=missing, callers=callers)
    stem = f"accuracy-{name or Path(report.model).name}-{report.date}"
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"{stem}.json"
    told = asdict(report)
    if not texts:
        for each in told["clips"]:
            del each["spoken"], each["heard"]
    path.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(text := markdown(report), encoding="utf-8")
    typer.echo(text)
    console.print(f"wrote {path} and .md", soft_wrap=True)


def measure(
    url: str,
    dialect: Dialect,
    recordings: Sequence[Recording],
    *,
    server: str | None = None,
    missing: Mapping[str, str] | None = None,
    callers: int = 4,
) -> Accuracy:
    """Put one running server through all recordings.

    Args:
        server: what started it, for the report.
        missing: sets that could not be had, for the report.
    """
    listed: dict[str, Any] = httpx.get(f"{url}/v1/models", timeout=60, trust_env=False).raise_for_status().json()
    here = str(machine.Machine.here())
    begun = time.monotonic()
    clips = asyncio.run(transcribe(url, dialect, recordings, callers))
    return Accuracy(
        date=dt.datetime.now(dt.UTC).date().isoformat(),
        command=shlex.join(["python", "-m", "benchmarks.accuracy", *sys.argv[1:]]),
        commit=machine.commit(),
        machine=here,
        versions=machine.versions(),
        server=server or url,
        model=str(listed["data"][0]["id"]),
        seconds=round(time.monotonic() - begun, 1),
        sets=tuple(summarize(clips)),
        missing=dict(missing or {}),
        clips=tuple(clips),
    )


def markdown(report: Accuracy) -> str:
    """For people."""
    return "\n".join(
        [
            f"# Error rates of {report.model}, {report.date}",
            "",
            f"- `{report.command}`, omnihear {report.commit}",
            f"- server: `{report.server}`",
            f"- machine: {report.machine}",
            f"- versions: {', '.join(f'{name} {version}' for name, version in report.versions.items())}",
            "- texts after Whisper's English normalisation; all errors of a set over all its words or characters;",
            f"  in brackets the {CONFIDENCE:.0%} interval of {RESAMPLES} bootstrap samples of its clips",
            *(f"- without {name}: {reason}" for name, reason in report.missing.items()),
            "",
            *markdown_table(HEAD, [row(each) for each in report.sets]),
            "",
        ]
    )


def _upload(recording: Recording) -> Clip:
    """The samples as wav: the file's own container is not what is measured."""
    return clip(f"{recording.path.stem}.wav", read_recording(recording.path))


if __name__ == "__main__":
    typer.run(main)
