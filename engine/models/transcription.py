"""vLLM's transcription protocol for Qwen2.5-Omni, which the stock thinker lacks: `/v1/audio/transcriptions` needs it."""

import re
from collections.abc import Mapping
from typing import ClassVar, Literal

from vllm.config import ModelConfig, SpeechToTextConfig
from vllm.config.speech_to_text import SpeechToTextParams
from vllm.inputs import PromptType, TextPrompt
from vllm.model_executor.models.interfaces import SupportsTranscription
from vllm.transformers_utils.processor import cached_processor_from_config

from engine.models.packing import count_tokens

# Languages the model card or the technical report (arXiv 2503.20215) names for speech input, by ISO 639-1 code.
LANGUAGES: Mapping[str, str] = {
    "ar": "Arabic",
    "de": "German",
    "en": "English",
    "es": "Spanish",
    "fr": "French",
    "id": "Indonesian",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "pt": "Portuguese",
    "ru": "Russian",
    "th": "Thai",
    "vi": "Vietnamese",
    "zh": "Chinese",
}

MAX_CLIP_SECONDS = 30

_SPECIAL_TOKEN = re.compile(r"<\|[^|<>]*\|>")


class Transcription(SupportsTranscription):
    """Prompt and audio limits; the words are those of the model's own evaluation of speech recognition."""

    supported_languages: ClassVar[Mapping[str, str]] = LANGUAGES

    @classmethod
    def get_speech_to_text_config(
        cls,
        model_config: ModelConfig,
        task_type: Literal["transcribe", "translate"],  # noqa: ARG003
    ) -> SpeechToTextConfig:
        """Clips of at most 30 s, cut where it is quiet, as the model was trained."""
        extractor = cached_processor_from_config(model_config).feature_extractor
        return SpeechToTextConfig(sample_rate=extractor.sampling_rate, max_audio_clip_s=MAX_CLIP_SECONDS)

    @classmethod
    def get_num_audio_tokens(
        cls,
        audio_duration_s: float,
        stt_config: SpeechToTextConfig,
        model_config: ModelConfig,
    ) -> int | None:
        """Embeddings that a clip of this length becomes."""
        hop = cached_processor_from_config(model_config).feature_extractor.hop_length
        return count_tokens(int(audio_duration_s * stt_config.sample_rate) // hop)

    @classmethod
    def get_generation_prompt(cls, stt_params: SpeechToTextParams) -> PromptType:
        """The chat form with one audio part before the instruction."""
        prompt = (
            "<|im_start|>system\nYou are a speech recognition model.<|im_end|>\n"
            "<|im_start|>user\n<|audio_bos|><|AUDIO|><|audio_eos|>"
            f"{build_instruction(stt_params)}<|im_end|>\n"
            "<|im_start|>assistant\n"
        )
        return TextPrompt(
            prompt=prompt,
            multi_modal_data={"audio": (stt_params.audio, stt_params.stt_config.sample_rate)},
        )


def build_instruction(stt_params: SpeechToTextParams) -> str:
    """What the user turn asks for. Special tokens in the user's own words are dropped."""
    spoken = LANGUAGES.get(stt_params.language or "", "")
    if stt_params.task_type == "translate":
        wanted = LANGUAGES.get(stt_params.to_language or "en", "English")
        instruction = f"Translate the {spoken + ' ' if spoken else ''}audio into {wanted} text."
    else:
        instruction = f"Transcribe the {spoken + ' ' if spoken else ''}audio into text."
    words = (stt_params.request_prompt, stt_params.hotwords)
    context = " ".join(_SPECIAL_TOKEN.sub(" ", word).strip() for word in words if word)
    return f"{instruction} Context: {context}" if context.strip() else instruction
