"""The scripted engine answers "audio of N seconds.", so that what reached it shows in the text."""

import asyncio
import re
from typing import Any

import httpx
import numpy as np
import pytest

from engine.interface import SpeechRequest
from engine.scripted import Act, ScriptedEngine
from tests.audio_factory import FORMATS, Samples, clip, encode, noise, pcm16, silence, sine, wav
from tests.conftest import Client, MakeClient
from tests.waiting import eventually

ROUTES = ["/v1/transcribe", "/v1/audio/transcriptions"]
SPEECH = wav(pcm16(clip("library-us-female.wav")))


async def post(client: Client, audio: bytes = SPEECH, route: str = "/v1/transcribe", **fields: Any) -> httpx.Response:
    return await client.post(route, files={"file": ("clip", audio)}, data=fields)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", FORMATS)
async def test_every_format_is_known_by_its_bytes(name: str, route: str, scripted_client: Client) -> None:
    audio = encode(clip("library-us-female.wav"), name)

    answer = await scripted_client.post(route, files={"file": ("wrong.txt", audio, "image/png")})

    assert answer.status_code == 200, answer.text
    assert answer.json()["duration"] == pytest.approx(6.2, abs=0.15)
    assert re.fullmatch(r"audio of [56]\.\d\d seconds\.", answer.json()["text"])


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "application/octet-stream",
        "multipart/form-data",
        "multipart/mixed; boundary=b",
        "audio/webm; codecs=opus",
        "video/mp4",
        "text/html; charset=utf-16",
        "no type; at all=;;",
    ],
)
async def test_the_declared_type_of_a_part_is_a_hint_only(content_type: str, scripted_client: Client) -> None:
    answer = await scripted_client.post("/v1/transcribe", files={"audio": ("clip.wav", SPEECH, content_type)})

    assert answer.status_code == 200


@pytest.mark.parametrize(
    "filename", ["", "clip", "ünïcødé-音声.wav", "x" * 300, "../../etc/passwd", "a\nb.wav", 'q".wav']
)
async def test_a_filename_is_never_needed_and_never_a_path(filename: str, scripted_client: Client) -> None:
    answer = await scripted_client.post("/v1/transcribe", files={"audio": (filename, SPEECH, "audio/wav")})

    assert answer.status_code == 200


async def test_a_part_without_a_filename_is_taken(scripted_client: Client) -> None:
    head = b'--b\r\nContent-Disposition: form-data; name="audio"\r\n\r\n'
    answer = await scripted_client.post(
        "/v1/transcribe",
        content=head + SPEECH + b"\r\n--b--\r\n",
        headers={"Content-Type": "multipart/form-data; boundary=b"},
    )

    assert answer.status_code == 200


@pytest.mark.parametrize(
    "content_type", [None, "audio/wav", "application/octet-stream", "application/x-www-form-urlencoded"]
)
async def test_the_bare_audio_may_be_the_body(content_type: str | None, scripted_client: Client) -> None:
    answer = await scripted_client.post(
        "/v1/transcribe",
        content=SPEECH,
        params={"response_format": "text"},
        headers={"Content-Type": content_type} if content_type else None,
    )

    assert answer.status_code == 200
    assert answer.text.startswith("audio of")


async def test_formats_are_made_from_one_result(scripted_client: Client) -> None:
    answers = {
        name: await post(scripted_client, response_format=name)
        for name in ("json", "text", "srt", "vtt", "verbose_json")
    }

    text = answers["json"].json()["text"]
    assert text == answers["verbose_json"].json()["text"]
    assert f"{text}\n" == answers["text"].text
    assert text == answers["srt"].text.splitlines()[2]
    assert text == answers["vtt"].text.splitlines()[3]
    for name in ("text", "srt", "vtt"):
        assert answers[name].headers["Content-Type"] == "text/plain; charset=utf-8"
    for name in ("json", "verbose_json"):
        assert answers[name].headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(("form", "point"), [("srt", ","), ("vtt", r"\.")])
async def test_cues_are_times_in_order_within_the_audio(form: str, point: str, scripted_client: Client) -> None:
    story = wav(pcm16(clip("harbor-story-long.flac")))

    body = (await post(scripted_client, story, response_format=form)).text

    time = rf"(\d\d):(\d\d):(\d\d){point}(\d{{3}})"
    cues = re.findall(rf"^{time} --> {time}$", body, re.MULTILINE)
    assert len(cues) == body.count("-->") >= 2
    times = [
        int(hours) * 3600 + int(minutes) * 60 + int(seconds) + int(thousandths) / 1000
        for cue in cues
        for hours, minutes, seconds, thousandths in (cue[:4], cue[4:])
    ]
    assert times == sorted(times)
    assert times[-1] <= len(clip("harbor-story-long.flac")) / 16_000


