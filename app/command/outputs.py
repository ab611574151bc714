"""Where the transcript of a file goes, and whether it is there already."""

import os
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from app.schemas.responses import VerboseTranscriptionResponse
from app.transcription.formats import to_srt, to_text, to_vtt
from app.transcription.transcript import Transcript

STANDARD: Final = Path("-")  # input or output


class OutputFormat(StrEnum):
    """What is written; also the extension of the file."""

    TXT = "txt"
    JSON = "json"
    SRT = "srt"
    VTT = "vtt"


def write_as(transcript: Transcript, form: OutputFormat, temperature: float) -> str:
    """The transcript in one form; JSON as the service answers `verbose_json`."""
    match form:
        case OutputFormat.TXT:
            return to_text(transcript)
        case OutputFormat.SRT:
            return to_srt(transcript)
        case OutputFormat.VTT:
            return to_vtt(transcript)
        case OutputFormat.JSON:
            return VerboseTranscriptionResponse.verbose(transcript, temperature).model_dump_json(indent=2) + "\n"


class OutputError(Exception):
    """Files cannot be written as asked; says which."""


@dataclass(frozen=True, slots=True)
class Job:
    """One file and what is to be made of it.

    Attributes:
        source: STANDARD for what comes in on standard input.
        targets: one for each format; none where the transcript goes to standard output.
    """

    source: Path
    targets: dict[OutputFormat, Path]

    @property
    def done(self) -> bool:
        """Whether all targets are there and not older than the source."""
        if not self.targets or not self.source.is_file():
            return False
        made = self.source.stat().st_mtime
        return all(target.is_file() and target.stat().st_mtime >= made for target in self.targets.values())

    def write(self, transcript: Transcript, formats: Iterable[OutputFormat], temperature: float) -> None:
        """Write all targets, each whole or not at all.

        Raises:
            OSError
        """
        if not self.targets:
            for form in formats:
                sys.stdout.write(write_as(transcript, form, temperature))
            sys.stdout.flush()
        for form, target in self.targets.items():
            partial = target.with_name(f".{target.name}.{os.getpid()}.part")
            partial.write_text(write_as(transcript, form, temperature), encoding="utf-8")
            partial.replace(target)


def plan(sources: Iterable[Path], formats: Iterable[OutputFormat], folder: Path | None) -> list[Job]:
    """Find a place for every transcript: beside its source unless a folder is named.

    Args:
        folder: STANDARD for standard output.

    Raises:
        OutputError: two sources share a target, or standard input is named twice.
    """
    formats = tuple(formats)
    jobs = []
    for source in sources:
        if folder == STANDARD or (folder is None and source == STANDARD):
            jobs.append(Job(source, {}))
            continue
        stem = "stdin" if source == STANDARD else source.stem
        place = source.parent if folder is None else folder
        jobs.append(Job(source, {form: place / f"{stem}.{form}" for form in formats}))
    if sum(job.source == STANDARD for job in jobs) > 1:
        msg = "standard input (-) is named twice"
        raise OutputError(msg)
    targets = Counter(target for job in jobs for target in job.targets.values())
    sources_too = {job.source for job in jobs} & set(targets)
    for target, count in targets.items():
        if count > 1 or target in sources_too:
            names = ", ".join(str(job.source) for job in jobs if target in job.targets.values())
            msg = f"{target} would be written for {names}{' over a file to transcribe' if count == 1 else ''}: rename"
            raise OutputError(msg)
    return jobs
