"""Qwen2.5-Omni's audio tower on vLLM's parallel layers: one packed attention call per layer, no loop over windows.

The arithmetic follows `Qwen2_5OmniAudioEncoder` of Transformers 5 step by step; the differences are in layout only:
q, k and v are one matrix product, all windows of all clips are one variable-length attention call, and the
convolutions are matrix products over gathered rows (see `packing.py`).
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniAudioEncoderConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import SinusoidsPositionEmbedding
from vllm.compilation.decorators import should_torch_compile_mm_encoder, support_torch_compile
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.logger import init_logger
from vllm.model_executor.layers.activation import get_act_fn
from vllm.model_executor.layers.attention import MMEncoderAttention
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper, cast_overflow_tensors
from vllm.model_executor.models.vision import get_multimodal_config
from vllm.model_executor.utils import set_weight_attrs
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from engine.models import fused
from engine.models.packing import Capacity, EncoderIndices, build_indices, fill_up

logger = init_logger(__name__)

CompileState = Literal["off", "pending", "active", "failed"]

# FlashInfer's cuDNN kernel takes bounds in elements and padded lengths beside them.
SUPPORTED_BACKENDS = frozenset(
    {
        AttentionBackendEnum.FLASH_ATTN,
        AttentionBackendEnum.ROCM_AITER_FA,
        AttentionBackendEnum.TRITON_ATTN,
        AttentionBackendEnum.TORCH_SDPA,
    }
)


class AudioAttention(nn.Module):
    """Multi-head attention within each segment of a packed batch.

    Heads are split over the tensor-parallel ranks where they divide evenly, and replicated on every rank otherwise.
    """

    def __init__(
        self,
        config: Qwen2_5OmniAudioEncoderConfig,
        quant_config: QuantizationConfig | None = None,
        prefix: str = "",
    ) -> None:
        super().__init__()
        width, heads = config.d_model, config.encoder_attention_heads
        if width % heads:
            raise ValueError(f"d_model ({width}) must be a multiple of encoder_attention_heads ({heads})")
        tp_size = get_tensor_model_parallel_world_size()
        replicated = heads % tp_size != 0
        self.num_heads = heads if replicated else heads // tp_size
        self.head_size = width // heads
        self.qkv_proj = QKVParallelLinear(
            width,
            self.head_size,
            heads,
            bias=True,
            quant_config=quant_config,
            prefix=f"{prefix}.qkv_proj",
            return_bias=False,
            disable_tp=replicated,
        )
        self.attn = MMEncoderAttention(
            self.num_heads, self.head_size, scale=self.head_size**-0.5, prefix=f"{prefix}.attn"
        )
        self.out_proj = RowParallelLinear(
            width,
            width,
            bias=True,
            quant_config=quant_config,
            prefix=f"{prefix}.out_proj",
            return_bias=False,
            disable_tp=replicated,
        )
        if self.attn.attn_backend not in SUPPORTED_BACKENDS:
            raise ValueError(
                f"the audio tower does not support mm_encoder_attn_backend={self.attn.attn_backend.name}; "
                f"use one of {', '.join(sorted(backend.name for backend in SUPPORTED_BACKENDS))}"
            )
        self.window = config.n_window
        self.uses_windows = not asks_for_kernel() and fused.supports_window_attention(
            self.window, self.head_size, torch.get_default_dtype()
        )
        self.zero_key_bias()

    def zero_key_bias(self) -> None:
        """Clear the key's part of the packed bias: the checkpoint has none, and no loader writes there on purpose."""
        rows = self.num_heads * self.head_size
        with torch.no_grad():
            self.qkv_proj.bias[rows : 2 * rows].zero_()

    def forward(self, hidden_states: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: torch.Tensor) -> torch.Tensor:
        """Shapes: hidden_states and result (rows, d_model), cu_seqlens (segments + 1,), max_seqlen () on the host."""
        qkv = self.qkv_proj(hidden_states)
        if self.uses_windows:
            return self.out_proj(fused.window_attention(qkv, cu_seqlens, self.num_heads, self.window))
        query, key, value = qkv.unsqueeze(0).chunk(3, dim=-1)
        attended = self.attn(query, key, value, cu_seqlens=cu_seqlens, max_seqlen=max_seqlen)
        return self.out_proj(attended.squeeze(0))


