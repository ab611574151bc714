"""What a decode worker does. Runs in a process of its own, which imports neither an engine nor HTTP.

Input bytes are hostile until decoded, so the process is disposable: it may crash, hang or be killed, it writes
nothing but the file it was told to, and cannot take more than a fixed amount of memory.
"""

import functools
import io
import os
import re
import resource
import sys
import time
from pathlib import Path

from app.transcription.audio import decode
from app.transcription.exceptions import CorruptAudioError
from app.transcription.segmentation import SpeechDetector, cut, merge_channels
from app.transcription.types import AudioWarning, PreparationPlan, PreparedAudio
from engine.interface import SAMPLE_RATE

MEMORY_GROWTH = 1 << 30  # bytes a worker may take beyond its libraries; a decode needs some tens of MiB


def prepare(source: str, target: str, plan: PreparationPlan) -> PreparedAudio:
    """Decode one file to another and find the speech in it, in one pass and in bounded memory.

    Args:
        source: the upload.
        target: receives little-endian float32 samples at SAMPLE_RATE, channels interleaved, without a header.

    Raises:
        InvalidInputError: as `decode` does.
        OSError: the files cannot be read or written.
    """
    isolate()
    warnings: list[AudioWarning] = []
    detectors: list[SpeechDetector] = []
    n_samples = 0
    segment_seconds = 0.0
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
        paused = time.perf_counter()
        segments = merge_channels(
            [cut(detector.finish(), plan.max_samples, plan.target_samples) for detector in detectors]
        )
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


@functools.cache
def isolate() -> None:
    """Make this process safe to lose and unable to disturb its parent. Once is enough; also loads the speech model."""
    _detach_output()
    # A crash in a decoder is expected now and then; a core file would hold the caller's sound.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = re.search(r"^VmData:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    if pages is not None:
        limit = int(pages[1]) * 1024 + MEMORY_GROWTH
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    SpeechDetector()


def _detach_output() -> None:
    """Move the pipe to the parent away from descriptor 1, and send descriptors 1 and 2 nowhere.

    `anyio.to_process` replaces `sys.stdout`, but answers through descriptor 1, where a line printed by native code
    would break its protocol; and nobody reads the pipe behind descriptor 2, which would block the worker once full.
    """
    stream = sys.__stdout__
    replies = stream.buffer if stream is not None else None
    if not isinstance(replies, io.FileIO) or replies.fileno() != 1:
        return  # buffered: not a worker of anyio's
    moved = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    io.FileIO.__init__(replies, moved, "wb", closefd=False)  # in place: anyio's code holds this very object
