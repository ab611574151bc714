"""`compile_mm_encoder`: what it compiles, what it leaves alone, and what happens when compilation fails."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from vllm.compilation.counter import compilation_counter
from vllm.compilation.decorators import ignore_torch_compile
from vllm.config import CompilationConfig, CompilationMode, DeviceConfig, VllmConfig
from vllm.config.compilation import PassConfig

from benchmarks.checkpoints import AUDIO_SIZES
from benchmarks.towers import NativeTower, build_native, make_batch
from engine.models import audio_encoder
from engine.models.status import describe_encoder
from tests.engine.models.conftest import CPU, TowerPair

LAYERS = AUDIO_SIZES["tiny"]["encoder_layers"]
LENGTHS = [3, 201, 777]

pytestmark = [
    pytest.mark.usefixtures("config"),
    # Dynamo's and Inductor's own deprecations while they trace.
    pytest.mark.filterwarnings("ignore"),
]


def compile_config(*, enabled: bool = True, backend: str = "eager") -> VllmConfig:
    """vLLM's own compilation, as on a GPU; with the "eager" backend everything but code generation happens.

    The CPU platform turns VLLM_COMPILE into tracing alone, so the mode is set after it had its say.
    """
    config = VllmConfig(
        device_config=DeviceConfig(device="cpu"),
        compilation_config=CompilationConfig(compile_mm_encoder=enabled, backend=backend),
    )
    # Passes for quantised models, which exist on GPUs only.
    config.compilation_config.pass_config = PassConfig(fuse_norm_quant=False, fuse_act_quant=False)
    config.compilation_config.mode = CompilationMode.VLLM_COMPILE
    config.compilation_config.backend = backend
    config.compilation_config.compile_sizes = []
    return config


def build(config: VllmConfig) -> NativeTower:
    return build_native("tiny", config, CPU, torch.float32)


@torch.inference_mode()
def encode(model: NativeTower, lengths: list[int] = LENGTHS) -> torch.Tensor:
    return torch.cat(model.embed(make_batch(lengths, 16, CPU)))


def test_every_layer_is_compiled_once(tiny: TowerPair) -> None:
    with compilation_counter.expect(num_models_seen=LAYERS, num_graphs_seen=LAYERS):
        model = build(compile_config())
        states = [model.audio_tower.compile_state]
        compiled = encode(model)
        states.append(model.audio_tower.compile_state)
        other_shape = encode(model, [64, 1000])
    assert states == ["pending", "active"]
    torch.testing.assert_close(compiled, encode(tiny[1]), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(other_shape, encode(tiny[1], [64, 1000]), rtol=1e-5, atol=1e-5)
    status = describe_encoder(model, None)["compile"]
    assert (status["state"], status["layers"], status["error"]) == ("active", LAYERS, None)


def test_without_the_decorator_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    @ignore_torch_compile
    class Undecorated(audio_encoder.AudioEncoderLayer):
        pass

    monkeypatch.setattr(audio_encoder, "AudioEncoderLayer", Undecorated)
    with compilation_counter.expect(num_models_seen=0, num_graphs_seen=0):
        model = build(compile_config())
        encode(model)
    assert model.audio_tower.compile_state == "off"


def test_off_compiles_nothing_and_changes_no_bit(tiny: TowerPair) -> None:
    with compilation_counter.expect(num_models_seen=0, num_graphs_seen=0):
        model = build(compile_config(enabled=False))
        plain = encode(model)
    assert model.audio_tower.compile_state == "off"
    assert not any(hasattr(layer, "_compiled_callable") for layer in model.audio_tower.layers)
    assert torch.equal(plain, encode(tiny[1]))
    assert describe_encoder(model, None)["compile"]["layers"] == 0


def test_generated_code_gives_the_same_embeddings(
    tiny: TowerPair, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    config = VllmConfig(
        device_config=DeviceConfig(device="cpu"), compilation_config=CompilationConfig(compile_mm_encoder=True)
    )
    config.compilation_config.mode = CompilationMode.DYNAMO_TRACE_ONCE  # the CPU platform's
    config.compilation_config.backend = "inductor"
    model = build(config)
    torch.testing.assert_close(encode(model), encode(tiny[1]), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(encode(model, [64, 1000]), encode(tiny[1], [64, 1000]), rtol=1e-5, atol=1e-5)
    assert model.audio_tower.compile_state == "active"


@pytest.fixture(name="broken")
def _broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[], NativeTower]:
    """A tower whose compiler raises."""

    def backend(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no working C compiler")

    def build_broken() -> NativeTower:
        monkeypatch.setattr(CompilationConfig, "init_backend", lambda *args, **kwargs: backend)
        return build(compile_config())

    return build_broken


def test_a_failed_compilation_leaves_the_eager_layers(
    broken: Callable[[], NativeTower], tiny: TowerPair, caplog: pytest.LogCaptureFixture
) -> None:
    model = broken()
    with caplog.at_level(logging.WARNING, logger=audio_encoder.logger.name):
        audio_encoder.logger.addHandler(caplog.handler)
        try:
            results = [encode(model), encode(model)]
        finally:
            audio_encoder.logger.removeHandler(caplog.handler)
    warnings = [record for record in caplog.records if "runs uncompiled" in record.message]
    assert len({record.message for record in warnings}) == 1
    assert len([record for record in warnings if record.name == audio_encoder.logger.name]) <= 2
    for result in results:
        assert torch.equal(result, encode(tiny[1]))
    status = describe_encoder(model, None)["compile"]
    assert (status["state"], status["layers"]) == ("failed", 0)
    assert "no working C compiler" in status["error"]


def test_running_out_of_memory_is_not_taken_for_a_failed_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(compile_config())

    def exhaust(*args: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("device is full")

    monkeypatch.setattr(model.audio_tower, "_run_layers", exhaust)
    with pytest.raises(torch.OutOfMemoryError):
        encode(model)
    assert model.audio_tower.compile_state == "pending"
