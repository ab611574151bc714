"""Decoding: every served format, headers that lie, limits, and what is no audio."""

import io
import math
import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from app.transcription.audio import SERVED, decode
from app.transcription.exceptions import (
    CorruptAudioError,
    EmptyAudioError,
    InvalidInputError,
    MalformedRequestError,
    NoAudioStreamError,
    NotAudioError,
    TooLargeError,
)
from app.transcription.types import AudioLimits, AudioWarning
from engine.interface import SAMPLE_RATE
from tests import audio_factory as factory
from tests.audio_factory import Samples, wav

CLIP = "library-us-female.wav"
SECOND = factory.pcm16(factory.sine(1.0))


def decode_all(data: bytes, limits: AudioLimits | None = None) -> tuple[Samples, list[str]]:
    """The whole waveform and the codes of the warnings."""
    warnings: list[AudioWarning] = []
    blocks = list(decode(io.BytesIO(data), limits or AudioLimits(), warnings.append))
    assert all(block.dtype == np.float32 and block.shape[0] == 1 and block.shape[1] for block in blocks)
    return np.concatenate(blocks, axis=1)[0], [warning.code for warning in warnings]


def similarity(left: Samples, right: Samples) -> tuple[float, int]:
    """Greatest normalised correlation, and the samples by which `left` is late there."""
    size = 1 << (len(left) + len(right)).bit_length()
    products = np.fft.irfft(np.fft.rfft(left, size) * np.conj(np.fft.rfft(right, size)))
    lag = int(products.argmax())
    power = float(left.astype(np.float64) @ left) * float(right.astype(np.float64) @ right)
    return float(products[lag]) / math.sqrt(power), lag if lag < size // 2 else lag - size


@pytest.mark.parametrize("name", [*factory.FORMATS, *factory.VARIANTS])
def test_a_clip_survives_every_format(name: str) -> None:
    original = factory.clip(CLIP)
    decoded, warnings = decode_all(factory.encode(original, name))
    likeness, late = similarity(decoded, original)
    # AMR models a voice at 12 kbit/s and telephone bandwidth, and does not keep its phase.
    assert likeness > (0.7 if name in {"amr", "3gp"} else 0.97)
    assert abs(late) < 0.1 * SAMPLE_RATE
    assert abs(len(decoded) - len(original)) < 0.2 * SAMPLE_RATE
    assert abs(20 * math.log10(decoded.std() / original.std())) < 1
    assert warnings == []


def test_the_formats_that_are_named_are_the_formats_that_are_tested() -> None:
    assert set(SERVED.replace(" and", ",").replace(",", "").split()) == set(factory.FORMATS)


