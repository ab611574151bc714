"""Transcribes clips with Transformers, greedily: for evaluation without a service, and what vLLM must equal."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import Qwen2_5OmniProcessor, Qwen2_5OmniThinkerForConditionalGeneration

from engine.interface import SAMPLE_RATE
from engine.models.feature_extractor import ClipFeatureExtractor
from engine.prompt import build_prompt, token_budget
from training.progress import bar

BATCH = 16


class Transcriber:
    """A checkpoint, loaded."""

    def __init__(self, folder: Path, *, dtype: torch.dtype = torch.bfloat16) -> None:
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._dtype = dtype
        self._processor = Qwen2_5OmniProcessor.from_pretrained(folder)
        # The same values without 300 s of padding for each clip.
        self._processor.feature_extractor = ClipFeatureExtractor.from_pretrained(folder)
        self._processor.tokenizer.padding_side = "left"
        model = Qwen2_5OmniThinkerForConditionalGeneration.from_pretrained(folder, dtype=dtype)
        self._model = model.to(self._device).eval()

    def texts(self, clips: Sequence[NDArray[np.int16]], *, batch: int = BATCH) -> list[str]:
        """Of each clip, at most 30 s long, in the order given.

        Args:
            clips: 16 kHz mono, each of shape = (n_samples,).
            batch: clips at a time; with 1 nothing depends on the neighbours' lengths.
        """
        order = sorted(range(len(clips)), key=lambda index: len(clips[index]))
        heard: dict[int, str] = {}
        with bar("transcribing", len(clips)) as progress:
            for start in range(0, len(order), batch):
                chosen = order[start : start + batch]
                heard |= dict(zip(chosen, self._batch([clips[index] for index in chosen]), strict=True))
                progress.advance(len(chosen))
        return [heard[index] for index in range(len(clips))]

    @torch.no_grad()
    def _batch(self, clips: Sequence[NDArray[np.int16]]) -> list[str]:
        waveforms = [clip.astype(np.float32) / 32768 for clip in clips]
        inputs = self._processor(
            text=[build_prompt("en")] * len(clips), audio=waveforms, padding=True, return_tensors="pt"
        ).to(self._device)
        inputs["input_features"] = inputs["input_features"].to(self._dtype)
        budget = token_budget(max(map(len, clips)) / SAMPLE_RATE)
        answers = self._model.generate(**inputs, max_new_tokens=budget, do_sample=False)
        own = answers[:, inputs["input_ids"].shape[1] :]
        return [text.strip() for text in self._processor.batch_decode(own, skip_special_tokens=True)]
