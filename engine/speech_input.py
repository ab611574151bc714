"""From a segment's waveform to vLLM's engine input, without vLLM's general way there.

The general way tokenizes the whole prompt, runs the checkpoint's processor over it, finds the placeholders again and
does so for one request at a time. Here the prompt's constant parts are tokenized once, their place for the audio is
known, and features are extracted in threads; `tests/engine/test_async_engine.py` holds the two ways equal.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch
from vllm.inputs.engine import MultiModalInput, mm_input
from vllm.model_executor.models.qwen2_5_omni_thinker import create_qwen2_5_omni_thinker_field_factory
from vllm.multimodal.inputs import MultiModalKwargsItems, PlaceholderRange
from vllm.renderers.base import BaseRenderer

from engine.interface import SAMPLE_RATE, RequestRefusedError, SpeechRequest, Waveform
from engine.models.packing import count_tokens
from engine.prompt import AUDIO_TOKEN, Task, build_prompt, token_budget

_SHORTEST_SAMPLES: Final = 1600  # 100 ms: two audio tokens and a half
_THREADS: Final = 4  # the spectrogram runs outside the interpreter's lock, 2 ms of a core for 10 s of audio
_KNOWN_PROMPTS: Final = 256  # languages times contexts whose tokens are kept


class SpeechInputs:
    """Builds engine inputs for one model."""

    def __init__(self, renderer: BaseRenderer, dtype: torch.dtype, max_model_len: int) -> None:
        """Set up.

        Args:
            renderer: of the AsyncLLM that the inputs are for; gives tokenizer and feature extractor.
            dtype: of the model, which features are cast to.
            max_model_len: tokens of prompt and answer together.
        """
        info = renderer.get_mm_processor().info
        self._tokenizer = info.get_tokenizer()
        self._extractor = info.get_feature_extractor()
        self._fields = create_qwen2_5_omni_thinker_field_factory(
            spatial_merge_size=1
        )  # of images, which there are none
        self._audio_id: int = self._tokenizer.convert_tokens_to_ids(AUDIO_TOKEN)
        self._dtype = dtype
        self._max_model_len = max_model_len
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="features")
        self._prompt_ids = lru_cache(_KNOWN_PROMPTS)(self._split_prompt)

    async def build(self, request: SpeechRequest) -> MultiModalInput:
        """Everything the engine needs of a request but its sampling parameters.

        Raises:
            RequestRefusedError: prompt and answer do not fit the model.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._build, request)

    def _build(self, request: SpeechRequest) -> MultiModalInput:
        waveform = _long_enough(request.waveform)
        features = self._extractor(waveform, sampling_rate=SAMPLE_RATE, return_tensors="pt")
        mask = features["attention_mask"]
        n_frames = int(mask.shape[-1])
        fields: dict[str, Any] = {
            "input_audio_features": features["input_features"][0].to(self._dtype),  # [n_mels, n_frames]
            "feature_attention_mask": mask,
            "audio_feature_lengths": torch.tensor([n_frames]),
        }
        before, after = self._prompt_ids(request.language, request.context, request.task)
        n_tokens = count_tokens(n_frames)
        prompt_ids = [*before, *[self._audio_id] * n_tokens, *after]
        needed = len(prompt_ids) + answer_budget(request)
        if needed > self._max_model_len:
            msg = f"prompt, audio and answer take {needed} tokens, the model {self._max_model_len}: shorten the prompt"
            raise RequestRefusedError(msg)
        return mm_input(
            prompt_token_ids=prompt_ids,
            mm_kwargs=MultiModalKwargsItems.from_hf_inputs(fields, self._fields(fields)),
            mm_hashes={"audio": [request.request_id]},  # no cache looks for it: the same audio does not come twice
            mm_placeholders={"audio": [PlaceholderRange(offset=len(before), length=n_tokens)]},
        )

    def _split_prompt(self, language: str | None, context: str, task: Task) -> tuple[list[int], list[int]]:
        ids = self._tokenizer.encode(build_prompt(language, context, task=task))
        place = ids.index(self._audio_id)
        return ids[:place], ids[place + 1 :]

    def close(self) -> None:
        """End the threads; what waits for them is cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def answer_budget(request: SpeechRequest) -> int:
    """Most tokens the answer may take."""
    return request.max_tokens or token_budget(len(request.waveform) / SAMPLE_RATE)


def _long_enough(waveform: Waveform) -> Waveform:
    """Append silence to what is too short for a single audio token."""
    missing = _SHORTEST_SAMPLES - len(waveform)
    return np.pad(waveform, (0, missing)) if missing > 0 else waveform
