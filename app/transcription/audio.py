"""From the bytes of a file to samples, in a stream: FFmpeg's libraries (PyAV) decode, libsoxr resamples.

Bytes alone are trusted: no file name, no declared type, no length in a header. FFmpeg may use the demuxers of the
served containers and audio decoders only, and can open nothing but the file it is given, so playlists and
references to other files lead nowhere. Memory is bounded whatever comes; limits hold while decoding.
"""

import functools
import io
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO

import av
import numpy as np
import soxr
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.codec import Codec
from av.codec.codec import UnknownCodecError
from av.container import InputContainer
from numpy.typing import NDArray

from app.transcription.exceptions import (
    CorruptAudioError,
    EmptyAudioError,
    Limit,
    MalformedRequestError,
    NoAudioStreamError,
    NotAudioError,
    TooLargeError,
)
from app.transcription.mixing import Channels, Downmix, Normaliser
from app.transcription.placeholders import corrections
from app.transcription.sniffing import HEAD_BYTES, Looks, describe
from app.transcription.types import AudioLimits, AudioWarning
from engine.interface import SAMPLE_RATE

if TYPE_CHECKING:
    from av.packet import Packet

# FFmpeg's names of the demuxers: mov is MP4, M4A and 3GP, matroska is WebM, asf is WMA, aac is ADTS.
DEMUXERS = ("wav", "w64", "flac", "mp3", "ogg", "mov", "matroska", "aac", "amr", "asf", "aiff", "caf", "au")
SERVED = "wav, flac, mp3, ogg, opus, m4a, mp4, webm, aac, amr, wma, aiff, caf and au"

SHORTEST_FILE = 64  # bytes; less ends inside the header of any container
BLOCK_SECONDS = 0.5  # gathered before mixing and resampling, whose cost is by the call
# A player would show a wrong length by this much: neither codec padding nor rounding of timestamps.
MISMATCH_SECONDS, MISMATCH_SHARE = 1.0, 0.02
ESTIMATING = ("mp3", "aac", "amr", "ogg")  # demuxers that guess the length from the bytes that are there
# In which FFmpeg looks for DTS that is declared as PCM. It would take 32, a third of what a clip of 10 s takes.
PROBE_PACKETS = "8"
PLACEHOLDER_BYTES = 2**31 - 2**17  # claimed by a header: a stand-in for "not known yet"

Warn = Callable[[AudioWarning], None]


def decode(source: BinaryIO, limits: AudioLimits, warn: Warn, *, mix: bool = True) -> Iterator[Channels]:
    """Yield the sound of a file in blocks at SAMPLE_RATE, each shape = (n_channels, n), n >= 1.

    What can be decoded of a damaged or truncated file is; `warn` then learns of it.

    Args:
        source: seekable, at its start.
        limits: checked as the samples come, before they are processed.
        warn: takes each warning once, at the latest before the iteration ends.
        mix: to one channel; else all are kept, as many as there are at first.

    Raises:
        MalformedRequestError: no bytes, or fewer than any header has.
        NotAudioError, CorruptAudioError, NoAudioStreamError, EmptyAudioError, TooLargeError.
    """
    with _open(source) as container:
        yield from _Decoding(container, _pick_stream(container), limits, warn, mix=mix).blocks()


