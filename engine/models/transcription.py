"""vLLM's transcription protocol for Qwen2.5-Omni: `/v1/audio/transcriptions` needs it, the stock thinker lacks it."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from transformers.models.whisper.tokenization_whisper import LANGUAGES as WHISPER_LANGUAGES
from vllm.config import ModelConfig, SpeechToTextConfig
from vllm.config.speech_to_text import SpeechToTextParams
from vllm.inputs import PromptType, TextPrompt
from vllm.model_executor.models.interfaces import SupportsTranscription
from vllm.transformers_utils.processor import cached_processor_from_config

from engine.models.packing import count_tokens
from engine.prompt import AUDIO_PLACEHOLDER, LANGUAGE_NAMES, SYSTEM, build_prompt, neutralise

# vLLM checks the codes against Whisper's.
LANGUAGES: Mapping[str, str] = {code: name for code, name in LANGUAGE_NAMES.items() if code in WHISPER_LANGUAGES}

MAX_CLIP_SECONDS = 30


class Transcription(SupportsTranscription):
    """Prompt and audio limits; the words are those of the model's own evaluation of speech recognition."""

    supported_languages: ClassVar[Mapping[str, str]] = LANGUAGES

    @classmethod
    def get_speech_to_text_config(
        cls,
        model_config: ModelConfig,
        task_type: Literal["transcribe", "translate"],
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
        if stt_params.task_type == "translate":
            prompt = build_translation_prompt(stt_params)
        else:
            language = stt_params.language if stt_params.language in LANGUAGES else None
            words = (stt_params.request_prompt, stt_params.hotwords)
            prompt = build_prompt(language, " ".join(filter(None, words)))
        return TextPrompt(
            prompt=prompt,
            multi_modal_data={"audio": (stt_params.audio, stt_params.stt_config.sample_rate)},
        )


def build_translation_prompt(stt_params: SpeechToTextParams) -> str:
    """As `engine.prompt.build_prompt`, with another verb; into English unless the request names a language."""
    spoken = f"the {LANGUAGES[stt_params.language]} audio" if stt_params.language in LANGUAGES else "the audio"
    wanted = LANGUAGES.get(stt_params.to_language or "en", LANGUAGES["en"])
    words = f"Translate {spoken} into {wanted} text. {neutralise(stt_params.request_prompt)}".strip()
    return (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n"
        f"<|im_start|>user\n{AUDIO_PLACEHOLDER}{words}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
