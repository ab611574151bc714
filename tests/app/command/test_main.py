"""`omnihear transcribe` as people type it, against a service in this process and with one of its own."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from app.cli import cli
from app.command.main import base_url
from app.command.remote import LONGEST_WAIT
from engine.config import ROOT
from engine.interface import SpeechRequest
from engine.scripted import Act, ScriptedEngine
from tests.audio_factory import clip, pcm16, wav
from tests.holding import Holding
from tests.live import live

SPEECH = wav(pcm16(clip("library-us-female.wav")))
KEY = "a-key-of-the-tests-0123456789"
STORY = wav(pcm16(clip("harbor-story-long.flac")))


@pytest.fixture(autouse=True)
def _same_loop(one_event_loop: None) -> None:
    """Decode workers belong to it."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.wav").write_bytes(SPEECH)
    (tmp_path / "b.wav").write_bytes(STORY)
    (tmp_path / "bad.wav").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def run(client: httpx.AsyncClient, *arguments: str | Path, stdin: bytes = b"") -> Result:
    words = ["transcribe", "--server", str(client.base_url), *map(str, arguments)]
    return await asyncio.to_thread(lambda: CliRunner().invoke(cli, words, input=stdin, catch_exceptions=False))


async def test_files_are_transcribed_beside_themselves_as_the_service_answers(folder: Path) -> None:
    async with live() as client:
        result = await run(client, folder / "a.wav", folder / "b.wav", "-f", "txt", "-f", "srt", "-f", "json")
        direct = {
            form: (await client.post("/v1/transcribe", files={"file": STORY}, data={"response_format": form})).text
            for form in ("text", "srt", "verbose_json")
        }

    assert result.exit_code == 0, result.output
    assert (folder / "b.txt").read_text() == direct["text"]
    assert (folder / "b.srt").read_text() == direct["srt"]
    assert json.loads((folder / "b.json").read_text()) == json.loads(direct["verbose_json"])
    assert (folder / "a.txt").read_text().startswith("audio of")
    assert "2 transcribed, 0 skipped, 0 failed" in result.stderr


async def test_what_is_done_is_skipped_and_what_failed_is_tried_again(folder: Path) -> None:
    engine = ScriptedEngine()
    async with live(engine) as client:
        first = await run(client, folder / "a.wav", folder / "bad.wav")
        asked = len(engine.requests)
        second = await run(client, folder / "a.wav", folder / "bad.wav")
        skipped = len(engine.requests) - asked
        third = await run(client, folder / "a.wav", "--overwrite")

    assert (first.exit_code, second.exit_code, third.exit_code) == (1, 1, 0)
    assert "bad.wav: This looks like a PNG image" in first.stderr.replace("\n", "")
    assert "0 transcribed, 1 skipped, 1 failed" in second.stderr
    assert skipped == 0
    assert "1 transcribed" in third.stderr


async def test_wishes_reach_the_engine(folder: Path) -> None:
    engine = ScriptedEngine()
    async with live(engine, engine_settings={"languages": ("en", "de")}) as client:
        words = [
            "-l",
            "de",
            "--prompt",
            "A meeting.",
            "--hotword",
            "Grigson",
            "--hotword",
            "RTFx",
            "--temperature",
            "0.2",
        ]
        result = await run(client, folder / "a.wav", *words, "--channels", "separate", "-o", "-")

    request = engine.requests[-1]
    assert (request.language, request.context, request.temperature) == ("de", "A meeting. Grigson, RTFx", 0.2)
    assert result.stdout.startswith("Channel 1: audio of")


async def test_standard_input_goes_to_standard_output() -> None:
    async with live() as client:
        result = await run(client, "-", "-f", "vtt", "--quiet", stdin=SPEECH)

    assert result.exit_code == 0
    assert result.stdout.startswith("WEBVTT\n")
    assert result.stderr == ""


async def test_warnings_are_told(folder: Path) -> None:
    async with live(ScriptedEngine(lambda _: Act(words=("The", "audio", "says:", "'Hello.'")))) as client:
        result = await run(client, folder / "a.wav")

    assert "(wrapper)" in result.stderr
    assert (folder / "a.txt").read_text() == "Hello.\n"


async def test_nothing_to_show_has_its_own_status(folder: Path) -> None:
    async with live() as client:
        none = await run(client, folder / "bad.wav", folder / "missing.wav")
        clash = await run(client, folder / "a.wav", folder / "a.mp3")
        field = await run(client, folder / "a.wav", "-l", "klingon")

    assert none.exit_code == 3
    assert "missing.wav: " in none.stderr
    assert clash.exit_code == 2
    assert field.exit_code == 3
    assert "klingon" in field.stderr
    assert not (folder / "a.txt").exists()