class _Decoding:
    """One pass over one stream."""

    def __init__(
        self, container: InputContainer, stream: AudioStream, limits: AudioLimits, warn: Warn, *, mix: bool
    ) -> None:
        self._container = container
        self._stream = stream
        self._limits = limits
        self._warn = warn
        self._n_channels = 1 if mix else None  # to yield; None until it is known
        self._normalise = Normaliser(may_be_unscaled=stream.codec_context.name.startswith("pcm_f"))
        self._decoded: Counter[int] = Counter()  # samples by their rate
        self._decoded_bytes = 0
        self._tick = float(stream.time_base or 0)  # seconds; of timestamps
        self._good = self._bad = 0  # packets
        self._begin: float | None = None  # seconds by timestamp
        self._end = 0.0
        self._cancelled = False
        self._cut_off = False

    def blocks(self) -> Iterator[Channels]:
        stream = self._stream
        # Known already, as a rule; what the decoder finds counts.
        self._check_form(stream.codec_context.sample_rate or self._limits.min_rate, stream.codec_context.channels)
        # Audio decoders gain nothing from threads, and a worker has one core.
        stream.codec_context.thread_count = 1
        frames = itertools.groupby(self._frames(), key=lambda frame: (frame.sample_rate, frame.layout.nb_channels))
        n_samples = 0
        # Rate and channels may change inside a stream: chained Ogg, AAC whose extensions appear late.
        for (rate, n_channels), group in frames:
            self._n_channels = self._n_channels or n_channels
            for block in self._convert(group, rate, n_channels, self._n_channels):
                n_samples += block.shape[1]
                yield block
        self._conclude(n_samples)

    def _frames(self) -> Iterator[AudioFrame]:
        """Decode all packets; count those that cannot be."""
        packets = self._container.demux(self._stream)
        while True:
            try:
                packet = next(packets, None)
            except av.FFmpegError:  # the container breaks off
                self._cut_off = True
                packet = None
            if packet is not None and not packet.size:
                if packet.pts is not None:  # empty, which the decoder would take for the end
                    continue
                packet = None  # the end
            if packet is not None and not self._accept(packet):
                self._bad += 1
                continue
            try:
                frames = self._stream.codec_context.decode(packet)
            except av.FFmpegError:
                self._bad += 1
            else:
                self._good += packet is not None
                for frame in frames:
                    if frame.samples:
                        self._check(frame)
                        yield frame
            if packet is None:
                return

    def _accept(self, packet: "Packet[AudioStream]") -> bool:
        """Note the timestamps of a packet; refuse what the decoder would turn into noise."""
        # FFmpeg takes any byte for the head of an AMR frame. RFC 4867, 5.3: the first bit and the last two are zero.
        if self._stream.codec_context.name.startswith("amr") and bytes(packet)[0] & 0x83:
            return False
        if packet.pts is not None and self._tick:
            begin = packet.pts * self._tick
            self._begin = begin if self._begin is None else min(begin, self._begin)
            self._end = max(self._end, begin + (packet.duration or 0) * self._tick)
        return True

    def _check_form(self, rate: int, n_channels: int) -> None:
        limits = self._limits
        if n_channels > limits.max_channels:
            raise TooLargeError(
                f"The sound has {n_channels} channels; up to {limits.max_channels} are accepted. Mix it down.",
                limit=Limit("channels", limits.max_channels, "OMNIHEAR_LIMITS_MAX_CHANNELS"),
            )
        if n_channels < 1:
            raise CorruptAudioError("The sound has no channels. Is its header right?", param="audio")
        if rate > limits.max_rate:
            raise TooLargeError(
                f"The sound has a sample rate of {rate} Hz; up to {limits.max_rate} Hz are accepted. Resample it.",
                limit=Limit("sample rate in Hz", limits.max_rate, "OMNIHEAR_LIMITS_MAX_SAMPLE_RATE"),
            )
        if rate < limits.min_rate:
            raise CorruptAudioError(
                f"The sound has a sample rate of {rate} Hz; {limits.min_rate} Hz is the least that holds speech. "
                "Is its header right?",
                param="audio",
                limit=Limit("least sample rate in Hz", limits.min_rate, "OMNIHEAR_LIMITS_MIN_SAMPLE_RATE"),
            )

    def _check(self, frame: AudioFrame) -> None:
        limits = self._limits
        n_channels = frame.layout.nb_channels
        self._check_form(frame.sample_rate, n_channels)
        self._decoded[frame.sample_rate] += frame.samples
        self._decoded_bytes += frame.samples * n_channels * frame.format.bytes
        if self._seconds() > limits.max_seconds:
            claim = self._claimed_seconds()
            length = f" (by its header {claim:.0f} s)" if claim and claim > limits.max_seconds else ""
            raise TooLargeError(
                f"The sound is longer than {limits.max_seconds:g} s{length}. Send it in parts.",
                limit=Limit("audio seconds", limits.max_seconds, "OMNIHEAR_LIMITS_MAX_AUDIO_SECONDS"),
            )
        if self._decoded_bytes > limits.max_decoded_bytes:
            raise TooLargeError(
                f"The sound decodes to more than {limits.max_decoded_bytes} bytes. Send it in parts, at a lower sample "
                "rate or with fewer channels.",
                limit=Limit("decoded bytes", limits.max_decoded_bytes, "OMNIHEAR_LIMITS_MAX_DECODED_BYTES"),
            )

    def _convert(self, frames: Iterable[AudioFrame], rate: int, n_channels: int, n_wanted: int) -> Iterator[Channels]:
        """Bring frames of one form to SAMPLE_RATE and `n_wanted` channels: 1 mixes, others keep the first ones."""
        mix = Downmix(n_channels, rate)
        # soxr takes and gives shape = (n_samples, n_channels)
        resampler = soxr.ResampleStream(rate, SAMPLE_RATE, n_wanted, dtype="float32", quality="HQ")
        for samples in _gather(frames, round(rate * BLOCK_SECONDS)):
            channels = self._normalise(samples)
            block = mix(channels)[None] if n_wanted == 1 else _fit(channels, n_wanted)
            if rate != SAMPLE_RATE:
                block = resampler.resample_chunk(np.ascontiguousarray(block.T)).reshape(-1, n_wanted).T
            if block.shape[1]:
                yield block
        if rate != SAMPLE_RATE:
            tail = resampler.resample_chunk(np.zeros((0, n_wanted), np.float32), last=True).reshape(-1, n_wanted).T
            if tail.shape[1]:
                yield tail
        self._cancelled |= mix.cancelled

    def _seconds(self) -> float:
        return sum(n_samples / rate for rate, n_samples in self._decoded.items())

    def _claimed_seconds(self) -> float | None:
        """Length by the header, None if it does not say; a claim and no more."""
        if self._container.duration is None:
            return None
        seconds = self._container.duration / 1e6
        size = seconds * (self._stream.codec_context.bit_rate or 0) / 8
        return None if size >= PLACEHOLDER_BYTES else seconds

    def _conclude(self, n_samples: int) -> None:
        """Judge the whole once it is decoded."""
        if self._bad and self._bad >= self._good:
            raise CorruptAudioError(
                f"{self._bad} of {self._bad + self._good} packets of the sound cannot be decoded.", param="audio"
            )
        if not n_samples and (self._bad or self._cut_off):
            raise CorruptAudioError("Nothing of the sound can be decoded.", param="audio")
        if not n_samples:
            raise EmptyAudioError("The file has a sound stream, but no samples in it.", param="audio")
        seconds, warn = self._seconds(), self._warn
        if self._bad:
            warn(AudioWarning("damaged", f"{self._bad} packets could not be decoded; the rest was used."))
        if self._normalise.n_invalid:
            warn(AudioWarning("invalid_samples", f"{self._normalise.n_invalid} samples were no numbers; set to 0."))
        if self._normalise.scale > 1:
            warn(AudioWarning("integer_scale", f"Float samples came up to {self._normalise.scale:.0f}; scaled to 1."))
        if self._cancelled:
            warn(AudioWarning("channels_cancel", "Where the channels cancel each other, the louder one was used."))
        tolerance = max(MISMATCH_SECONDS, MISMATCH_SHARE * seconds)
        claim = None if self._container.format.name in ESTIMATING else self._claimed_seconds()
        stamped = self._end - (self._begin or 0.0)
        if self._cut_off or (claim is not None and claim > max(seconds, stamped) + tolerance):
            length = "" if claim is None else f" of {claim:.1f} s"
            warn(AudioWarning("truncated", f"The file breaks off: {seconds:.1f} s{length} could be decoded."))
        elif stamped > seconds + tolerance:  # the other way round, a chain of files that count from 0 each
            warn(
                AudioWarning(
                    "length_mismatch",
                    f"By its timestamps the sound lasts {stamped:.1f} s, but {seconds:.1f} s were decoded: "
                    "times in the transcript may be off.",
                )
            )


