"""The batched encoder gives Transformers' values, window by window."""

import pytest
import torch
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniAudioEncoderConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniAudioEncoder

from training.encoder import audio_tokens, encode


@pytest.mark.parametrize("n_window", [20, 100, 1500])
def test_every_clip_has_the_values_of_transformers(n_window: int) -> None:
    torch.manual_seed(0)
    config = Qwen2_5OmniAudioEncoderConfig(
        num_mel_bins=16,
        d_model=32,
        encoder_layers=2,
        encoder_attention_heads=2,
        encoder_ffn_dim=64,
        output_dim=24,
        n_window=n_window,
    )
    tower = Qwen2_5OmniAudioEncoder(config).eval()
    frames = torch.tensor([3, 39, 40, 41, 200, 201, 333])
    features = torch.randn(len(frames), 16, 333) * (torch.arange(333) < frames[:, None])[:, None]

    with torch.no_grad():
        states, lengths = encode(tower, features, frames)
        packed = torch.cat([clip[:, :count] for clip, count in zip(features, frames, strict=True)], dim=1)
        halves = (frames - 1) // 2 + 1
        expected = tower(packed, feature_lens=frames, aftercnn_lens=halves).last_hidden_state

    assert lengths.tolist() == audio_tokens(frames).tolist()
    got = torch.cat([tower.proj(clip[:count]) for clip, count in zip(states, lengths, strict=True)])
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