async def test_the_json_answer_says_what_was_heard_and_what_it_costs(scripted_client: Client) -> None:
    body = (await post(scripted_client)).json()

    assert set(body) == {"text", "language", "duration", "no_speech", "usage", "warnings"}
    assert body["language"] == "en"
    assert body["no_speech"] is False
    assert body["usage"] == {"type": "duration", "seconds": body["duration"]}
    assert body["warnings"] == []


async def test_verbose_segments_lie_within_the_audio_in_order(scripted_client: Client) -> None:
    story = wav(pcm16(clip("harbor-story-long.flac")))

    body = (await post(scripted_client, story, response_format="verbose_json")).json()

    segments = body["segments"]
    assert len(segments) >= 2
    assert [segment["id"] for segment in segments] == list(range(len(segments)))
    edges = [edge for segment in segments for edge in (segment["start"], segment["end"])]
    assert edges == sorted(edges)
    assert edges[0] >= 0
    assert edges[-1] <= body["duration"]
    assert body["text"] == " ".join(segment["text"] for segment in segments)
    assert body["language"] == "english"
    assert body["task"] == "transcribe"


@pytest.mark.parametrize(
    "samples",
    [
        pytest.param(silence(1 / 16_000), id="one sample"),
        pytest.param(silence(0.01), id="10 ms"),
        pytest.param(sine(0.01), id="10 ms of tone"),
        pytest.param(silence(30), id="zero"),
        pytest.param(noise(5, -80), id="faint noise"),
        pytest.param(noise(5, -40), id="noise"),
        pytest.param(sine(5, frequency=1000), id="tone"),
    ],
)
async def test_what_holds_no_speech_is_not_given_to_the_engine(samples: Samples, make_client: MakeClient) -> None:
    engine = ScriptedEngine()
    async with make_client(engine) as client:
        served = len(engine.requests)
        answer = await post(client, wav(pcm16(samples)), hotwords="Grigson")

    assert answer.status_code == 200
    assert (answer.json()["text"], answer.json()["no_speech"]) == ("", True)
    assert [warning["code"] for warning in answer.json()["warnings"]] == ["no_speech"]
    assert len(engine.requests) == served


async def test_all_sound_is_given_to_the_engine_where_the_deployment_wants_it(make_client: MakeClient) -> None:
    engine = ScriptedEngine()
    async with make_client(engine, guards={"silence": False}) as client:
        served = len(engine.requests)
        answer = await post(client, wav(pcm16(silence(65))), response_format="verbose_json")

    body = answer.json()
    assert body["warnings"] == []
    assert (body["segments"][0]["start"], body["segments"][-1]["end"]) == (0, 65)
    assert len(engine.requests) - served == len(body["segments"]) >= 3


async def test_no_speech_is_an_empty_text_in_every_form(make_client: MakeClient) -> None:
    engine = ScriptedEngine()
    async with make_client(engine) as client:
        served = len(engine.requests)
        answers = {
            name: await post(client, wav(pcm16(silence(5.0))), response_format=name) for name in ("json", "srt", "vtt")
        }

    assert answers["json"].json()["text"] == ""
    assert answers["json"].json()["no_speech"] is True
    assert answers["json"].json()["duration"] == 5.0
    assert answers["srt"].text == ""
    assert answers["vtt"].text == "WEBVTT\n"
    assert len(engine.requests) == served


async def test_headers_name_the_request_and_its_stages(scripted_client: Client) -> None:
    answer = await scripted_client.post("/v1/transcribe", files={"audio": SPEECH}, headers={"X-Request-ID": "mine-1"})

    assert answer.headers["X-Request-ID"] == "mine-1"
    timing = dict(re.findall(r"(\w+);dur=([\d.]+)", answer.headers["Server-Timing"]))
    assert list(timing) == ["queue", "decode", "segment", "inference"]
    assert float(timing["decode"]) > 0


async def test_requests_at_once_may_have_the_same_id(make_client: MakeClient) -> None:
    gate = asyncio.Event()
    engine = ScriptedEngine(lambda asked: Act(words=("fine",), gate=None if asked.request_id == "warm-up" else gate))
    async with make_client(engine) as client:
        posts = [asyncio.create_task(client.post("/v1/transcribe", files={"file": SPEECH})) for _ in range(3)]
        await eventually(lambda: len(engine.running) == 3, seconds=20)
        gate.set()
        answers = await asyncio.gather(*posts)

    assert [answer.json()["text"] for answer in answers] == ["fine"] * 3
    assert {answer.headers["X-Request-ID"] for answer in answers} == {"test"}