@pytest.mark.parametrize("size", [0, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
@pytest.mark.parametrize("riff", [0, None, 0xFFFFFFFF])
def test_placeholder_sizes_mean_up_to_the_end(size: int, riff: int | None) -> None:
    listed = factory.chunk(b"LIST", b"INFOISFT" + struct.pack("<I", 14) + b"Lavf58.76.100\0")
    decoded, warnings = decode_all(wav(SECOND, riff_size=riff, data_size=size, before_data=listed))
    assert len(decoded) == SAMPLE_RATE
    assert np.abs(decoded - factory.sine(1.0)).max() < 1e-3
    assert warnings == []


@pytest.mark.parametrize(
    "data",
    [
        wav(SECOND, extensible=True),
        wav(SECOND, before_fmt=factory.chunk(b"JUNK", bytes(28)) + factory.chunk(b"bext", bytes(603))),
        wav(SECOND, before_data=factory.chunk(b"fact", bytes(4)) + factory.chunk(b"LIST", bytes(501))),
        wav(SECOND) + factory.chunk(b"id3 ", bytes(300)),
        wav(factory.sine(1.0).tobytes(), tag=3, bits=32),
        wav(factory.sine(1.0).tobytes(), tag=3, bits=32, extensible=True),
    ],
    ids=["extensible", "chunks before fmt", "chunks before data", "chunk behind data", "float", "extensible float"],
)
def test_unusual_wav_headers_are_read(data: bytes) -> None:
    decoded, _ = decode_all(data)
    assert len(decoded) == SAMPLE_RATE
    assert np.abs(decoded - factory.sine(1.0)).max() < 1e-3


def test_samples_at_the_target_rate_are_not_touched() -> None:
    decoded, _ = decode_all(wav(SECOND))
    assert np.array_equal(decoded, np.frombuffer(SECOND, "<i2") / np.float32(32768))


@pytest.mark.parametrize("rate", [4_000, 8_000, 11_025, 22_050, 44_100, 48_000, 96_000, 191_999, 192_000])
def test_resampling_keeps_length_and_wave(rate: int) -> None:
    tone = factory.sine(3.0, rate=rate, frequency=440.0)
    decoded, _ = decode_all(wav(factory.pcm16(tone), rate=rate))
    assert abs(len(decoded) - 3 * SAMPLE_RATE) <= 1
    middle = slice(SAMPLE_RATE // 2, 5 * SAMPLE_RATE // 2)  # filters ring at the edges
    assert np.abs(decoded[middle] - factory.sine(3.0)[middle]).max() < 1e-3


def test_resampling_does_not_fold_high_tones_back() -> None:
    decoded, _ = decode_all(wav(factory.pcm16(factory.sine(2.0, rate=48_000, frequency=9_500.0)), rate=48_000))
    assert np.abs(decoded[SAMPLE_RATE // 2 : -SAMPLE_RATE // 2]).max() < 1e-3


@pytest.mark.parametrize(("channels", "name"), [(1, "mono"), (2, "stereo"), (6, "5.1"), (8, "7.1")])
def test_channels_are_mixed_by_their_mean(channels: int, name: str) -> None:
    voices = np.stack([factory.sine(2.0, frequency=200.0 + 130 * index, amplitude=0.8) for index in range(channels)])
    decoded, warnings = decode_all(factory.encode(voices, factory.Format("wav", "pcm_s16le", layout=name)))
    assert np.abs(decoded - voices.mean(axis=0)).max() < 2e-3
    assert warnings == []


def test_both_halves_of_a_conversation_on_two_channels_are_heard() -> None:
    half = factory.clip(CLIP)
    quiet = np.zeros_like(half)
    stereo = np.stack([np.concatenate([half, quiet]), np.concatenate([quiet, half])])
    decoded, _ = decode_all(wav(factory.pcm16(stereo), channels=2))
    assert np.abs(decoded - np.concatenate([half, half]) / 2).max() < 1e-3


def test_channels_that_cancel_do_not_silence_the_voice() -> None:
    voice = factory.clip(CLIP)
    decoded, warnings = decode_all(wav(factory.pcm16(np.stack([voice, -voice])), channels=2))
    assert np.abs(decoded - voice).max() < 1e-3
    assert warnings == ["channels_cancel"]


def test_samples_that_are_no_numbers_become_silence() -> None:
    samples = factory.sine(1.0)
    samples[100:200] = np.nan
    samples[300] = np.inf
    samples[400] = -np.inf
    samples[500] = 3e38
    decoded, warnings = decode_all(wav(samples.tobytes(), tag=3, bits=32))
    assert warnings == ["invalid_samples"]
    assert not decoded[[*range(100, 200), 300, 400, 500]].any()
    assert np.array_equal(decoded[501:], samples[501:])


def test_float_samples_in_integer_units_are_scaled() -> None:
    decoded, warnings = decode_all(wav((factory.sine(1.0) * 32768).tobytes(), tag=3, bits=32))
    assert warnings == ["integer_scale"]
    assert np.abs(decoded - factory.sine(1.0)).max() < 1e-6


@pytest.mark.parametrize("name", ["flac", "aac", "mp3", "webm", "wav", "mp4 fragmented, to a pipe"])
def test_a_truncated_file_is_decoded_as_far_as_it_goes(name: str) -> None:
    original = factory.clip(CLIP)
    data = factory.encode(original, name)
    decoded, _ = decode_all(data[: len(data) * 2 // 3])
    assert 0.4 * len(original) < len(decoded) < 0.8 * len(original)
    assert similarity(decoded, original[: len(decoded)])[0] > 0.9


@pytest.mark.parametrize("name", ["flac", "aiff", "mka"])
def test_a_truncated_file_that_knew_its_length_says_so(name: str) -> None:
    data = factory.encode(factory.clip(CLIP), name)
    assert "truncated" in decode_all(data[: len(data) // 2])[1]


@pytest.mark.parametrize("name", ["flac", "mp3", "aac", "opus", "webm", "m4a", "wma"])
def test_damage_in_the_middle_is_passed_over(name: str) -> None:
    original = factory.clip(CLIP)
    data = bytearray(factory.encode(original, name))
    middle = len(data) // 2
    data[middle : middle + 500] = bytes(500)
    decoded, _ = decode_all(bytes(data))
    assert len(decoded) > 0.6 * len(original)  # WebM loses a whole cluster
    begin = decoded[: len(decoded) // 3]
    assert similarity(begin, original[: len(begin)])[0] > 0.97


def test_frames_that_cannot_be_decoded_are_named() -> None:
    magic = b"#!AMR\n"
    frames = np.frombuffer(factory.encode(factory.clip(CLIP), "amr")[len(magic) :], np.uint8).reshape(-1, 32).copy()
    frames[100:110, 0] = 0xFF
    decoded, warnings = decode_all(magic + frames.tobytes())
    assert warnings == ["damaged"]
    assert abs(len(decoded) - (len(frames) - 10) * 320) < 0.1 * SAMPLE_RATE
    frames[10:, 0] = 0xFF
    with pytest.raises(CorruptAudioError, match="cannot be decoded"):
        decode_all(magic + frames.tobytes())


def test_timestamps_that_disagree_with_the_samples_are_named() -> None:
    tone = factory.sine(1.0, rate=48_000)
    file = io.BytesIO()
    with av.open(file, "w", format="webm") as container:
        stream = container.add_stream("libopus", rate=48_000, layout="mono")
        assert isinstance(stream, av.AudioStream)
        for pause in (0, 10):
            frame = av.AudioFrame.from_ndarray(tone[None], "fltp", "mono")
            frame.sample_rate = 48_000
            frame.pts, frame.time_base = (48_000 if pause else 0), Fraction(1, 48_000)
            for packet in [*stream.encode(frame), *(stream.encode(None) if pause else [])]:
                assert packet.pts is not None
                assert packet.dts is not None
                packet.pts += pause * 48_000
                packet.dts += pause * 48_000
                container.mux(packet)
    decoded, warnings = decode_all(file.getvalue())
    assert warnings == ["length_mismatch"]
    assert len(decoded) < 3 * SAMPLE_RATE


def test_a_change_of_rate_and_channels_inside_a_stream_is_followed() -> None:
    original = factory.clip(CLIP)
    files = [factory.encode(original, name) for name in ("mp3", "mp3 stereo", "mp3")]
    decoded, _ = decode_all(b"".join(files))
    assert abs(len(decoded) - 3 * len(original)) < 0.5 * SAMPLE_RATE
    for index in range(3):
        part = decoded[index * len(original) :][: len(original)]
        assert similarity(part, original)[0] > 0.97


def test_ogg_files_in_a_chain_are_all_heard_or_the_rest_is_named() -> None:
    mono = factory.encode(factory.clip(CLIP), "opus")
    stereo = factory.encode(factory.clip(CLIP), factory.Format("ogg", "libopus", 48_000, "stereo"))
    decoded, warnings = decode_all(mono + mono)
    assert abs(len(decoded) - 2 * len(factory.clip(CLIP))) < 0.2 * SAMPLE_RATE
    assert warnings == []
    assert decode_all(mono + stereo)[1] == ["truncated"]  # FFmpeg cannot follow


@pytest.mark.parametrize("name", ["clip.wav", "clip.mp3", "clip.m3u8", "../../x\n", ""])
def test_the_name_of_a_file_means_nothing(name: str) -> None:
    file = io.BytesIO(factory.encode(factory.clip(CLIP), "m4a"))
    file.name = name
    blocks = list(decode(file, AudioLimits(), lambda _: None))
    assert similarity(np.concatenate(blocks, axis=1)[0], factory.clip(CLIP))[0] > 0.99


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"", MalformedRequestError, "empty"),
        (wav(SECOND)[:20], MalformedRequestError, "after 20 bytes, inside the header of a WAV file"),
        (b"hello world\n" * 9, NotAudioError, "plain text"),
        (b"\x89PNG\r\n\x1a\n" + bytes(99), NotAudioError, "PNG image"),
        (b"\n <!DOCTYPE html><html></html>", NotAudioError, "HTML page"),
        (b"PK\x03\x04" + bytes(99), NotAudioError, "zip archive"),
        (b"RIFX" + wav(SECOND)[4:], NotAudioError, "big-endian WAV"),
        (bytes(5_000), NotAudioError, "zero bytes"),
        (factory.encode(factory.sine(6.0), "webm")[2_000:], CorruptAudioError, "header is missing"),
        (factory.encode(factory.sine(6.0), "m4a")[:20_000], CorruptAudioError, "MP4 file"),
        (factory.film(), NoAudioStreamError, "only video"),
        (wav(b""), EmptyAudioError, "no samples"),
        (wav(SECOND, channels=0), CorruptAudioError, "no channels"),
        (wav(SECOND, rate=0), CorruptAudioError, "WAV file"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else getattr(value, "__name__", value),
)
def test_what_cannot_be_heard_is_refused_by_its_kind(data: bytes, error: type[InvalidInputError], words: str) -> None:
    with pytest.raises(error, match=words):
        decode_all(data)


@pytest.mark.parametrize("n_samples", [1, 160])
def test_very_short_sounds_are_decoded(n_samples: int) -> None:
    assert len(decode_all(wav(SECOND[: 2 * n_samples]))[0]) == n_samples


@pytest.mark.parametrize(
    "script",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{path}\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile '{path}'\n",
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nm=audio 5004 RTP/AVP 0\n",
        '<?xml version="1.0"?>\n<MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><BaseURL>{path}</BaseURL></MPD>',
    ],
    ids=["hls", "concat", "sdp", "dash"],
)
def test_playlists_lead_to_no_other_file(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret.wav"
    secret.write_bytes(wav(SECOND))
    data = script.format(path=secret).encode()
    with pytest.raises(NotAudioError):
        decode_all(data)
    # Nor where the bytes get past the first look.
    monkeypatch.setattr("app.transcription.audio.describe", lambda _: None)
    with pytest.raises(CorruptAudioError):
        decode_all(data)


@pytest.mark.parametrize(
    ("data", "name", "setting"),
    [
        (wav(bytes(1 << 20), rate=655_350, channels=8), "sample rate in Hz", "OMNIHEAR_LIMITS_MAX_SAMPLE_RATE"),
        (wav(SECOND, rate=2_000_000_000), "sample rate in Hz", "OMNIHEAR_LIMITS_MAX_SAMPLE_RATE"),
        (wav(SECOND * 9, channels=9), "channels", "OMNIHEAR_LIMITS_MAX_CHANNELS"),
        (wav(SECOND * 61), "audio seconds", "OMNIHEAR_LIMITS_MAX_AUDIO_SECONDS"),
        (wav(SECOND * 61, data_size=0), "audio seconds", "OMNIHEAR_LIMITS_MAX_AUDIO_SECONDS"),
        (wav(bytes(9 << 20), rate=96_000), "decoded bytes", "OMNIHEAR_LIMITS_MAX_DECODED_BYTES"),
    ],
    ids=["rate", "forged rate", "channels", "seconds", "seconds, size unknown", "bytes"],
)
def test_limits_name_themselves(data: bytes, name: str, setting: str) -> None:
    with pytest.raises(TooLargeError) as caught:
        decode_all(data, AudioLimits(max_seconds=60, max_decoded_bytes=8 << 20))
    assert caught.value.limit is not None
    assert (caught.value.limit.name, caught.value.limit.setting) == (name, setting)
    assert f"{caught.value.limit.value:.0f}" in caught.value.message


def test_a_rate_that_holds_no_speech_is_refused() -> None:
    with pytest.raises(CorruptAudioError, match="sample rate of 1 Hz"):
        decode_all(wav(SECOND, rate=1))


def test_exactly_the_limit_is_accepted() -> None:
    assert len(decode_all(wav(SECOND * 60), AudioLimits(max_seconds=60))[0]) == 60 * SAMPLE_RATE


def silent_opus(seconds: int) -> bytes:
    """Hours of silence in little time: one packet, muxed again and again."""
    file = io.BytesIO()
    with av.open(file, "w", format="ogg") as container:
        stream = container.add_stream("libopus", rate=48_000, layout="mono", options={"frame_duration": "60"})
        assert isinstance(stream, av.AudioStream)
        stream.bit_rate = 6_000
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 48_000), np.float32), "fltp", "mono")
        frame.sample_rate = 48_000
        packet = next(iter(stream.encode(frame)))
        content, time_base = bytes(packet), packet.time_base
        for index in range(seconds * 1000 // 60):
            packet = av.Packet(content)
            packet.stream, packet.time_base = stream, time_base or Fraction(1, 48_000)
            packet.pts = packet.dts = index * 2_880
            packet.duration = 2_880
            container.mux(packet)
    return file.getvalue()


class _Counted(io.BytesIO):
    """Bytes that know how many of them were read."""

    n_read = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.n_read += len(data)
        return data


def test_hours_of_silence_are_decoded_no_further_than_the_limit() -> None:
    data = silent_opus(8 * 3600)
    file = _Counted(data)
    blocks = decode(file, AudioLimits(max_seconds=300), lambda _: None)
    lengths: list[int] = []
    with pytest.raises(TooLargeError, match=r"by its header 28800 s") as caught:
        lengths.extend(block.shape[1] for block in blocks)
    assert sum(lengths) <= 300 * SAMPLE_RATE
    assert file.n_read < len(data) / 20
    assert caught.value.limit is not None
    assert caught.value.limit.value == 300


def test_blocks_come_while_the_file_is_read() -> None:
    file = _Counted(wav(SECOND * 600))
    blocks = decode(file, AudioLimits(), lambda _: None)
    next(blocks)
    assert file.n_read < 1 << 20