class _Bytes:
    """A file as FFmpeg sees it.

    Has no name, whose extension FFmpeg would take for a hint, and takes seeks past its end for seeks to its end: forged
    offsets can be larger than file systems allow. Sizes that its writer did not know are what is there.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = file.seek(0, io.SEEK_END)
        self._corrections = corrections(file)
        self.read = self._read_corrected if self._corrections else file.read
        self.tell = file.tell

    def _read_corrected(self, size: int = -1) -> bytes:
        begin = self._file.tell()
        data = bytearray(self._file.read(size))
        for at, right in self._corrections.items():
            first, last = max(at, begin), min(at + len(right), begin + len(data))
            if first < last:
                data[first - begin : last - begin] = right[first - at : last - at]
        return bytes(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(min(offset, self._size) if whence == io.SEEK_SET else offset, whence)


def _open(source: BinaryIO) -> InputContainer:
    head = source.read(HEAD_BYTES)
    source.seek(0)
    if not head:
        raise MalformedRequestError("The audio is empty: no bytes came.", param="audio")
    looks = describe(head)
    if looks is not None and not looks.may_be_audio:
        raise NotAudioError(f"This looks like {looks.name}, not like audio. Accepted are {SERVED}.", param="audio")
    try:
        return av.open(
            _Bytes(source),
            "r",
            options={
                "format_whitelist": ",".join(DEMUXERS),
                "codec_whitelist": audio_decoders(),
                "protocol_whitelist": "none",  # there is no protocol of that name
                "max_probe_packets": PROBE_PACKETS,
            },
            metadata_errors="ignore",
        )
    except av.FFmpegError as error:
        raise _explain(looks, len(head)) from error


def _explain(looks: Looks | None, n_bytes: int) -> MalformedRequestError | CorruptAudioError:
    if looks is None:
        return CorruptAudioError(
            "No audio container is recognised: unknown, or its header is missing. Was the beginning cut off? "
            f"Accepted are {SERVED}.",
            param="audio",
        )
    if n_bytes < SHORTEST_FILE:
        return MalformedRequestError(
            f"The audio ends after {n_bytes} bytes, inside the header of {looks.name}. Was it cut off?", param="audio"
        )
    return CorruptAudioError(f"This begins like {looks.name}, but its container header cannot be read.", param="audio")


@functools.cache
def audio_decoders() -> str:
    """Names of FFmpeg's audio decoders: those for pictures and subtitles shall not even look at an upload."""
    names = []
    for name in sorted(av.codecs_available):
        with suppress(UnknownCodecError):  # encoders alone
            if Codec(name, "r").type == "audio":
                names.append(name)
    return ",".join(names)


