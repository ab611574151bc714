import json
from typing import Any

import pytest
from typer.testing import CliRunner

from app import cli
from app.settings import load_settings
from engine import selftest
from engine.selftest import Mode, Verdict, judge, modes_here, run

STATUS: dict[str, Any] = {
    "accelerated": True,
    "attention": "FLASH_ATTN",
    "compile": {"state": "off", "layers": 0, "loaded_from_cache": 0, "error": None},
    "graphs": {"state": "off", "budgets": [], "max_clips": 0, "hits": 0, "misses": 0},
}
COMPILED = STATUS | {"compile": {"state": "active", "layers": 4, "loaded_from_cache": 3, "error": None}}
GRAPHED = STATUS | {"graphs": {"state": "active", "budgets": [32], "max_clips": 32, "hits": 9, "misses": 1}}


def outcome(**changes: Any) -> dict[str, Any]:
    texts = {"one": "Good morning.", "two": "Good night."}
    made: dict[str, Any] = {"alone": texts, "together": texts, "output": [3.0, 4.0], "dtype": "bfloat16"}
    return made | {"status": STATUS} | changes


def test_equal_texts_and_outputs_pass() -> None:
    verdict = judge("compile", outcome(status=COMPILED, output=[3.0, 4.05]), outcome())
    assert verdict.ok
    assert (verdict.texts, verdict.equal) == (4, 4)
    assert verdict.error == pytest.approx(0.01)
    assert verdict.note == "attention FLASH_ATTN, 4 layers compiled"
    assert "9 clips by graph, 1 without" in judge("graph", outcome(status=GRAPHED), outcome()).note
    assert judge("stock", outcome(status={"accelerated": False}), outcome()).ok


@pytest.mark.parametrize(
    ("mode", "changes", "note"),
    [
        ("eager", {"alone": {"one": "Good mourning.", "two": "Good night."}}, "'Good mourning.' in place of 'Good mo"),
        ("eager", {"output": [3.0, 4.5]}, "differs by more than 0.03"),
        ("eager", {"output": [3.0, float("nan")]}, "differs by more than"),
        ("eager", {"status": {"accelerated": False}}, "plugin"),
        ("stock", {}, "accelerated encoder was used"),
        ("compile", {}, "compilation is off"),
        ("both", {"status": COMPILED}, "graphs are off"),
        ("graph", {"status": GRAPHED | {"graphs": GRAPHED["graphs"] | {"hits": 0}}}, "with 0 hits"),
        ("graph", {"failed": "exit 1: out of memory"}, "out of memory"),
    ],
)
def test_every_difference_and_every_fallback_fails(mode: Any, changes: dict[str, Any], note: str) -> None:
    verdict = judge(mode, outcome(**changes), outcome())
    assert not verdict.ok
    assert note in verdict.note


def test_nothing_passes_without_an_eager_result() -> None:
    assert not judge("compile", outcome(status=COMPILED), {"failed": "exit 1"}).ok


def test_a_machine_without_a_gpu_has_no_graphs() -> None:
    assert modes_here() == ("eager", "stock", "compile")


@pytest.mark.parametrize("ok", [True, False])
def test_the_command_tells_by_its_exit_code(monkeypatch: pytest.MonkeyPatch, *, ok: bool) -> None:
    verdict = Verdict(mode="eager", ok=ok, texts=2, equal=2, error=0.0, note="[odd] note", seconds=1.0)
    monkeypatch.setattr(selftest, "run", lambda config, modes: iter([verdict]))
    monkeypatch.setenv("COLUMNS", "200")
    result = CliRunner().invoke(cli.cli, ["selftest", "--profile", "cpu"])
    assert result.exit_code == (0 if ok else 1)
    assert ("pass" if ok else "FAIL") in result.output
    assert "[odd] note" in result.output


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_an_engine_transcribes_the_bundled_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[dict[str, Any]] = []

    def keep(mode: Mode, made: dict[str, Any], *rest: Any) -> Verdict:
        judged.append(made)
        return judge(mode, made, *rest)

    monkeypatch.setattr(selftest, "judge", keep)
    config = load_settings("cpu").engine
    [verdict] = run(config, ["eager"])
    assert verdict.ok, verdict.note
    assert verdict.error == 0
    expected = json.loads((selftest.AUDIO / "transcripts.json").read_text())
    texts = judged[0]["alone"]
    assert {f"{name}.wav" for name in texts} < set(expected)
    assert texts["test-flite-male"].strip() == "This is a short test of the transcription service."


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_a_mode_that_cannot_start_says_why() -> None:
    config = load_settings("cpu").engine.model_copy(update={"max_model_len": 4096})
    [verdict] = run(config, ["eager"])
    assert not verdict.ok
    assert "max_model_len (4096) is greater" in verdict.note
