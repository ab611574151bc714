"""OpenAI's own SDK against the running service, and each field that its dialect documents."""

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai.types.audio import transcription_create_params, translation_create_params

from engine.interface import SpeechRequest
from engine.scripted import Act, ScriptedEngine
from tests.audio_factory import clip, pcm16, wav
from tests.conftest import Client, MakeClient
from tests.live import live

SPEECH = wav(pcm16(clip("library-us-female.wav")))
TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
TRANSLATING = {"languages": ("en", "de"), "tasks": ("transcribe", "translate")}


@pytest.fixture(autouse=True)
def _same_loop(one_event_loop: None) -> None:
    """Decode workers belong to it."""


@asynccontextmanager
async def sdk(engine: ScriptedEngine | None = None, **sections: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        live(engine, **sections) as client,
        openai.AsyncOpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as made,
    ):
        yield made


async def create(client: openai.AsyncOpenAI, audio: bytes = SPEECH, **fields: Any) -> Any:
    return await client.audio.transcriptions.create(**{"model": "whisper-1", "file": ("a.wav", audio), **fields})


async def test_the_sdk_reads_every_format() -> None:
    async with sdk() as client:
        plain = await create(client)
        verbose = await create(client, response_format="verbose_json", timestamp_granularities=["segment"])
        text = await create(client, response_format="text")
        srt = await create(client, response_format="srt")
        vtt = await create(client, response_format="vtt")

    assert plain.text == verbose.text == text.strip()
    assert plain.usage.type == "duration"
    assert verbose.language == "english"
    assert verbose.duration == pytest.approx(6.2, abs=0.2)
    assert verbose.segments[0].text == plain.text
    assert srt.startswith("1\n00:00:00,")
    assert vtt.startswith("WEBVTT\n")


async def test_the_sdks_fields_reach_the_engine() -> None:
    engine = ScriptedEngine()
    async with sdk(engine, engine_settings={"languages": ("en", "de")}) as client:
        await create(client, language="de", prompt="A meeting.", temperature=0.3, chunking_strategy="auto")
        await create(client, languages=["de"], keywords=["Grigson", "RTFx"])

    first, second = engine.requests[-2:]
    assert (first.language, first.context, first.temperature) == ("de", "A meeting.", 0.3)
    assert (second.language, second.context) == ("de", "Grigson, RTFx")


async def test_the_sdk_raises_its_classes() -> None:
    def script(request: SpeechRequest) -> Act:
        return Act(fail=request.request_id != "warm-up")

    async with sdk(ScriptedEngine(script)) as client:
        with pytest.raises(openai.UnprocessableEntityError) as field:
            await create(client, temperature=3)
        with pytest.raises(openai.NotFoundError) as model:
            await create(client, model="gpt-9")
        with pytest.raises(openai.BadRequestError) as empty:
            await create(client, b"")
        with pytest.raises(openai.APIStatusError) as picture:
            await create(client, b"\x89PNG\r\n\x1a\n" + bytes(100))
        with pytest.raises(openai.InternalServerError) as failure:
            await create(client)

    assert (field.value.param, field.value.type) == ("temperature", "invalid_request_error")
    assert model.value.code == "model_not_found"
    assert empty.value.param == "audio"
    assert (picture.value.status_code, picture.value.code) == (415, "not_audio")
    assert failure.value.code == "engine_failed"
    assert failure.value.request_id
    assert failure.value.type == "server_error"


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # of the SDK's: the route is old, and in use
async def test_the_sdk_translates_where_the_model_does() -> None:
    engine = ScriptedEngine(lambda _: Act(words=("Good", "day.")))
    async with sdk(engine, engine_settings=TRANSLATING) as client:
        plain = await client.audio.translations.create(model="whisper-1", file=("a.wav", SPEECH))
        verbose: Any = await client.audio.translations.create(
            model="whisper-1", file=("a.wav", SPEECH), response_format="verbose_json", prompt="A greeting."
        )

    assert plain.text == verbose.text == "Good day."
    assert verbose.language == "english"
    assert (engine.requests[-1].task, engine.requests[-1].language) == ("translate", None)
    assert engine.requests[-1].context == "A greeting."