def _gather(frames: Iterable[AudioFrame], n_samples: int) -> Iterator[Channels]:
    """Join frames of one form to blocks of at least `n_samples`, each shape = (n_channels, n), but for the last."""
    parts, length = [], 0
    for frame in frames:
        parts.append(_samples(frame))
        length += frame.samples
        if length >= n_samples:
            yield np.concatenate(parts, axis=1)
            parts, length = [], 0
    if parts:
        yield np.concatenate(parts, axis=1)


def _fit(channels: Channels, n_wanted: int) -> Channels:
    """The first channels, with silent ones after those that are there."""
    missing = n_wanted - len(channels)
    return np.pad(channels, ((0, missing), (0, 0))) if missing > 0 else channels[:n_wanted]


def _samples(frame: AudioFrame) -> NDArray[Any]:
    """Samples of a frame, shape = (n_channels, n_samples), in the decoder's own type."""
    n_channels = frame.layout.nb_channels
    if frame.format.name == "s64":  # PyAV has no array for it
        return np.frombuffer(bytes(frame.planes[0]), np.int64, frame.samples * n_channels).reshape(-1, n_channels).T
    samples: NDArray[Any] = frame.to_ndarray()
    return samples if frame.format.is_planar else samples.reshape(-1, n_channels).T


def _pick_stream(container: InputContainer) -> AudioStream:
    """The stream that FFmpeg takes for the main one, such as the default language of a film."""
    stream = container.streams.best("audio") or next(iter(container.streams.audio), None)
    if stream is None:
        kinds = ", ".join(sorted({stream.type for stream in container.streams})) or "nothing"
        raise NoAudioStreamError(f"The file holds no sound, only {kinds}.", param="audio")
    if not isinstance(stream, AudioStream) or stream.codec_context is None:
        raise CorruptAudioError("The sound is coded in a way that cannot be told or is not known.", param="audio")
    return stream
