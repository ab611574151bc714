"""Qwen2.5-Omni's audio encoder over a padded batch: all windows of all clips at once.

Transformers' own forward calls attention once for each window in each layer, which a batch of hundreds of clips cannot
afford. This one uses its modules and gives its values.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def encode(tower: Any, features: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
    """Run everything up to `ln_post`, which is what the projection is given.

    Args:
        tower: Transformers' `Qwen2_5OmniAudioEncoder`; windows are 2 `n_window` mel frames long.
        features: shape = (n_clips, n_mels, n_frames), zero behind each clip's frames.
        frames: of each clip, shape = (n_clips,), at least 3.

    Returns:
        Shape = (n_clips, n, d_model), and how many of the n are each clip's own.
    """
    clips, _, longest = features.shape
    window = min(2 * int(tower.n_window), longest + longest % 2)
    count = -(-longest // window)
    padded = functional.pad(features, (0, count * window - longest))
    cut = padded.unflatten(2, (count, window)).transpose(1, 2).flatten(0, 1)
    starts = torch.arange(count, device=frames.device) * window
    own = (frames[:, None] - starts).clamp(0, window).flatten()  # mel frames in each window
    used = own > 0
    hidden = _windows(tower, cut[used], own[used])
    whole = hidden.new_zeros(clips * count, *hidden.shape[1:])
    whole[used] = hidden
    flat = whole.unflatten(0, (clips, count)).flatten(1, 2)  # full windows have an even number: pairs stay together
    pooled = flat[:, : flat.shape[1] // 2 * 2].unflatten(1, (-1, 2)).mean(2)
    return tower.ln_post(pooled), audio_tokens(frames)


def audio_tokens(frames: Tensor) -> Tensor:
    """Embeddings that so many mel frames become: a convolution of stride 2, then pairs."""
    halves: Tensor = (frames - 1) // 2 + 1
    return halves // 2


def _windows(tower: Any, features: Tensor, frames: Tensor) -> Tensor:
    """Each row is one window and sees nothing else, positions included."""
    columns = torch.arange(features.shape[2], device=features.device)
    hidden = functional.gelu(tower.conv1(features)) * (columns < frames[:, None])[:, None]
    hidden = functional.gelu(tower.conv2(hidden)).transpose(1, 2)
    hidden = hidden + tower.positional_embedding.positional_embedding[: hidden.shape[1]].to(hidden.dtype)
    halves = (frames - 1) // 2 + 1
    seen = (torch.arange(hidden.shape[1], device=hidden.device) < halves[:, None])[:, None, None]
    for layer in tower.layers:
        attention = layer.self_attn
        normed = layer.self_attn_layer_norm(hidden)
        query, key, value = (
            projection(normed).unflatten(2, (attention.num_heads, -1)).transpose(1, 2)
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        hidden = hidden + attention.out_proj(mixed.transpose(1, 2).flatten(2))
        hidden = hidden + layer.fc2(functional.gelu(layer.fc1(layer.final_layer_norm(hidden))))
    return hidden
