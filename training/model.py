"""The network that is trained: Transformers' own classes at the dimensions of the form it starts from."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, Qwen2_5OmniProcessor, Qwen2_5OmniThinkerForConditionalGeneration

from training import whisper
from training.batches import ALPHABET
from training.configuration import Configuration
from training.encoder import encode

IGNORED = -100


class Network(nn.Module):
    """Encoder, projection and decoder over padded batches, and what only training needs.

    Attributes:
        thinker: what is exported.
        characters: head of the auxiliary loss over letters, on the decoder's middle layer.
        teacher: the encoder as it was before training, where its features are distilled; not a part of the state.
    """

    def __init__(self, thinker: Any, *, dropout: float) -> None:
        super().__init__()
        self.thinker = thinker
        text = thinker.config.text_config
        self.middle = text.num_hidden_layers // 2
        self.characters = nn.Linear(text.hidden_size, len(ALPHABET) + 1)  # 0 is the blank
        self._teacher: list[Any] = []
        for layer in thinker.model.layers:  # Transformers' Qwen2 has no dropout on the residual stream
            for module in (layer.self_attn.o_proj, layer.mlp.down_proj):
                module.register_forward_hook(
                    lambda module, _, output: functional.dropout(output, dropout, module.training)
                )

    def keep_teacher(self, n_window: int) -> None:
        """Freeze a copy of the encoder, with its own windows, to distil from."""
        teacher = copy.deepcopy(self.thinker.audio_tower).eval().requires_grad_(requires_grad=False)
        teacher.n_window = n_window
        self._teacher = [teacher]  # in a list, so that it is no submodule

    def audio(self, features: Tensor, frames: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode.

        Returns:
            Encoder states and embeddings, each of shape = (n_clips, n, width), and how many are each clip's own.
        """
        tower = self.thinker.audio_tower
        states, lengths = encode(tower, features, frames)
        return states, tower.proj(states), lengths

    @torch.no_grad()
    def taught(self, features: Tensor, frames: Tensor) -> Tensor:
        """Encoder states of the teacher."""
        (teacher,) = self._teacher
        teacher.to(features.device)
        return encode(teacher, features, frames)[0]

    def embed(self, tokens: Tensor, embeddings: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        """Token embeddings, with the audio's in their places.

        Args:
            tokens: shape = (n_clips, n_tokens).
            embeddings: shape = (n_clips, n, width), of which the first `lengths` are used.
        """
        embedded = self.thinker.model.embed_tokens(tokens)
        if embeddings is None or lengths is None:
            return embedded
        own = torch.arange(embeddings.shape[1], device=tokens.device) < lengths[:, None]
        places = (tokens == self.thinker.config.audio_token_id)[..., None]
        return embedded.to(embeddings.dtype).masked_scatter(places, embeddings[own])

    def decode(self, embedded: Tensor) -> tuple[Tensor, Tensor]:
        """States of the last and of the middle layer; padding is on the right, where causal attention never looks."""
        output = self.thinker.model(inputs_embeds=embedded, use_cache=False, output_hidden_states=True)
        return output.last_hidden_state, output.hidden_states[self.middle]

    def token_loss(self, states: Tensor, targets: Tensor, *, smoothing: float) -> Tensor:
        """Cross entropy where there is a target; shape of targets = (n_clips, n_tokens), `IGNORED` elsewhere."""
        wanted = targets != IGNORED
        logits = functional.linear(states[wanted], self.thinker.model.embed_tokens.weight)
        return functional.cross_entropy(logits.float(), targets[wanted], label_smoothing=smoothing)

    def character_loss(self, states: Tensor, lengths: Tensor, letters: Tensor, letter_counts: Tensor) -> Tensor:
        """Connectionist temporal classification over the states at the audio's places.

        Args:
            states: shape = (n_clips, n, width).
            lengths: of each clip's own.
            letters: of all clips, one after the other.
        """
        scores = self.characters(states).float().log_softmax(-1).transpose(0, 1)
        return functional.ctc_loss(scores, letters, lengths, letter_counts, zero_infinity=True)


def build(configuration: Configuration) -> Network:
    """The network that a configuration starts from, in float32, on the CPU."""
    start = configuration.start
    config = AutoConfig.from_pretrained(start.form)
    window = config.thinker_config.audio_config.n_window
    torch.manual_seed(configuration.seed)
    thinker = Qwen2_5OmniThinkerForConditionalGeneration.from_pretrained(start.form, dtype=torch.float32)
    if start.encoder == "whisper":
        report = thinker.audio_tower.load_state_dict(whisper.encoder_weights(configuration.cache), strict=False)
        assert not report.unexpected_keys, report
    if start.decoder == "random":
        _begin_anew(thinker)
    network = Network(thinker, dropout=configuration.training.dropout)
    if configuration.training.encoder == "distilled":
        network.keep_teacher(window)
    if start.n_window is not None:
        thinker.config.audio_config.n_window = thinker.audio_tower.n_window = start.n_window
    free = configuration.training.encoder != "frozen"
    for name, parameter in thinker.named_parameters():
        in_encoder = name.startswith("audio_tower.") and not name.startswith("audio_tower.proj.")
        unused = name.startswith("visual.") or "audio_bos_eos_token" in name
        parameter.requires_grad_(not unused and (free or not in_encoder))
    return network


def processor(configuration: Configuration) -> Qwen2_5OmniProcessor:
    """Tokenizer and feature extractor of the form."""
    return Qwen2_5OmniProcessor.from_pretrained(configuration.start.form)


def _begin_anew(thinker: Any) -> None:
    """Random decoder layers and projection, as GPT-2 scales them; token embeddings stay."""
    depth = len(thinker.model.layers)
    modules = (*thinker.model.layers.named_parameters(), *thinker.audio_tower.proj.named_parameters())
    for name, parameter in modules:
        if parameter.ndim == 2:
            residual = name.endswith(("o_proj.weight", "down_proj.weight"))
            nn.init.normal_(parameter, std=0.02 / ((2 * depth) ** 0.5 if residual else 1))
        else:
            nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)
    nn.init.ones_(thinker.model.norm.weight)
