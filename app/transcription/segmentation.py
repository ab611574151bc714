"""From a waveform to the stretches of it that hold speech, each short enough for one engine request.

Two halves: `SpeechDetector` runs Silero's voice-activity model over a stream of blocks, `cut` is a pure function from
its result to spans. Conventions (window, context, hysteresis, order of the steps) are those of silero_vad 6.2.3,
`utils_vad.py`, and of `faster_whisper/vad.py`; the packing is our own.
"""

import functools
import importlib.util
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.transcription.types import SegmentSpan
from engine.interface import SAMPLE_RATE, Waveform

# Before the import: official builds report to their makers otherwise, from 1.29 on (its docs/Privacy.md).
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import onnxruntime

WINDOW = 512  # samples a probability stands for, fixed by the model: 32 ms
CONTEXT = 64  # samples of the window before that the model sees again
BATCH = 128  # windows for one call: from 32 up the cost per window is the same, and 4 s of audio are quick to gather

# The model misses speech whose loudest syllables are under -40 dBFS, so it hears quiet sound louder.
QUIET_LEVEL = -25.0  # dBFS of the loudest window, up to which quiet sound is raised
MAX_GAIN = 30.0  # dB: noise at -60 dBFS comes to -30, which the model still knows for noise
FORGETTING = 3.0  # dB by which the loudest window counts less with each batch: a pause does not raise its noise at once

THRESHOLD = 0.5  # speech begins; Silero's default. Tones, hum, chords and noise up to -6 dBFS stay under 0.45
THRESHOLD_END = 0.35  # speech ends; Silero's default of 0.15 less
MIN_SPEECH = 3 * WINDOW  # shorter blips are clicks; Silero's 250 ms would lose a quick "yes"
MIN_PAUSE = 3 * WINDOW  # a shorter dip is a stop consonant inside a word
LONG_PAUSE = 2 * SAMPLE_RATE  # always ends a segment: silence costs encoder time and invites invented words
PAD = 3 * SAMPLE_RATE // 10  # speech kept on either side: the model rises late on soft consonants and falls early
MIN_SEGMENT = SAMPLE_RATE  # a lone word gets this much audio, as available: models are trained on a second and more
MAX_SEGMENT = 30 * SAMPLE_RATE
OVERLAP = 2 * SAMPLE_RATE  # heard twice where speech has to be cut without a pause: a word is shorter than half of it
COST_OF_PAUSE = 0.5 * SAMPLE_RATE  # a cut at a pause of half a second costs as much as a span; at 50 ms ten times that
COST_OF_EXCESS = 4.0  # a span of twice the length that is aimed at costs four spans more
SILENCE_LEVEL = -120.0  # dBFS given to digital silence, so that levels stay finite


@dataclass(frozen=True, slots=True)
class SpeechActivity:
    """What the detector heard, window by window.

    Attributes:
        probabilities: of speech, 0 to 1, shape = (n_windows,); the last window may reach past the end.
        levels: root mean square in dBFS, shape = (n_windows,).
        n_samples: length of the waveform.
    """

    probabilities: NDArray[np.float32]
    levels: NDArray[np.float32]
    n_samples: int


class SpeechDetector:
    """Silero's voice-activity model over one stream of mono blocks at SAMPLE_RATE.

    Runs the export that takes many windows in one call (`silero_vad_16k_sequence.onnx`): same probabilities bit for
    bit as the one that takes them singly, at half the time. Quiet sound is raised before, see QUIET_LEVEL. Memory does
    not grow but for 8 bytes a window.
    """

    def __init__(self) -> None:
        self._session = _load_model()
        self._hidden = np.zeros((1, 1, 128), np.float32)
        self._cell = np.zeros((1, 1, 128), np.float32)
        self._pending = np.zeros(CONTEXT, np.float32)  # context of the next window, then samples not yet heard
        self._probabilities: list[NDArray[np.float32]] = []
        self._levels: list[NDArray[np.float32]] = []
        self._loudest = -np.inf  # dBFS
        self._n_samples = 0

    def feed(self, block: Waveform) -> None:
        """Hear the next samples, shape = (n,), n >= 0."""
        self._n_samples += len(block)
        self._pending = np.concatenate((self._pending, block))
        n_windows = (len(self._pending) - CONTEXT) // WINDOW
        n_windows -= n_windows % BATCH
        for _ in range(0, n_windows, BATCH):
            self._run(BATCH)

    def finish(self) -> SpeechActivity:
        """Hear the tail, with zeros up to a whole window, and return everything heard."""
        n_windows = math.ceil((len(self._pending) - CONTEXT) / WINDOW)
        if n_windows:
            missing = CONTEXT + n_windows * WINDOW - len(self._pending)
            self._pending = np.concatenate((self._pending, np.zeros(missing, np.float32)))
            self._run(n_windows)
        empty = np.zeros(0, np.float32)
        return SpeechActivity(
            probabilities=np.concatenate((empty, *self._probabilities)),
            levels=np.concatenate((empty, *self._levels)),
            n_samples=self._n_samples,
        )

    def _run(self, n_windows: int) -> None:
        used = n_windows * WINDOW
        # [CONTEXT + used] -> [n_windows, CONTEXT + WINDOW], neighbours sharing CONTEXT samples
        windows = np.lib.stride_tricks.sliding_window_view(self._pending[: CONTEXT + used], CONTEXT + WINDOW)[::WINDOW]
        power = np.mean(np.square(windows[:, CONTEXT:]), axis=1)
        levels = 10 * np.log10(np.maximum(power, np.float32(10 ** (SILENCE_LEVEL / 10))))
        self._loudest = max(float(levels.max()), self._loudest - FORGETTING)
        gain = 10 ** (min(max(QUIET_LEVEL - self._loudest, 0.0), MAX_GAIN) / 20)
        probabilities, self._hidden, self._cell = self._session.run(
            ["speech_probs", "hn", "cn"],
            {"input": windows * np.float32(gain), "h": self._hidden, "c": self._cell},
        )
        self._probabilities.append(probabilities)
        self._levels.append(levels)
        self._pending = self._pending[used:]


