"""All stages, one after the other, as the README has them, on the CPU: seconds of audio and a few steps."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from safetensors.torch import load_file
from transformers import Qwen2_5OmniProcessor, Qwen2_5OmniThinkerForConditionalGeneration
from typer.testing import CliRunner

from benchmarks.clips import DEMO, demo_clips, read_recording
from engine.config import MODELS
from tests.audio_factory import TRANSCRIPTS
from tests.serving import serving
from tests.words import word_error_rate
from training import augment, evaluate, export, pack, shards, synthesize, train
from training.configuration import Configuration, load
from training.decoding import Transcriber

SMOKE = Path(__file__).parents[2] / "training" / "configs" / "smoke.toml"
Losses = list[dict[str, float]]
FORM = MODELS / "omni-tiny-en"


def run(command: Any, *arguments: str) -> str:
    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(name="config", scope="module")
def _config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The smoke configuration with a folder of its own."""
    folder = tmp_path_factory.mktemp("training")
    path = folder / "smoke.toml"
    path.write_text(SMOKE.read_text().replace('"build/training/smoke"', json.dumps(str(folder / "work"))))
    yield path
    shutil.rmtree(folder)  # pytest keeps folders of three runs, and a state of training is 400 MB


@pytest.fixture(name="packed", scope="module")
def _packed(config: Path) -> Configuration:
    for stage in (synthesize, augment, pack):
        run(stage.main, str(config))
    return load(config)


@pytest.fixture(name="losses", scope="module")
def _losses(packed: Configuration) -> Losses:
    """Trained from the parts alone, as on another machine."""
    shutil.rmtree(packed.work / "packed")
    shutil.rmtree(packed.shards)
    (packed.work / "texts.json").unlink()
    return train.run(packed)


@pytest.fixture(name="model", scope="module")
def _model(config: Path, losses: Losses) -> Path:
    run(export.main, str(config), "--split-mib", "15")
    return load(config).model


def test_speech_is_made_coded_and_packed_once(packed: Configuration, config: Path) -> None:
    (part,) = packed.parts.glob("*.tar")
    assert part.stat().st_size < 1_000_000
    before = {path: path.stat().st_mtime_ns for path in packed.work.rglob("*.opus")}
    assert len(before) == 2  # as it was, and coded

    for stage in (synthesize, augment, pack):
        run(stage.main, str(config))

    assert before == {path: path.stat().st_mtime_ns for path in packed.work.rglob("*.opus")}


def test_the_loss_falls(losses: Losses, packed: Configuration) -> None:
    assert len(losses) == packed.training.steps
    totals = [each["total"] for each in losses]
    assert np.mean(totals[-2:]) < np.mean(totals[:2])


def test_only_the_decoder_and_the_projection_have_changed(model: Path) -> None:
    before, after = load_file(FORM / "model.safetensors"), load_file(model / "model.safetensors")

    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert any(name.startswith("thinker.model.layers.7") for name in changed)
    assert any(name.startswith("thinker.audio_tower.proj") for name in changed)
    assert not any(name.startswith(("thinker.audio_tower.layers", "thinker.visual")) for name in changed)


def test_the_folder_is_the_forms_but_for_its_weights(model: Path) -> None:
    for name in export.KEPT:
        assert (model / name).read_bytes() == (FORM / name).read_bytes()
    assert json.loads((model / "config.json").read_text()) == json.loads((FORM / "config.json").read_text())
    before, after = load_file(FORM / "model.safetensors"), load_file(model / "model.safetensors")
    assert {name: (value.shape, value.dtype) for name, value in before.items()} == {
        name: (value.shape, value.dtype) for name, value in after.items()
    }


def test_pieces_of_the_weights_are_the_weights(model: Path) -> None:
    pieces = sorted(model.glob("model.safetensors.*"))

    assert len(pieces) == 4
    assert max(piece.stat().st_size for piece in pieces) <= 15 * 2**20
    assert b"".join(piece.read_bytes() for piece in pieces) == (model / "model.safetensors").read_bytes()


def test_transformers_loads_every_weight(model: Path) -> None:
    _, report = Qwen2_5OmniThinkerForConditionalGeneration.from_pretrained(
        model, dtype=torch.bfloat16, output_loading_info=True
    )

    assert not any(report.values()), report
    assert Qwen2_5OmniProcessor.from_pretrained(model).feature_extractor.feature_size == 80


def test_a_run_that_was_interrupted_goes_on_as_if_it_had_not_been(packed: Configuration, losses: Losses) -> None:
    again = packed.model_copy(update={"work": packed.work / "again"})
    shutil.copytree(packed.parts, again.parts)
    over = again.training.model_copy(update={"minutes": 1e-9})  # after one step
    rest = again.training.model_copy(update={"steps": 2})

    begun = train.run(again.model_copy(update={"training": over}))
    ended = train.run(again.model_copy(update={"training": rest}))

    assert [*begun, *ended] == [pytest.approx(each, abs=0.01) for each in losses[:2]]


def test_evaluation_fills_the_card(config: Path, model: Path) -> None:
    output = run(evaluate.main, str(config), "--most", "3")

    assert "| seen in training | 3 |" in output
    assert "| no speech | 3 |" in output
    told = json.loads((load(config).work / "evaluation.json").read_text())
    assert len(told["clips"]) == 6
    card = (model / "MODEL_CARD.md").read_text()
    assert "$" not in card
    assert re.search(r"\| clip \| 0\.\d\d \| 0\.\d\d \|", card)
    assert "the demo clips of examples/audio" in card
    assert "| seen in training | 3 |" in card


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_vllm_serves_the_folder_and_hears_what_transformers_hears(model: Path, tmp_path: Path) -> None:
    names = [each.name for each in demo_clips() if each.seconds < 12]
    hypotheses = Transcriber(model).texts([read_recording(DEMO / name) for name in names], batch=1)

    with serving(tmp_path, environment={"OMNIHEAR_ENGINE_MODEL": str(model)}) as server, server.client() as client:
        heard = [
            client.post("/v1/transcribe", content=(DEMO / name).read_bytes()).raise_for_status().json()["text"]
            for name in names
        ]

    assert heard == hypotheses
    assert word_error_rate(TRANSCRIPTS["report-us-male.wav"], heard[names.index("report-us-male.wav")]) < 0.5
    assert shards.complete(model.parent / "packed", ".opus") != []
