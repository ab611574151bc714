import io
import wave

import av
import numpy as np
import pytest

from benchmarks.clips import DEMO, Cuts, clip, demo_clips, read_recording
from benchmarks.containers import CONTAINERS, Container
from tests.audio_factory import CLIPS, TRANSCRIPTS
from tests.audio_factory import clip as reference

RAMP = np.arange(30_000, dtype=np.int16)


def samples_of(wav: bytes) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    with wave.open(io.BytesIO(wav)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16_000, 1, 2)
        return np.frombuffer(file.readframes(file.getnframes()), np.int16)


def test_cuts_are_as_long_as_asked_and_lie_within_one_recording() -> None:
    cuts = Cuts([RAMP, -RAMP[:16_500]], 1.0).take(300)

    starts = set()
    for each in cuts:
        samples = samples_of(each.content)
        assert each.seconds == 1.0
        assert len(samples) == 16_000
        assert set(np.diff(samples)) in ({1}, {-1})
        starts.add((int(samples[0]), int(samples[1])))
    assert len(starts) == 300


def test_cuts_cover_the_recording_evenly() -> None:
    starts = sorted(int(samples_of(each.content)[0]) for each in Cuts([RAMP], 1.0).take(14))

    assert starts[0] < 1000
    assert starts[-1] > 13_000
    assert max(np.diff(starts)) < 2000


def test_cuts_go_on_where_they_were_left_and_repeat_from_run_to_run() -> None:
    in_two_goes = Cuts([RAMP], 1.0)

    assert in_two_goes.take(2) + in_two_goes.take(3) == Cuts([RAMP], 1.0).take(5)


def test_a_recording_of_exactly_the_length_gives_one_cut() -> None:
    (only,) = Cuts([RAMP[:100], RAMP[:16_000]], 1.0).take(1)

    assert np.array_equal(samples_of(only.content), RAMP[:16_000])


def test_mixed_cuts_have_every_length_and_fit_the_recordings_that_are_long_enough() -> None:
    cuts = Cuts([RAMP, -RAMP[:16_500]], 0.5, 1.5).take(200)

    lengths = sorted(each.seconds for each in cuts)
    assert (0.5 <= lengths[0] < 0.52, 1.48 < lengths[-1] <= 1.5) == (True, True)
    assert max(np.diff(lengths)) < 0.02
    for each in cuts:
        samples = samples_of(each.content)
        assert len(samples) == round(each.seconds * 16_000)
        assert set(np.diff(samples)) in ({1}, {-1})
    assert len({each.content for each in cuts}) == 200


@pytest.mark.parametrize("container", CONTAINERS)
def test_cuts_are_encoded_whole(container: Container) -> None:
    recording = read_recording(DEMO / "jfk-human.wav")
    (cut,) = Cuts([recording], len(recording) / 16_000).take(1, container)

    with av.open(io.BytesIO(cut.content)) as file:
        assert file.format.name.split(",")[0] == {"wav": "wav", "mp3": "mp3", "opus": "ogg"}[container]
    heard = read_recording(io.BytesIO(cut.content))
    assert cut.name.endswith(container)
    assert len(heard) == pytest.approx(len(recording), abs=1600)
    length = min(len(heard), len(recording))
    levels = [np.abs(samples[:length].astype(float)).mean() for samples in (heard, recording)]
    assert levels[0] == pytest.approx(levels[1], rel=0.1)


def test_recordings_that_are_too_short_are_refused() -> None:
    with pytest.raises(ValueError, match="no recording is 2 s long"):
        Cuts([RAMP], 2.0)


def test_a_recording_is_decoded_to_the_last_sample() -> None:
    decoded = read_recording(DEMO / "harbor-story-long.flac")

    assert np.array_equal(decoded, np.round(reference("harbor-story-long.flac") * 32768).astype(np.int16))


def test_demo_clips_come_with_their_words_shortest_first() -> None:
    clips = demo_clips()

    assert {each.name: each.spoken for each in clips} == TRANSCRIPTS
    assert [each.seconds for each in clips] == sorted(each.seconds for each in clips)
    short = clips[0]
    assert np.array_equal(samples_of(short.content), samples_of((CLIPS / short.name).read_bytes()))


def test_a_clip_tells_its_seconds() -> None:
    assert clip("ramp.wav", RAMP[:8000]).seconds == 0.5