async def test_a_model_that_does_not_translate_says_so(scripted_client: Client) -> None:
    answer = await scripted_client.post(TRANSLATIONS, files={"file": SPEECH})

    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "task_not_served"
    assert "/v1/audio/transcriptions" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("include[]", "logprobs"),
        ("known_speaker_names[]", "agent"),
        ("known_speaker_references[]", "data:audio/wav;base64,UklGRg=="),
        ("chunking_strategy", "server_vad"),
        ("chunking_strategy[type]", "server_vad"),
        ("timestamp_granularities[]", "word"),
        ("response_format", "diarized_json"),
        ("languages[]", ["en", "de"]),
        ("languages[]", "xx"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(field: str, value: Any, scripted_client: Client) -> None:
    answer = await scripted_client.post(TRANSCRIPTIONS, files={"file": SPEECH}, data={field: value})

    assert answer.status_code == 422
    assert answer.json()["error"]["param"] in (field, "language" if field == "languages[]" else field)
    assert len(answer.json()["error"]["message"]) > 20


@pytest.mark.parametrize("form", ["{}[]", "{}", "{}[0]"])
async def test_lists_are_named_as_clients_do(form: str, make_client: MakeClient) -> None:
    engine = ScriptedEngine()
    async with make_client(engine, engine_settings={"languages": ("en", "de")}) as client:
        fields = {
            form.format("keywords"): "Grigson",
            form.format("hotwords"): "RTFx",
            form.format("languages"): "de",
            form.format("timestamp_granularities"): "segment",
            "response_format": "verbose_json",
        }
        answer = await client.post(TRANSCRIPTIONS, files={"file": SPEECH}, data=fields)
        refused = await client.post(TRANSCRIPTIONS, files={"file": SPEECH}, data={form.format("include"): "logprobs"})
        unlisted = await client.post(TRANSCRIPTIONS, files={"file": SPEECH}, data={"language[]": "de"})

    assert answer.status_code == 200, answer.text
    assert (engine.requests[-1].language, engine.requests[-1].context) == ("de", "RTFx, Grigson")
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, "include[]")
    assert (unlisted.status_code, unlisted.json()["error"]["code"]) == (422, "unknown_field")


async def test_one_language_is_named_once(scripted_client: Client) -> None:
    fields = {"languages[]": "en", "language": "en"}
    answer = await scripted_client.post(TRANSCRIPTIONS, files={"file": SPEECH}, data=fields)

    assert answer.status_code == 422


@pytest.mark.parametrize(
    ("route", "documented"),
    [
        (TRANSCRIPTIONS, transcription_create_params.TranscriptionCreateParamsBase),
        (TRANSLATIONS, translation_create_params.TranslationCreateParams),
    ],
)
async def test_every_field_that_openai_documents_is_known_here(
    route: str, documented: type, scripted_client: Client
) -> None:
    document = (await scripted_client.get("/openapi.json")).json()
    form = document["paths"][route]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]

    known = {name.removesuffix("[]") for name in form["properties"]}

    assert {name for name in inspect.get_annotations(documented) if name != "stream"} <= known


EXTREMES: dict[str, Any] = {
    "model": "nobody/knows",
    "language": "de",
    "prompt": "Grigson",
    "hotwords": "Grigson",
    "response_format": "verbose_json",
    "temperature": "0.9",
    "channels": "separate",
    "stream": "true",
    "timestamp_granularities[]": "word",
    "chunking_strategy": "none",
    "keywords[]": "Grigson",
    "languages[]": "de",
    "include[]": "logprobs",
    "known_speaker_names[]": "agent",
    "known_speaker_references[]": "data:audio/wav;base64,UklGRg==",
    "url": "https://media.example.org/call.mp3",
}


@pytest.mark.parametrize("route", ["/v1/transcribe", "/v1/transcribe/batch", TRANSCRIPTIONS, TRANSLATIONS])
async def test_every_field_of_the_document_changes_the_answer_or_is_refused(
    route: str, make_client: MakeClient
) -> None:
    def tells_the_request(request: SpeechRequest) -> Act:
        asked = (request.task, request.language, request.context, request.temperature)
        return Act(words=tuple(f"{value!r}" for value in asked))

    async with make_client(ScriptedEngine(tells_the_request), engine_settings=TRANSLATING) as client:
        body = (await client.get("/openapi.json")).json()["paths"][route]["post"]["requestBody"]["content"]
        fields = set(body["multipart/form-data"]["schema"]["properties"]) - {"audio", "file"}

        async def ask(**form: Any) -> tuple[int, str]:
            answer = await client.post(route, files={"file": SPEECH}, data=form)
            return answer.status_code, answer.text

        plain = await ask()
        assert plain[0] == 200
        for field in fields:
            assert await ask(**{field: EXTREMES[field]}) != plain, field
        unknown = await client.post(route, files={"file": SPEECH}, data={"no_such_field": "1"})

    assert unknown.status_code == 422
