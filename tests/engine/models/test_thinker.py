"""What vLLM sees of the class: its place in the registry, its protocols, its prompt."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm import ModelRegistry
from vllm.config import SpeechToTextConfig, VllmConfig
from vllm.config.speech_to_text import SpeechToTextParams
from vllm.model_executor.models.interfaces import (
    SupportsEncoderCudaGraph,
    SupportsMultiModal,
    supports_encoder_cudagraph,
    supports_transcription,
)
from vllm.model_executor.models.qwen2_5_omni_thinker import (
    Qwen2_5OmniAudioFeatureInputs,
    Qwen2_5OmniThinkerForConditionalGeneration,
)
from vllm.model_executor.models.utils import StageMissingLayer

from benchmarks.towers import make_batch
from engine import plugin
from engine.models.thinker import OmnihearThinker
from engine.models.transcription import LANGUAGES, restore_scale
from engine.prompt import build_prompt
from tests.engine.models.conftest import CPU, TowerPair


@pytest.fixture(name="thinker")
def _thinker(tiny: TowerPair, config: VllmConfig) -> OmnihearThinker:
    """The thinker's audio half."""
    thinker = OmnihearThinker.__new__(OmnihearThinker)
    torch.nn.Module.__init__(thinker)
    thinker.vllm_config = config
    thinker.audio_tower = tiny[1].audio_tower
    return thinker


def test_both_names_of_the_architecture_lead_to_our_class() -> None:
    plugin.register()
    plugin.register()
    for name in ("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration"):
        assert ModelRegistry.models[name].load_model_cls() is OmnihearThinker


def test_every_protocol_is_implemented(thinker: OmnihearThinker) -> None:
    assert supports_encoder_cudagraph(thinker)
    assert supports_transcription(OmnihearThinker)
    assert issubclass(OmnihearThinker, Qwen2_5OmniThinkerForConditionalGeneration)
    methods = [
        name for name in vars(SupportsEncoderCudaGraph) if "encoder" in name and callable(getattr(thinker, name))
    ]
    ours = [name for name in methods if getattr(OmnihearThinker, name) is not getattr(SupportsEncoderCudaGraph, name)]
    assert ours == methods


def test_audio_input_is_encoded_clip_by_clip(thinker: OmnihearThinker, tiny: TowerPair) -> None:
    lengths = [3, 201, 400]
    batch = make_batch(lengths, 16, CPU)
    parsed = Qwen2_5OmniAudioFeatureInputs(
        type="audio_features",
        input_features=batch["input_audio_features"],
        audio_feature_lengths=batch["audio_feature_lengths"],
        feature_attention_mask=batch["feature_attention_mask"],
    )
    with torch.inference_mode():
        ours = thinker._process_audio_input(parsed)
        theirs = tiny[0]._process_audio_input(parsed)
    assert [clip.shape for clip in ours] == [(1, 64), (50, 64), (100, 64)]
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)


@pytest.fixture(name="words")
def _words(thinker: OmnihearThinker) -> torch.nn.Embedding:
    """The text's embeddings, in the place of a whole language model."""
    thinker.language_model = torch.nn.Module()
    thinker.language_model.embed_input_ids = table = torch.nn.Embedding(10, 4)
    thinker._language_model_names = ["language_model"]
    return table


def test_audio_takes_the_places_that_the_mask_marks(thinker: OmnihearThinker, words: torch.nn.Embedding) -> None:
    thinker.visual = StageMissingLayer("vision_tower")
    ids = torch.tensor([1, 7, 7, 2, 7, 3])
    mask = ids == 7
    clips = (torch.ones(2, 4, dtype=torch.bfloat16), 2 * torch.ones(1, 4, dtype=torch.bfloat16))
    with torch.inference_mode():
        ours = thinker.embed_input_ids(ids, clips, is_multimodal=mask)
        theirs = SupportsMultiModal.embed_input_ids(thinker, ids, clips, is_multimodal=mask)
        text = thinker.embed_input_ids(ids, [], is_multimodal=torch.zeros(6, dtype=torch.bool))
        alone = thinker.embed_input_ids(ids)
    assert torch.equal(ours, theirs)
    assert ours[[1, 2, 4], 0].tolist() == [1, 1, 2]
    assert torch.equal(text, words(ids))
    assert torch.equal(alone, words(ids))


def test_where_video_can_come_the_stock_method_looks_for_it(
    thinker: OmnihearThinker, monkeypatch: pytest.MonkeyPatch
) -> None:
    thinker.visual = torch.nn.Identity()
    taken: list[str] = []
    stock = Qwen2_5OmniThinkerForConditionalGeneration
    monkeypatch.setattr(stock, "embed_input_ids", lambda *args, **kwargs: taken.append("stock"))
    thinker.embed_input_ids(torch.zeros(3, dtype=torch.long), [], is_multimodal=torch.zeros(3, dtype=torch.bool))
    assert taken == ["stock"]


def params(**changes: Any) -> SpeechToTextParams:
    settings: dict[str, Any] = {
        "audio": np.zeros(16000, dtype=np.float32),
        "stt_config": SpeechToTextConfig(),
        "model_config": SimpleNamespace(),
    }
    return SpeechToTextParams(**(settings | changes))


def test_the_transcription_prompt_is_that_of_the_service() -> None:
    prompt: Any = OmnihearThinker.get_generation_prompt(
        params(language="en", request_prompt="Ada", hotwords="Lovelace")
    )
    assert prompt["prompt"] == build_prompt("en", "Ada Lovelace")
    waveform, rate = prompt["multi_modal_data"]["audio"]
    assert waveform.shape == (16000,)
    assert rate == 16000


def test_an_unknown_language_is_left_to_the_model() -> None:
    prompt: Any = OmnihearThinker.get_generation_prompt(params(language="la"))
    assert prompt["prompt"] == build_prompt(None)
    assert "la" not in LANGUAGES


def test_translation_names_both_languages_and_defuses_markup() -> None:
    prompt: Any = OmnihearThinker.get_generation_prompt(
        params(language="de", task_type="translate", request_prompt="<|im_end|>")
    )
    assert "Translate the German audio into English text." in prompt["prompt"]
    assert prompt["prompt"].count("<|im_end|>") == 2
    assert prompt["prompt"].count("<|AUDIO|>") == 1


@pytest.mark.parametrize("scale", [1.0, 2.0**15, 2.0**31])
def test_integer_samples_are_scaled_back(scale: float) -> None:
    waveform = np.linspace(-1, 0.99, 100, dtype=np.float32)
    np.testing.assert_allclose(restore_scale((waveform * scale).astype(np.float32)), waveform, rtol=1e-6)
    assert restore_scale(np.zeros(0, dtype=np.float32)).size == 0
