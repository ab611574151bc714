"""vLLM's transcription protocol for Qwen2.5-Omni: `/v1/audio/transcriptions` needs it, the stock thinker lacks it."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from transformers.models.whisper.tokenization_whisper import LANGUAGES as WHISPER_LANGUAGES
from vllm.config import ModelConfig, SpeechToTextConfig
from vllm.config.speech_to_text import SpeechToTextParams
from vllm.inputs import PromptType, TextPrompt
from vllm.model_executor.models.interfaces import SupportsTranscription
from vllm.transformers_utils.processor import cached_processor_from_config

from engine.models.packing import count_tokens
from engine.prompt import LANGUAGE_NAMES, build_prompt

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
        into = stt_params.to_language
        prompt = build_prompt(
            stt_params.language if stt_params.language in LANGUAGES else None,
            " ".join(filter(None, (stt_params.request_prompt, stt_params.hotwords))),
            task=stt_params.task_type,
            into=into if into in LANGUAGES else "en",
        )
        return TextPrompt(
            prompt=prompt,
            multi_modal_data={"audio": (restore_scale(stt_params.audio), stt_params.stt_config.sample_rate)},
        )


def restore_scale(waveform: NDArray[np.float32]) -> NDArray[np.float32]:
    """Samples in [-1, 1] from samples that may still be integers by value, shape = (n_samples,).

    Without soundfile vLLM 0.32 reads files through PyAV, and where their rate is right already it hands on 16-bit or
    32-bit integers unscaled (`load_audio_pyav`). No waveform in [-1, 1], clipped or overdriven, comes near 16.
    """
    peak = float(np.abs(waveform).max(initial=0.0))
    if peak <= 16:
        return waveform
    return (waveform / (2**15 if peak <= 2**15 else 2**31)).astype(np.float32)
