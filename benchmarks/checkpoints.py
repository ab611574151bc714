"""Checkpoints without weights, at the dimensions of real ones, for `load_format = "dummy"`."""

import json
import shutil
from pathlib import Path
from typing import Any

from engine.config import MODELS

EMBEDDED = MODELS / "omni-tiny-en"

AUDIO_SIZES: dict[str, dict[str, int]] = {
    # Qwen/Qwen2.5-Omni-3B
    "3b": {
        "num_mel_bins": 128,
        "d_model": 1280,
        "encoder_layers": 32,
        "encoder_attention_heads": 20,
        "encoder_ffn_dim": 5120,
        "n_window": 100,
        "max_source_positions": 1500,
        "output_dim": 2048,
    },
    # Windows as in the real model, everything else small.
    "tiny": {
        "num_mel_bins": 16,
        "d_model": 64,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 128,
        "n_window": 100,
        "max_source_positions": 1500,
        "output_dim": 64,
    },
}

TEXT_SIZES: dict[str, dict[str, Any]] = {
    "3b": {
        "hidden_size": 2048,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "intermediate_size": 11008,
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [16, 24, 24]},
        "tie_word_embeddings": True,
    },
    "tiny": {
        "hidden_size": 64,  # heads of 32: the narrowest that vLLM's attention on CPUs has
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 64,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
    },
}


def write_checkpoint(folder: Path, size: str) -> Path:
    """A checkpoint without weights: the embedded one's tokenizer and form, with other dimensions."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(EMBEDDED / name, folder)
    config = json.loads((EMBEDDED / "config.json").read_text())
    thinker = config["thinker_config"]
    thinker["audio_config"] |= AUDIO_SIZES[size]
    text = thinker["text_config"]
    text |= TEXT_SIZES[size]
    text["layer_types"] = ["full_attention"] * text["num_hidden_layers"]
    thinker["vision_config"]["out_hidden_size"] = text["hidden_size"]
    (folder / "config.json").write_text(json.dumps(config))
    processor = json.loads((EMBEDDED / "processor_config.json").read_text())
    processor["feature_extractor"]["feature_size"] = AUDIO_SIZES[size]["num_mel_bins"]
    (folder / "processor_config.json").write_text(json.dumps(processor))
    return folder