async def test_a_service_that_is_not_there_is_named(folder: Path) -> None:
    words = ["transcribe", "--server", "http://127.0.0.1:1", str(folder / "a.wav")]
    result = await asyncio.to_thread(CliRunner().invoke, cli, words)

    assert result.exit_code == 3
    assert "127.0.0.1:1" in result.stderr


@pytest.mark.parametrize(
    "server", ["http://host:8000", "http://host:8000/", "host:8000", " host:8000/v1 ", "http://host:8000/v1/"]
)
def test_a_service_may_be_named_as_people_do(server: str) -> None:
    assert base_url(server) == "http://host:8000"
    assert base_url("https://host/speech/v1") == "https://host/speech"


async def test_what_is_told_is_a_line_each_however_long(folder: Path) -> None:
    missing = folder / ("x" * 150) / "none.wav"
    async with live() as client:
        result = await run(client, folder / "bad.wav", missing)

    told = result.stderr.splitlines()
    assert len(told) == 3
    assert f"{missing}: No such file or directory" in told
    assert any(line.startswith(f"{folder / 'bad.wav'}: This looks like a PNG image") for line in told)
    assert told[-1] == "0 transcribed, 0 skipped, 2 failed"


def test_options_and_profiles_complete_in_the_shell() -> None:
    def complete(words: str) -> list[str]:
        variables = {"_OMNIHEAR_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        result = CliRunner().invoke(cli, [], env=variables, prog_name="omnihear")
        return result.stdout.split()

    assert complete("omnihear ") == ["serve", "transcribe", "profiles", "selftest"]
    assert complete("omnihear transcribe --format ") == ["txt", "json", "srt", "vtt"]
    assert "cudagraph" in complete("omnihear serve --profile c")


async def test_a_key_is_sent_where_one_is_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with live(security={"api_keys": KEY}) as client:
        without = await run(client, folder / "a.wav")
        given = await run(client, folder / "a.wav", "--api-key", KEY)
        monkeypatch.setenv("OMNIHEAR_API_KEY", KEY)
        found = await run(client, folder / "a.wav", "--overwrite")

    assert without.exit_code == 3
    assert "API key is needed" in " ".join(without.output.split())  # lines are broken where the terminal ends
    assert given.exit_code == found.exit_code == 0
    assert KEY not in without.output + given.output + found.output


async def test_a_failure_after_the_start_leaves_no_file(folder: Path) -> None:
    def script(request: SpeechRequest) -> Act:
        return Act(words=("half", "way"), fail=request.request_id != "warm-up")

    async with live(ScriptedEngine(script)) as client:
        result = await run(client, folder / "a.wav")

    assert result.exit_code == 3
    assert names(folder) == ["a.wav", "b.wav", "bad.wav"]


async def test_a_full_service_is_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    holding = Holding("done")
    loop = asyncio.get_running_loop()

    async def note(seconds: float) -> None:
        waits.append(seconds)
        loop.call_soon_threadsafe(holding.gate.set)  # room is made while the command waits
        await asyncio.sleep(0.2)

    monkeypatch.setattr("app.command.remote.anyio.sleep", note)

    async with live(ScriptedEngine(holding), concurrency={"max_requests": 1}) as client:
        other = asyncio.create_task(client.post("/v1/transcribe", files={"file": SPEECH}))
        await holding.arrived.wait()
        result = await run(client, folder / "a.wav")
        await other

    assert result.exit_code == 0
    assert waits
    assert all(1 <= seconds <= LONGEST_WAIT for seconds in waits)


def command(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    words = [sys.executable, "-m", "app.cli", "transcribe", *map(str, arguments)]
    return subprocess.run(words, cwd=ROOT, env=os.environ | variables, capture_output=True, timeout=280, check=False)


def test_without_a_server_one_is_started(folder: Path) -> None:
    result = command(folder / "a.wav", "-o", folder / "out" / "deep", OMNIHEAR_ENGINE_BACKEND="scripted")

    assert result.returncode == 0, result.stderr
    assert (folder / "out" / "deep" / "a.txt").read_text().startswith("audio of")


def test_a_service_of_ones_own_asks_for_no_key(folder: Path) -> None:
    variables = {"OMNIHEAR_ENGINE_BACKEND": "scripted", "OMNIHEAR_SECURITY_API_KEYS": KEY}
    result = command(folder / "a.wav", "-o", folder / "out", **variables)

    assert result.returncode == 0, result.stderr


@pytest.mark.timeout(300)  # imports vLLM, twice
def test_a_service_that_does_not_start_ends_the_command(folder: Path) -> None:
    result = command(folder / "a.wav", OMNIHEAR_ENGINE_MODEL="/nowhere/at/all")

    assert result.returncode == 2, result.stderr
    assert b"did not start" in result.stderr
    assert b"/nowhere/at/all" in result.stderr
