"""The Qwen2.5-Omni thinker with the accelerated audio tower, in the place of vLLM's own class.

Everything but the tower is vLLM's: processor, multimodal positions, language model, and the vision tower where images
or video are allowed.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.models.interfaces import MultiModalEmbeddings
from vllm.model_executor.models.qwen2_5_omni_thinker import (
    Qwen2_5OmniAudioFeatureInputs,
    Qwen2_5OmniThinkerDummyInputsBuilder,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen2_5OmniThinkerMultiModalProcessor,
)
from vllm.model_executor.models.qwen2_5_vl import Qwen2_5_VisionTransformer
from vllm.model_executor.models.utils import StageMissingLayer, init_vllm_registered_model, maybe_prefix
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.utils.torch_utils import async_tensor_h2d

from engine.models.audio_encoder import AudioEncoder, select_quant_config
from engine.models.cpu_kernels import use_cpu_kernels, use_few_shapes
from engine.models.encoder_graphs import AudioEncoderGraphs, apply_default_budgets
from engine.models.packing import count_tokens
from engine.models.processor import ThinkerProcessingInfo
from engine.models.transcription import Transcription

if TYPE_CHECKING:
    from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniThinkerConfig


@MULTIMODAL_REGISTRY.register_processor(
    Qwen2_5OmniThinkerMultiModalProcessor,
    info=ThinkerProcessingInfo,
    dummy_inputs=Qwen2_5OmniThinkerDummyInputsBuilder,
)
class OmnihearThinker(Qwen2_5OmniThinkerForConditionalGeneration, AudioEncoderGraphs, Transcription):
    """Audio, text, image and video in, text out."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        # The stock constructor would build Transformers' audio tower, so it is not called; the rest is as there.
        nn.Module.__init__(self)
        config: Qwen2_5OmniThinkerConfig = vllm_config.model_config.hf_config.thinker_config
        quant_config = vllm_config.quant_config
        self.vllm_config = vllm_config
        self.config = config
        self.multimodal_config = vllm_config.model_config.multimodal_config
        self.quant_config = quant_config
        apply_default_budgets(vllm_config)

        with self._mark_tower_model(vllm_config, "audio"):
            self.audio_tower = AudioEncoder(
                config.audio_config,
                quant_config=select_quant_config(quant_config),
                prefix=maybe_prefix(prefix, "audio_tower"),
            )

        with self._mark_tower_model(vllm_config, {"image", "video"}):
            self.visual = Qwen2_5_VisionTransformer(
                vision_config=config.vision_config,
                norm_eps=getattr(config.text_config, "rms_norm_eps", 1e-6),
                quant_config=quant_config,
                prefix=maybe_prefix(prefix, "visual"),
            )

        with self._mark_language_model(vllm_config):
            self.language_model = init_vllm_registered_model(
                vllm_config=vllm_config,
                prefix=maybe_prefix(prefix, "language_model"),
                hf_config=config.text_config,
                architectures=["Qwen2ForCausalLM"],
            )

        if isinstance(self.visual, StageMissingLayer):
            use_cpu_kernels(self.language_model, vllm_config)

        self.make_empty_intermediate_tensors = self.language_model.make_empty_intermediate_tensors

    def process_weights_after_loading(self) -> None:
        """vLLM calls this after every kind of loading, the dummy one included, which fills all of the packed bias."""
        if isinstance(self.audio_tower, AudioEncoder):
            self.audio_tower.zero_key_biases()
        use_few_shapes(self.language_model, self.vllm_config)

    def _process_audio_input(self, audio_input: Qwen2_5OmniAudioFeatureInputs) -> tuple[torch.Tensor, ...]:
        # The lengths stay on the host: the stock method sends them to the device and reads them back.
        lengths = audio_input["audio_feature_lengths"].flatten().tolist()
        embeddings = self.encode_audio(audio_input["input_features"], lengths)
        return embeddings.split([count_tokens(length) for length in lengths])

    def embed_input_ids(
        self,
        input_ids: torch.Tensor,
        multimodal_embeddings: MultiModalEmbeddings | None = None,
        *,
        is_multimodal: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Text embeddings with the audio's in their places, shape = (tokens, hidden_size)."""
        if isinstance(self.visual, StageMissingLayer):
            # Without video no audio can be interleaved with it, which the stock method reads from the device to learn.
            embeddings = self._embed_text_input_ids(
                input_ids, self.get_language_model().embed_input_ids, is_multimodal=is_multimodal
            )
            if is_multimodal is not None and multimodal_embeddings is not None and len(multimodal_embeddings):
                _place(embeddings, multimodal_embeddings, is_multimodal)
            return embeddings
        kwargs: dict[str, Any] = {"is_multimodal": is_multimodal}
        return super().embed_input_ids(input_ids, multimodal_embeddings, **kwargs)


def _place(embeddings: torch.Tensor, clips: Sequence[torch.Tensor], where: torch.Tensor) -> None:
    """Write the clips' rows over the rows of `embeddings` that `where` marks; model runners keep it on the host.

    Assignment through a mask, as vLLM does it, copies the places from pageable memory, for which the host waits until
    the device has done all that it was given before: the encoder's pass and the step before this one.
    """
    places = async_tensor_h2d(where.cpu().nonzero().flatten(), device=embeddings.device)
    embeddings.index_copy_(0, places, torch.cat(list(clips)).to(embeddings.dtype))