async def test_a_harmful_request_id_is_replaced(scripted_client: Client) -> None:
    answer = await scripted_client.get("/v1/models", headers={"X-Request-ID": "a b\tc"})

    assert re.fullmatch(r"[0-9a-f]{32}", answer.headers["X-Request-ID"])


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("response_format", "xml", "verbose_json"),
        ("temperature", "-1", "greater than or equal to 0"),
        ("temperature", "3", "less than or equal to 1"),
        ("temperature", "NaN", "finite"),
        ("temperature", "abc", "number"),
        ("language", "xx", "en"),
        ("language", "de", "en"),
        ("prompt", "x" * 50_000, "1000"),
        ("prompt", "x" * 70_000, "65536"),
        ("stream", "perhaps", "boolean"),
        ("timestamp_granularities[]", "word", "segment"),
        ("timestamp_granularities[]", "segment", "verbose_json"),
        ("n", "0", "known are"),
        ("max_tokens", "1000000000", "known are"),
        ("langage", "en", "`language`"),
    ],
)
async def test_a_field_that_cannot_be_served_is_named(
    field: str, value: str, named: str, route: str, scripted_client: Client
) -> None:
    answer = await scripted_client.post(route, files={"file": SPEECH}, data={field: value})

    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error["param"] == field
    assert named in error["message"]
    assert len(error["message"]) < 400


async def test_a_field_given_twice_is_refused(scripted_client: Client) -> None:
    answer = await post(scripted_client, language=["en", "en"])

    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == "language"


@pytest.mark.parametrize(
    "language", ["en", "EN", "En", " en ", "en-US", "en_GB", "eng", "English", "ENGLISH", "auto", "Auto", ""]
)
async def test_a_language_may_be_spelled_as_people_do(language: str, make_client: MakeClient) -> None:
    engine = ScriptedEngine()
    async with make_client(engine) as client:
        answer = await post(client, language=language)

    assert answer.json()["language"] == "en"
    assert engine.requests[-1].language == "en"


async def test_an_unnamed_language_is_left_to_a_model_that_speaks_several(make_client: MakeClient) -> None:
    engine = ScriptedEngine()
    async with make_client(engine, engine_settings={"languages": ("en", "de")}) as client:
        silent = await post(client)
        german = await post(client, language="de-AT")

    assert silent.json()["language"] is None
    assert german.json()["language"] == "de"
    assert [request.language for request in engine.requests[-2:]] == [None, "de"]


async def test_prompt_and_temperature_reach_the_engine(make_client: MakeClient) -> None:
    engine = ScriptedEngine()
    async with make_client(engine) as client:
        await post(client, prompt="Grigson", temperature="0.4")

    assert engine.requests[-1].context == "Grigson"
    assert engine.requests[-1].temperature == 0.4


@pytest.mark.parametrize("model", ["omni-tiny-en", "whisper-1"])
async def test_the_model_may_be_named(model: str, scripted_client: Client) -> None:
    assert (await post(scripted_client, model=model)).status_code == 200


@pytest.mark.parametrize("route", ROUTES)
async def test_an_unknown_model_is_a_404_with_those_that_exist(route: str, scripted_client: Client) -> None:
    answer = await post(scripted_client, route=route, model="gpt-9")

    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert "omni-tiny-en" in answer.json()["error"]["message"]


async def test_segments_of_one_file_run_together_but_not_all_at_once(make_client: MakeClient) -> None:
    gates = [asyncio.Event() for _ in range(100)]
    arrivals: asyncio.Queue[int] = asyncio.Queue()

    def script(request: SpeechRequest) -> Act:
        if request.request_id == "warm-up":
            return Act()
        index = int(request.request_id.rsplit("-", 1)[1])
        arrivals.put_nowait(index)
        return Act(words=(f"<{index}>",), gate=gates[index])

    engine = ScriptedEngine(script)
    story = np.tile(clip("harbor-story-long.flac"), 4)
    async with make_client(engine, concurrency={"segments_per_request": 3}) as client:
        answering = asyncio.create_task(post(client, wav(pcm16(story))))
        first = [await arrivals.get() for _ in range(3)]
        gates[2].set()
        gates[1].set()
        for gate in gates:
            gate.set()
        answer = await answering

    assert first == [0, 1, 2]
    assert engine.peak_running == 3
    words = answer.json()["text"].split()
    assert words == [f"<{index}>" for index in range(len(words))]
    assert len(words) >= 7


