"""What a decode worker does. Runs in a process of its own, which imports neither an engine nor HTTP.

Input bytes are hostile until decoded, so the process is disposable: it may crash, hang or be killed, has no network
where the machine allows that, and cannot take more than a fixed amount of memory, see `isolation`. The service imports
this module too, to name its functions, and has no use for the libraries that they use: those are imported inside.
"""

import io
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from app.transcription.exceptions import CorruptAudioError
from app.transcription.isolation import MEMORY_GROWTH, allow_processor_time, limit
from app.transcription.types import AudioWarning, Postponed, PreparationPlan, PreparedAudio
from engine import messages
from engine.interface import SAMPLE_RATE

NO_SPEECH = AudioWarning(
    "no_speech",
    "No speech was found, so the text is empty. Where somebody speaks all the same, tell the operator: "
    "OMNIHEAR_GUARDS_SILENCE=false gives the model all sound.",
)

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
    from app.transcription.audio import decode
    from app.transcription.segmentation import SpeechDetector, cut, merge_channels

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
    """Do once, before workers are forked, what each would have to do: load decoders and speech model."""
    from app.transcription.audio import audio_decoders
    from app.transcription.segmentation import SpeechDetector

    audio_decoders()
    SpeechDetector()


def serve(connection: socket.socket) -> None:
    """Run what the service asks for, one thing at a time, until it closes the connection."""
    limit()
    own = os.pidfd_open(os.getpid())
    socket.send_fds(connection, [b"w"], [own])
    os.close(own)

    def ask(question: object) -> object:
        connection.sendall(messages.pack(("asks", question)))
        return messages.receive(connection)

    with suppress(EOFError, BrokenPipeError):
        while True:
            function, args, asks, seconds = messages.receive(connection)
            allow_processor_time(seconds)
            try:
                reply = messages.pack(("done", function(*args, ask) if asks else function(*args)))
            except Exception as error:  # handed over, not swallowed
                reply = messages.pack(("failed", error))
            connection.sendall(reply)