@support_torch_compile(
    dynamic_arg_dims={"hidden_states": 0, "update": 0, "cu_seqlens": 0},
    enable_if=should_torch_compile_mm_encoder,
    is_encoder=True,
)
class AudioEncoderLayer(nn.Module):
    """Pre-norm transformer layer; what `compile_mm_encoder` compiles.

    A layer begins with the addition that ends the one before it in Transformers, because that addition and the norm
    that follows are one kernel.
    """

    def __init__(
        self,
        config: Qwen2_5OmniAudioEncoderConfig,
        quant_config: QuantizationConfig | None = None,
        prefix: str = "",
    ) -> None:
        super().__init__()
        self.self_attn = AudioAttention(config, quant_config, prefix=f"{prefix}.self_attn")
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)
        name = config.activation_function
        self.activation_fn = fused.gelu if name == "gelu" else get_act_fn(name)
        self.fc1 = ColumnParallelLinear(
            config.d_model,
            config.encoder_ffn_dim,
            bias=True,
            quant_config=quant_config,
            prefix=f"{prefix}.fc1",
            return_bias=False,
        )
        self.fc2 = RowParallelLinear(
            config.encoder_ffn_dim,
            config.d_model,
            bias=True,
            quant_config=quant_config,
            prefix=f"{prefix}.fc2",
            return_bias=False,
        )
        self.final_layer_norm = nn.LayerNorm(config.d_model)
        self.fuses_gelu = (
            name == "gelu"
            and isinstance(self.fc1.quant_method, UnquantizedLinearMethod)
            and fused.supports_linear_gelu(torch.get_default_dtype())
        )

    def expand(self, normed: torch.Tensor) -> torch.Tensor:
        """First half of the feed-forward; shapes (rows, d_model) and (rows, encoder_ffn_dim / tensor-parallel size)."""
        if self.fuses_gelu:
            return fused.linear_gelu(normed, self.fc1.weight, self.fc1.bias)
        return self.activation_fn(self.fc1(normed))

    def forward(
        self, hidden_states: torch.Tensor, update: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add `update` to the residual stream, run, and return the stream with the update that is due next.

        Shapes: hidden_states, update and results (rows, d_model), cu_seqlens (segments + 1,), max_seqlen () on the
        host.
        """
        hidden_states, normed = fused.add_layer_norm(
            hidden_states, update, self.self_attn_layer_norm, clamp=hidden_states.dtype == torch.float16
        )
        attended = self.self_attn(normed, cu_seqlens, max_seqlen)
        hidden_states, normed = fused.add_layer_norm(hidden_states, attended, self.final_layer_norm)
        return hidden_states, self.fc2(self.expand(normed))


class FrameConv(nn.Module):
    """A convolution of kernel 3 over time as one matrix product over gathered rows.

    Holds the checkpoint's `nn.Conv1d` weight (out, in, 3) as (out, 3 * in), taps outermost.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.weight = nn.Parameter(torch.empty(out_channels, 3 * in_channels), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_channels), requires_grad=False)
        set_weight_attrs(self.weight, {"weight_loader": self.load_weight})

    @staticmethod
    def load_weight(param: nn.Parameter, loaded: torch.Tensor) -> None:
        """Copy a convolution weight of shape (out, in, 3)."""
        param.data.copy_(loaded.permute(0, 2, 1).reshape(param.shape))

    def forward(self, rows: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
        """Shapes: rows (n, in), taps (3 * m,) indices into them, result (m, out)."""
        gathered = rows.index_select(0, taps).view(-1, 3 * self.in_channels)
        return functional.linear(gathered, self.weight, self.bias)


class AudioEncoder(nn.Module):
    """The tower: mel frames of any number of clips in, the language model's audio embeddings out."""

    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_stacked={
            ".q_proj.": (".qkv_proj.", "q"),
            ".k_proj.": (".qkv_proj.", "k"),
            ".v_proj.": (".qkv_proj.", "v"),
        },
        # Two embeddings that Transformers keeps for compatibility and never reads.
        orig_to_new_prefix={"audio_bos_eos_token.": None},
    )

    def __init__(
        self,
        config: Qwen2_5OmniAudioEncoderConfig,
        quant_config: QuantizationConfig | None = None,
        prefix: str = "",
    ) -> None:
        super().__init__()
        if config.n_window > config.max_source_positions:
            raise ValueError(
                f"n_window ({config.n_window}) exceeds max_source_positions ({config.max_source_positions}): "
                "positions repeat with every window"
            )
        self.n_window = config.n_window
        self.num_mel_bins = config.num_mel_bins
        self.output_dim = config.output_dim
        self.conv1 = FrameConv(config.num_mel_bins, config.d_model)
        self.conv2 = FrameConv(config.d_model, config.d_model)
        self.layers = nn.ModuleList(
            AudioEncoderLayer(config=config, quant_config=quant_config, prefix=f"{prefix}.layers.{index}")
            for index in range(config.encoder_layers)
        )
        self.ln_post = nn.LayerNorm(config.d_model)
        self.proj = ReplicatedLinear(
            config.d_model, config.output_dim, bias=True, prefix=f"{prefix}.proj", return_bias=False
        )
        with torch.device("cpu"):
            table = SinusoidsPositionEmbedding(config.n_window, config.d_model).positional_embedding
        self.register_buffer(
            "positional_embedding", table.to(self.conv1.weight.device, torch.get_default_dtype()), persistent=False
        )
        # A host tensor, so that attention kernels read their launch bound without asking the device.
        self.max_seqlen = torch.tensor(config.n_window, dtype=torch.int32, device="cpu")
        self.compile_error: str | None = None
        # Layers stay uncompiled where compilation is off altogether, whatever compile_mm_encoder says.
        self.compile_state: CompileState = "off" if all(layer.do_not_compile for layer in self.layers) else "pending"

    @property
    def attn_backend(self) -> AttentionBackendEnum:
        """vLLM's choice of an attention kernel, which serves where windows are long."""
        return self.layers[0].self_attn.attn.attn_backend

    @property
    def attention_kernel(self) -> str:
        """Its name, for status: vLLM's backend, or our kernel for short windows."""
        return "OMNIHEAR_WINDOW" if self.layers[0].self_attn.uses_windows else str(self.attn_backend.name)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights and of the result."""
        return self.conv1.weight.dtype

    @property
    def device(self) -> torch.device:
        """Of the weights and of the result."""
        return self.conv1.weight.device

    def forward(self, input_features: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Encode clips that follow each other without padding.

        Args:
            input_features: log-mel frames, shape = (num_mel_bins, sum(lengths)), on the tower's device.
            lengths: frames of each clip.

        Returns:
            Embeddings of all clips, shape = (sum of tokens, output_dim), in the tower's dtype.

        Raises:
            ValueError: the lengths do not add up to the frames.
        """
        exact = Capacity.of(lengths, self.n_window)
        if input_features.shape != (self.num_mel_bins, exact.frames):
            raise ValueError(
                f"expected mel features of shape {(self.num_mel_bins, exact.frames)}, got {tuple(input_features.shape)}"
            )
        on_device = self.device.type != "cpu"
        capacity = exact
        if not on_device:  # see `cpu_kernels`
            lengths = fill_up(lengths)
            capacity = Capacity.of(lengths, self.n_window).rounded
        flat = build_indices(lengths, self.n_window, capacity, pin=on_device)
        indices = EncoderIndices.split(flat.to(self.device, non_blocking=on_device), capacity)
        frames = torch.empty(capacity.frames + 1, self.num_mel_bins, dtype=self.dtype, device=self.device)
        frames[exact.frames :].zero_()
        frames[: exact.frames].copy_(input_features.t())
        return self.encode(frames, indices)[: exact.tokens]

    def encode(self, frames: torch.Tensor, indices: EncoderIndices) -> torch.Tensor:
        """The whole tower over prepared buffers: what eager execution and CUDA graphs share.

        Args:
            frames: shape = (frames + 1, num_mel_bins), the last row zero.
            indices: on the same device.

        Returns:
            shape = (tokens, output_dim).
        """
        hidden_states = fused.gelu(self.conv1(frames, indices.conv1))
        hidden_states[-1].zero_()
        hidden_states = fused.gelu(self.conv2(hidden_states, indices.conv2))
        positions = self.positional_embedding.index_select(0, indices.positions)
        hidden_states = self.run_layers(hidden_states, positions, indices.cu_seqlens)
        pairs = hidden_states.index_select(0, indices.pool).unflatten(0, (-1, 2))
        pooled = (pairs[:, 0] + pairs[:, 1]) / 2
        return self.proj(self.ln_post(pooled))

    def run_layers(self, hidden_states: torch.Tensor, update: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
        """The transformer layers over `hidden_states + update`; shapes as in `AudioEncoderLayer.forward`.

        The first run with `compile_mm_encoder` compiles. If that fails, the layers run uncompiled from then on.
        """
        if self.compile_state != "pending":
            return self._run_layers(hidden_states, update, cu_seqlens)
        try:
            result = self._run_layers(hidden_states, update, cu_seqlens)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            self.compile_state = "failed"
            self.compile_error = f"{type(error).__name__}: {error}"
            logger.warning("Compiling the audio tower failed, so it runs uncompiled. %s", self.compile_error)
            for layer in self.layers:
                layer.do_not_compile = True
            return self._run_layers(hidden_states, update, cu_seqlens)
        self.compile_state = "active"
        return result

    def _run_layers(self, hidden_states: torch.Tensor, update: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden_states, update = layer(hidden_states, update, cu_seqlens, self.max_seqlen)
        hidden_states = hidden_states + update
        return cast_overflow_tensors(hidden_states) if hidden_states.dtype == torch.float16 else hidden_states

    def zero_key_biases(self) -> None:
        """See `AudioAttention.zero_key_bias`; to be called after any kind of weight loading."""
        for layer in self.layers:
            layer.self_attn.zero_key_bias()

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load a checkpoint's tower, names relative to it; returns the names of the parameters loaded."""
        loaded: set[str] = AutoWeightsLoader(self).load_weights(weights, mapper=self.hf_to_vllm_mapper)
        self.zero_key_biases()
        return loaded

    def extra_repr(self) -> str:
        """What `print(model)` shows beside the children."""
        return f"n_window={self.n_window}, compile={self.compile_state}"


def select_quant_config(quant_config: QuantizationConfig | None) -> QuantizationConfig | None:
    """The quantisation that applies to the tower's linear layers.

    Published GPTQ and AWQ checkpoints of this model keep the tower in full precision without naming it among the
    layers to skip, so for them there is none; methods that name what they skip, or quantise at load time, apply.
    """
    if quant_config is None:
        return None
    name: Any = quant_config.get_name()
    return None if str(name).startswith(("gptq", "awq", "auto_gptq", "auto_awq")) else quant_config


def asks_for_kernel() -> bool:
    """Whether the user chose an attention kernel, or its precision, for encoders."""
    settings = get_multimodal_config()
    return settings is not None and (
        settings.mm_encoder_attn_backend is not None or settings.mm_encoder_attn_dtype is not None
    )