@functools.cache
def _load_model() -> onnxruntime.InferenceSession:
    # Found without importing silero_vad, which imports torch: seconds and hundreds of megabytes for every worker.
    spec = importlib.util.find_spec("silero_vad")
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError("silero_vad is not installed; its model is needed", name="silero_vad")
    path = Path(spec.submodule_search_locations[0]) / "data" / "silero_vad_16k_sequence.onnx"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # parallel over requests, not inside one
    options.log_severity_level = 3  # errors; the export warns about unused initialisers
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def cut(
    activity: SpeechActivity,
    max_samples: int = MAX_SEGMENT,
    target_samples: int | None = None,
    *,
    skip_silence: bool = True,
) -> tuple[SegmentSpan, ...]:
    """Cover all speech with few spans that are cut at long pauses.

    Spans are ordered, lie inside the waveform and keep up to PAD around speech. Where speech runs on without a pause
    for longer than `max_samples`, it is cut at its quietest, least speech-like point near the limit; there, and only
    there, neighbours overlap, by OVERLAP with the cut in its middle.

    Args:
        activity: of the whole waveform.
        max_samples: length of the longest span, at least 4 s.
        target_samples: length that spans should have at most where the pauses allow, None for `max_samples`. A large
            model gains from long spans; a small one that was trained on sentences does better with some seconds.
        skip_silence: leave out what is not speech; otherwise all of the waveform counts as speech.

    Returns:
        No spans where there is no speech.
    """
    if max_samples < 4 * SAMPLE_RATE:
        raise ValueError(f"max_samples must be at least {4 * SAMPLE_RATE}, is {max_samples}")
    speech = _find_speech(activity) if skip_silence else _everything(activity)
    runs = _split_long(speech, activity, max_samples - 2 * max(PAD, OVERLAP // 2))
    padded = _pad(runs, activity.n_samples)
    return tuple(_widen(_pack(runs, padded, max_samples, target_samples or max_samples), activity.n_samples))


def merge_channels(channels: Sequence[Sequence[SegmentSpan]]) -> tuple[SegmentSpan, ...]:
    """The spans of all channels in order of time, but none between two of a channel that overlap."""
    ordered: list[tuple[SegmentSpan, SegmentSpan]] = []  # where the chain of overlaps begins, span
    for channel, spans in enumerate(channels):
        chain = before = None
        for span in (replace(each, channel=channel) for each in spans):
            chain = chain if chain is not None and before is not None and before.overlaps(span) else span
            ordered.append((chain, span))
            before = span
    return tuple(span for _, span in sorted(ordered))


def _everything(activity: SpeechActivity) -> list[SegmentSpan]:
    return [SegmentSpan(0, activity.n_samples)] if activity.n_samples else []


def _find_speech(activity: SpeechActivity) -> list[SegmentSpan]:
    """Runs of speech by hysteresis, with dips under MIN_PAUSE closed and blips under MIN_SPEECH dropped."""
    runs: list[SegmentSpan] = []
    start = dip = None  # where the open run began, and the dip in it that may become its end
    for index, probability in enumerate(activity.probabilities.tolist()):
        sample = index * WINDOW
        if probability >= THRESHOLD:
            start = sample if start is None else start
            dip = None
        elif start is not None and (dip is not None or probability < THRESHOLD_END):
            dip = sample if dip is None else dip
            if sample + WINDOW - dip >= MIN_PAUSE:
                runs.append(SegmentSpan(start, dip))
                start = dip = None
    if start is not None:
        runs.append(SegmentSpan(start, len(activity.probabilities) * WINDOW if dip is None else dip))
    # Measured in whole windows, though the last one may be there in part only.
    return [SegmentSpan(r.start, min(r.end, activity.n_samples)) for r in runs if r.end - r.start >= MIN_SPEECH]


def _split_long(runs: Sequence[SegmentSpan], activity: SpeechActivity, limit: int) -> list[SegmentSpan]:
    """Cut runs over `limit` where speech is least likely and quietest: 10 dB weigh as much as a fifth of certainty."""
    cost = _smooth(activity.levels / 10 + 5 * activity.probabilities)
    parts: list[SegmentSpan] = []
    for run in runs:
        start = run.start
        while run.end - start > limit:
            # Not before half of the limit, so that the parts stay long; not so late that the rest is a sliver.
            first = -(-(start + limit // 2) // WINDOW)
            last = min(start + limit, run.end - MIN_SEGMENT) // WINDOW
            first = min(first, last)
            middle = (first + int(np.argmin(cost[first : last + 1]))) * WINDOW
            parts.append(SegmentSpan(start, middle))
            start = middle
        parts.append(SegmentSpan(start, run.end))
    return parts


def _smooth(values: NDArray[np.floating]) -> NDArray[np.floating]:
    """Mean of four windows, two on either side of each window's start; shape = (n_windows,) in and out."""
    if not len(values):
        return values
    padded = np.pad(values, (2, 1), mode="edge")
    return (padded[:-3] + padded[1:-2] + padded[2:-1] + padded[3:]) / 4


def _pad(runs: Sequence[SegmentSpan], n_samples: int) -> list[SegmentSpan]:
    """Give each run up to PAD on either side, and neighbours half of the pause between them at most.

    Where there is no pause between them, both get half of OVERLAP beyond the cut.
    """
    padded = [SegmentSpan(max(run.start - PAD, 0), min(run.end + PAD, n_samples)) for run in runs]
    for index, (left, right) in enumerate(pairwise(runs)):
        middle = (left.end + right.start) // 2
        if left.end == right.start:
            low, high = max(left.start, middle - OVERLAP // 2), min(right.end, middle + OVERLAP // 2)
        else:
            low, high = max(right.start - PAD, middle), min(left.end + PAD, middle)
        padded[index] = replace(padded[index], end=high)
        padded[index + 1] = replace(padded[index + 1], start=low)
    return padded


def _pack(
    runs: Sequence[SegmentSpan], padded: Sequence[SegmentSpan], max_samples: int, target_samples: int
) -> list[SegmentSpan]:
    """Join neighbours into spans of at most `max_samples`: the cheapest partition, by dynamic programming.

    A span costs 1, plus what its length is over `target_samples`, plus the shortness of the pause it begins after. So
    few spans near the target are best, but not at the price of a cut between two words of a sentence. Time is
    proportional to n_runs and to the runs that fit into `max_samples`.
    """
    best = [0.0]  # cost of the cheapest partition of the first k runs
    first: list[int] = []  # where the last span of that partition begins, k >= 1
    for last in range(len(runs)):
        cheapest, choice = math.inf, last
        for start in range(last, -1, -1):
            length = padded[last].end - padded[start].start
            if length > max_samples:
                break
            pause = runs[start].start - runs[start - 1].end if start else LONG_PAUSE
            excess = max(0.0, length / target_samples - 1)
            cost = best[start] + 1 + COST_OF_EXCESS * excess + COST_OF_PAUSE / max(pause, WINDOW)
            if cost < cheapest:
                cheapest, choice = cost, start
            if pause >= LONG_PAUSE:
                break
        best.append(cheapest)
        first.append(choice)
    spans: list[SegmentSpan] = []
    end = len(runs)
    while end:
        start = first[end - 1]
        spans.append(SegmentSpan(padded[start].start, padded[end - 1].end))
        end = start
    return spans[::-1]


def _widen(spans: Sequence[SegmentSpan], n_samples: int) -> list[SegmentSpan]:
    """Give spans under MIN_SEGMENT what surrounds them, up to the middle of the way to their neighbours."""
    middles = [(left.end + right.start) // 2 for left, right in pairwise(spans)]
    widened: list[SegmentSpan] = []
    for span, before, after in zip(spans, [0, *middles], [*middles, n_samples], strict=False):
        low, high = min(before, span.start), max(after, span.end)  # of spans that overlap neither gives way
        missing = max(0, MIN_SEGMENT - (span.end - span.start))
        start = max(low, span.start - missing // 2)
        end = min(high, max(span.end, start + MIN_SEGMENT))
        widened.append(SegmentSpan(max(low, min(span.start, end - MIN_SEGMENT)), end))
    return widened
