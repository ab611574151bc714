"""The thinker inside real engines on the CPU, with the embedded checkpoint and the demo clips."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniAudioEncoder
from vllm import LLM, SamplingParams
from vllm.config import CompilationMode, set_current_vllm_config
from vllm.utils.torch_utils import set_default_torch_dtype

from benchmarks.checkpoints import EMBEDDED
from benchmarks.towers import StockTower, finish_loading
from engine.interface import SAMPLE_RATE
from engine.models.audio_encoder import AudioEncoder
from engine.models.thinker import OmnihearThinker
from engine.prompt import build_prompt
from engine.selftest import AUDIO, decode

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(300),
    # vLLM's and torch's own deprecations as an engine starts and compiles.
    pytest.mark.filterwarnings("ignore"),
]

PREFIX = "thinker.audio_tower."
CLIPS = sorted(AUDIO.glob("*.wav"))


@pytest.fixture(scope="module", name="llm")
def _llm() -> LLM:
    return LLM(
        model=str(EMBEDDED),
        max_model_len=2048,
        max_num_seqs=8,
        limit_mm_per_prompt={"audio": 1, "image": 0, "video": 0},
        enforce_eager=True,
        worker_extension_cls="engine.models.status.WorkerExtension",
        mm_processor_cache_gb=0,
        enable_prefix_caching=False,
    )


def find_model(llm: LLM) -> OmnihearThinker:
    model = llm.llm_engine.model_executor.driver_worker.worker.get_model()
    assert type(model) is OmnihearThinker
    return model


def transcribe(llm: LLM) -> list[str]:
    prompts = [
        {"prompt": build_prompt("en"), "multi_modal_data": {"audio": (decode(clip), SAMPLE_RATE)}} for clip in CLIPS
    ]
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=100), use_tqdm=False)
    return [output.outputs[0].text for output in outputs]


def tower_weights() -> dict[str, torch.Tensor]:
    weights = load_file(EMBEDDED / "model.safetensors")
    return {name.removeprefix(PREFIX): value for name, value in weights.items() if name.startswith(PREFIX)}


def test_demo_clips_read_the_same_with_the_stock_and_the_compiled_tower(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = find_model(llm)
    native = transcribe(llm)
    expected = json.loads((AUDIO / "transcripts.json").read_text())
    assert "library opens at nine" in native[CLIPS.index(AUDIO / "library-us-female.wav")]
    assert len(native) == len(CLIPS) <= len(expected)

    config = model.config.audio_config
    with set_default_torch_dtype(torch.bfloat16):
        stock = Qwen2_5OmniAudioEncoder(config).eval()
    stock.load_state_dict(tower_weights())
    with monkeypatch.context() as patch:
        patch.setattr(model, "_process_audio_input", StockTower(stock)._process_audio_input)
        assert transcribe(llm) == native

    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    compilation = model.vllm_config.compilation_config
    with monkeypatch.context() as patch:
        patch.setattr(compilation, "compile_mm_encoder", True)
        patch.setattr(compilation, "mode", CompilationMode.DYNAMO_TRACE_ONCE)  # the CPU platform's
        patch.setattr(compilation, "backend", "inductor")
        with set_current_vllm_config(model.vllm_config), set_default_torch_dtype(torch.bfloat16):
            tower = AudioEncoder(config)
        tower.load_weights(tower_weights().items())
        finish_loading(tower)
        original, model.audio_tower = model.audio_tower, tower
        try:
            assert transcribe(llm) == native
        finally:
            model.audio_tower = original
        assert tower.compile_state == "active"


def test_the_worker_reports_and_encodes(llm: LLM) -> None:
    [status] = llm.collective_rpc("encoder_status")
    assert status["accelerated"]
    assert status["compile"]["state"] == status["graphs"]["state"] == "off"

    [once] = llm.collective_rpc("encoder_output", args=([100, 333],))
    [again] = llm.collective_rpc("encoder_output", args=([100, 333],))
    assert once == again
    assert once["shapes"] == [[25, 384], [83, 384]]
    assert np.isfinite(np.frombuffer(once["values"], dtype=np.float32)).all()


def test_limits_and_token_counts_come_from_the_processor(llm: LLM) -> None:
    model_config = llm.llm_engine.model_config
    stt_config = OmnihearThinker.get_speech_to_text_config(model_config, "transcribe")
    assert (stt_config.sample_rate, stt_config.max_audio_clip_s) == (SAMPLE_RATE, 30)
    assert stt_config.allow_audio_chunking
    assert OmnihearThinker.get_num_audio_tokens(30.0, stt_config, model_config) == 750


@pytest.fixture(name="server")
def _server(tmp_path: Path) -> Iterator[str]:
    """A plain vLLM server, of which only the installed entry point tells that this project exists."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--model", str(EMBEDDED), "--served-model-name", "omni", "--max-model-len", "2048", "--enforce-eager"]
    command += ["--limit-mm-per-prompt", '{"audio": 1, "image": 0, "video": 0}']
    address = f"http://127.0.0.1:{port}"
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    try:
        deadline = time.monotonic() + 240
        while True:
            assert process.poll() is None, (tmp_path / "server.log").read_text()[-4000:]
            assert time.monotonic() < deadline, "the server did not become ready"
            try:
                if httpx.get(f"{address}/health", timeout=5).status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.5)  # another process: there is nothing to wait on but its port
        yield address
    finally:
        process.terminate()
        process.wait(30)


def test_a_plain_vllm_server_transcribes(server: str) -> None:
    clip = AUDIO / "test-flite-male.wav"
    form: dict[str, Any] = {"model": "omni", "language": "en", "temperature": "0"}
    answer = httpx.post(
        f"{server}/v1/audio/transcriptions", files={"file": (clip.name, clip.read_bytes())}, data=form, timeout=100
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["text"].strip() == "This is a short test of the transcription service."