async def test_an_answer_cut_at_its_budget_carries_a_warning(make_client: MakeClient) -> None:
    engine = ScriptedEngine(lambda _: Act(words=("cut",), finish_reason="length"))
    async with make_client(engine) as client:
        body = (await post(client)).json()

    assert body["text"] == "cut"
    assert [warning["code"] for warning in body["warnings"]] == ["output_limit"]


@pytest.mark.parametrize("hotwords", ["Grigson, RTFx", ["Grigson", "RTFx"], ["Grigson,,", " RTFx "]])
async def test_hotwords_reach_the_engine_after_the_prompt(hotwords: Any, make_client: MakeClient) -> None:
    engine = ScriptedEngine()
    async with make_client(engine) as client:
        assert (await post(client, hotwords=hotwords, prompt="A meeting.")).status_code == 200

    assert engine.requests[-1].context == "A meeting. Grigson, RTFx"


async def test_prompt_and_hotwords_share_one_limit(scripted_client: Client) -> None:
    answer = await post(scripted_client, prompt="x" * 600, hotwords="y" * 600)

    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == "hotwords"
    assert answer.json()["error"]["limit"]["value"] == 1000


async def test_guards_that_step_in_leave_one_warning_with_the_times(make_client: MakeClient) -> None:
    engine = ScriptedEngine(lambda _: Act(words=("The", "audio", "says:", "'Hello.'")))
    async with make_client(engine) as client:
        body = (await post(client, wav(pcm16(clip("harbor-story-long.flac"))))).json()

    assert set(body["text"].split()) == {"Hello."}
    (warning,) = body["warnings"]
    assert warning["code"] == "wrapper"
    assert len(re.findall(r"\d+\.\d s", warning["message"])) == len(body["text"].split())


@pytest.mark.parametrize("space", [" ", ""])
async def test_a_token_that_comes_500_times_is_cut_and_asked_for_once_more(space: str, make_client: MakeClient) -> None:
    engine = ScriptedEngine(lambda _: Act(words=("again",), space=space, repeat=500))
    async with make_client(engine) as client:
        served = len(engine.requests)
        whole = (await post(client)).json()
        asked = engine.requests[served:]
        streamed = (await post(client, stream="true")).text

    assert whole["text"] == "again"
    assert [warning["code"] for warning in whole["warnings"]] == ["repetition"]
    assert len(asked) == 2
    assert asked[0].temperature != asked[1].temperature
    assert '"text":"again"' in streamed


async def test_segments_keep_to_a_smaller_target(make_client: MakeClient) -> None:
    engine = ScriptedEngine()
    minutes = np.tile(np.concatenate([clip("harbor-story-long.flac"), silence(1)]), 4)
    async with make_client(engine, engine_settings={"segment_seconds": 8.0}) as client:
        served = len(engine.requests)
        answer = await post(client, wav(pcm16(minutes)))

    seconds = [len(request.waveform) / 16_000 for request in engine.requests[served:]]
    assert len(seconds) == answer.json()["text"].count("audio of")
    assert len(seconds) > 20
    assert max(seconds) <= 30
    assert np.mean(seconds) < 10


async def test_guards_can_be_switched_off(make_client: MakeClient) -> None:
    engine = ScriptedEngine(lambda _: Act(words=("The", "audio", "says:", "'Hello.'")))
    async with make_client(engine, guards={"wrapper_sentences": False}) as client:
        body = (await post(client)).json()

    assert body["text"] == "The audio says: 'Hello.'"
    assert body["warnings"] == []


async def test_the_language_is_reported_where_the_model_named_it(make_client: MakeClient) -> None:
    engine = ScriptedEngine(lambda _: Act(words=("The", "person", "says", "in", "German:", "'Guten Tag.'")))
    async with make_client(engine, engine_settings={"languages": ("en", "de")}) as client:
        unnamed = (await post(client)).json()
        named = (await post(client, language="en")).json()

    assert (unnamed["language"], unnamed["text"]) == ("de", "Guten Tag.")
    assert named["language"] == "en"


async def test_chinese_segments_are_joined_without_spaces(make_client: MakeClient) -> None:
    engine = ScriptedEngine(lambda _: Act(words=("你好。",)))
    async with make_client(engine, engine_settings={"languages": ("en", "zh")}) as client:
        body = (await post(client, wav(pcm16(clip("harbor-story-long.flac"))))).json()

    assert re.fullmatch("(你好。){2,}", body["text"])
