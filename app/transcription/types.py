"""Value objects of the transcription domain."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class AudioLimits:
    """How much one upload may decode to, checked while it is decoded.

    Attributes:
        max_seconds: of sound.
        max_channels: of the sound stream.
        min_rate, max_rate: sample rates in Hz, as the decoder finds them.
        max_decoded_bytes: samples of all channels as the decoder gives them. The default holds 4 h of 48 kHz stereo
            as 32-bit samples, what AAC decodes to (5.5 GB); nothing near it is ever held in memory.
    """

    max_seconds: float = 4 * 3600.0
    max_channels: int = 8
    min_rate: int = 4_000
    max_rate: int = 192_000
    max_decoded_bytes: int = 8 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparationPlan:
    """How an upload is decoded and cut.

    Attributes:
        max_samples, target_samples: of a segment, see `segmentation.cut`.
        brief_samples: a file with more of them is long, and may have to wait for others of its kind.
        separate: keep the channels and find the segments of each; else they are mixed.
        skip_silence: give the model nothing but speech.
    """

    limits: AudioLimits
    max_samples: int
    target_samples: int
    brief_samples: int
    separate: bool = False
    skip_silence: bool = True


@dataclass(frozen=True, slots=True, order=True)
class SegmentSpan:
    """A stretch of a waveform in samples, end excluded.

    Attributes:
        channel: index in the waveform.
    """

    start: int
    end: int
    channel: int = 0

    def overlaps(self, following: Self) -> bool:
        """Whether a later span begins before this one ends, on the same channel."""
        return self.channel == following.channel and following.start < self.end


@dataclass(frozen=True, slots=True)
class AudioWarning:
    """Something about the sound that its owner should know, though it could be used.

    Attributes:
        code: stable, for programs.
        message: for people.
    """

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedAudio:
    """An upload, decoded and cut.

    Attributes:
        n_samples: of each channel, at SAMPLE_RATE.
        n_channels: of the waveform: 1 for a mix.
        seconds: the same as a duration.
        segments: what to send to the engine, in order; empty where nothing is said.
        warnings: about the sound, in no order.
        decode_seconds: that decoding took, reading and writing of the files included.
        segment_seconds: that finding the segments took.
    """

    n_samples: int
    n_channels: int
    seconds: float
    segments: tuple[SegmentSpan, ...]
    warnings: tuple[AudioWarning, ...]
    decode_seconds: float
    segment_seconds: float


@dataclass(frozen=True, slots=True)
class Postponed:
    """An upload that was not decoded yet, as it is long and others of its kind are being decoded.

    Attributes:
        seconds: that it is thought to have.
    """

    seconds: float
