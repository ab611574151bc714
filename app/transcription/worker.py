"""What a decode worker does. Runs in a process of its own, which imports neither an engine nor HTTP.

Input bytes are hostile until decoded, so the process is disposable: it may crash, hang or be killed, it writes
nothing but the file it was told to, and cannot take more than a fixed amount of memory.
"""

import io
import os
import re
import resource
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from app.transcription import wire
from app.transcription.audio import decode
from app.transcription.exceptions import CorruptAudioError
from app.transcription.segmentation import SpeechDetector, cut, merge_channels
from app.transcription.types import AudioWarning, Postponed, PreparationPlan, PreparedAudio
from engine.interface import SAMPLE_RATE

NO_SPEECH = AudioWarning(
    "no_speech",
    "No speech was found, so the text is empty. Where somebody speaks all the same, tell the operator: "
    "OMNIHEAR_GUARDS_SILENCE=false gives the model all sound.",
)
MEMORY_GROWTH = 1 << 30  # bytes a worker may take beyond its libraries; a decode needs some tens of MiB
NICENESS = 5  # decoding is work in the background: the loop that answers and the engine that it feeds go first

# How long a file is, is guessed from the share of its bytes that the first seconds took: headers lie, bytes do not.
# FFmpeg reads ahead, so the guess is too low at first; where it says several times too long all the same, it is long.
CLUE_SAMPLES = 2 * SAMPLE_RATE
CLEARLY_LONG = 3.0

MayGoOn = Callable[[float], bool]
"""Takes the seconds that a long file is thought to have; says whether to decode all of it now."""


def prepare(
    source: str, target: str, plan: PreparationPlan, may_go_on: MayGoOn | None = None
) -> PreparedAudio | Postponed:
    """Decode one file to another and find the speech in it, in one pass and in bounded memory.

    Args:
        source: the upload.
        target: receives little-endian float32 samples at SAMPLE_RATE, channels interleaved, without a header.
        may_go_on: asked once, when the file turns out to be longer than `plan.brief_samples`, or clearly will.

    Raises:
        InvalidInputError: as `decode` does.
        OSError: the files cannot be read or written.
    """
    warnings: list[AudioWarning] = []
    detectors: list[SpeechDetector] = []
    n_samples = 0
    segment_seconds = 0.0
    n_bytes = Path(source).stat().st_size
    began = time.perf_counter()
    try:
        with Path(source).open("rb", buffering=0) as upload, Path(target).open("wb") as waveform:
            for block in decode(io.BufferedReader(upload), plan.limits, warnings.append, mix=not plan.separate):
                waveform.write(block.T.astype("<f4", copy=False).tobytes())
                n_samples += block.shape[1]
                paused = time.perf_counter()
                detectors = detectors or [SpeechDetector() for _ in block]
                for detector, samples in zip(detectors, block, strict=True):
                    detector.feed(samples)
                segment_seconds += time.perf_counter() - paused
                if may_go_on is not None and n_samples > CLUE_SAMPLES:
                    expected = n_samples * max(1.0, n_bytes / max(1, upload.tell()))
                    if n_samples > plan.brief_samples or expected > CLEARLY_LONG * plan.brief_samples:
                        if not may_go_on(expected / SAMPLE_RATE):
                            return Postponed(expected / SAMPLE_RATE)
                        may_go_on = None
        paused = time.perf_counter()
        segments = merge_channels(
            [
                cut(detector.finish(), plan.max_samples, plan.target_samples, skip_silence=plan.skip_silence)
                for detector in detectors
            ]
        )
        if not segments:
            warnings.append(NO_SPEECH)
        ended = time.perf_counter()
    except MemoryError:
        raise CorruptAudioError(
            f"The sound cannot be decoded in {MEMORY_GROWTH >> 20} MiB of memory.", param="audio"
        ) from None
    segment_seconds += ended - paused
    return PreparedAudio(
        n_samples=n_samples,
        n_channels=len(detectors),
        seconds=n_samples / SAMPLE_RATE,
        segments=segments,
        warnings=tuple(warnings),
        decode_seconds=ended - began - segment_seconds,
        segment_seconds=segment_seconds,
    )


def load() -> None:
    """Do once, before workers are forked, what each would have to do: load the speech model's libraries and itself."""
    SpeechDetector()


def serve(connection: socket.socket) -> None:
    """Run what the service asks for, one thing at a time, until it closes the connection."""
    _isolate()
    own = os.pidfd_open(os.getpid())
    socket.send_fds(connection, [b"w"], [own])
    os.close(own)

    def ask(question: object) -> object:
        connection.sendall(wire.pack(("asks", question)))
        return wire.receive(connection)

    with suppress(EOFError, BrokenPipeError):
        while True:
            function, args, asks = wire.receive(connection)
            try:
                reply = wire.pack(("done", function(*args, ask) if asks else function(*args)))
            except Exception as error:  # handed over, not swallowed
                reply = wire.pack(("failed", error))
            connection.sendall(reply)


def _isolate() -> None:
    """Make this process safe to lose and unable to disturb its parent."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # native code prints now and then
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    os.nice(NICENESS)
    # A crash in a decoder is expected now and then; a core file would hold the caller's sound.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = re.search(r"^VmData:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    if pages is not None:
        limit = int(pages[1]) * 1024 + MEMORY_GROWTH
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
