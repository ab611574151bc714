"""CUDA graphs over a whole pass of the audio tower, through vLLM's `SupportsEncoderCudaGraph` protocol.

vLLM's `EncoderCudaGraphManager` captures one graph per budget, packs the clips of a batch into budgets, and runs
eagerly what fits none. Here a budget counts *slots* (see `packing.py`), and a graph spans everything from mel frames to
embeddings: the index vector computed on the host from the clip lengths is copied in with the frames, the graph is
replayed, and nothing waits for the device in between.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.forward_context import set_forward_context
from vllm.logger import init_logger
from vllm.model_executor.models.interfaces import SupportsEncoderCudaGraph
from vllm.model_executor.models.qwen2_5_omni_thinker import unpad_and_flat_audio_features
from vllm.platforms import current_platform
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.worker.encoder_cudagraph_defs import (
    EncoderCudaGraphCaptureInputs,
    EncoderCudaGraphConfig,
    EncoderCudaGraphReplayBuffers,
    EncoderItemSpec,
)

from engine.models.audio_encoder import AudioEncoder
from engine.models.packing import Capacity, EncoderIndices, build_indices, count_slots, count_tokens

logger = init_logger(__name__)

# In slots of 40 ms: 1.3 s to 82 s. Each is a multiple of 32, so that rows fill whole matrix tiles. They lie close
# together because every row of padding costs as much as a row of speech, and they end where an eager pass is no longer
# bound by kernel launches: beyond, a graph gains nothing and its padding costs. Larger batches run eagerly, whole.
DEFAULT_BUDGETS = (
    *(32, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768),
    *(896, 1024, 1152, 1280, 1536, 1792, 2048),
)
# vLLM requires that no batch has more clips than the smallest budget has tokens.
DEFAULT_MAX_CLIPS = 32


def apply_default_budgets(vllm_config: VllmConfig) -> None:
    """Fill in budgets made for speech where `cudagraph_mm_encoder` is on and the user named none.

    vLLM would infer powers of two. Budgets beyond what the scheduler ever encodes at once are left out.
    """
    compilation = vllm_config.compilation_config
    if not compilation.cudagraph_mm_encoder:
        return
    if not compilation.encoder_cudagraph_token_budgets:
        limit = vllm_config.scheduler_config.max_num_batched_tokens
        fitting = [budget for budget in DEFAULT_BUDGETS if budget <= limit]
        compilation.encoder_cudagraph_token_budgets = fitting or [DEFAULT_BUDGETS[0]]
    if not compilation.encoder_cudagraph_max_vision_items_per_batch:
        compilation.encoder_cudagraph_max_vision_items_per_batch = min(
            DEFAULT_MAX_CLIPS, *compilation.encoder_cudagraph_token_budgets
        )


def unpack_audio(mm_kwargs: dict[str, Any]) -> tuple[torch.Tensor, list[int]]:
    """Features of shape (num_mel_bins, frames) and each clip's frames, from a batch as the model runner makes it.

    The lengths are on the host already, so reading them does not wait for the device.
    """
    features, lengths = mm_kwargs["input_audio_features"], mm_kwargs["audio_feature_lengths"]
    if isinstance(features, torch.Tensor) and features.dim() == 3:  # vLLM's Rust front end pads to one length
        features = unpad_and_flat_audio_features(features, lengths)
    return features, lengths.flatten().tolist()


def _host_tensor(values: Sequence[int]) -> torch.Tensor:
    # The device is named because model runners set another as the default.
    return torch.tensor(values, dtype=torch.int64, device="cpu")


class WholeBatch:
    """One eager pass over a batch that no graph holds, shared by its clips.

    vLLM's manager splits such a batch over several graphs, and runs one by one the clips that fit none. Both are slower
    than one eager pass, which a batch of that size keeps the device busy with. So the model says of each of these clips
    that it fits no graph, and when the manager asks for the first it computes all.
    """

    KEY = "whole_batch"
    """Under which it travels in the manager's batches, with the number of the clip wanted beside it."""

    def __init__(self, model: "AudioEncoderGraphs", features: torch.Tensor, lengths: list[int]) -> None:
        self.model, self.features, self.lengths = model, features, lengths
        self.clips: Sequence[torch.Tensor] | None = None

    def clip(self, index: int) -> torch.Tensor:
        """Embeddings of a clip, shape = (tokens, output_dim)."""
        if self.clips is None:
            embeddings = self.model.encode_audio(self.features, self.lengths)
            self.clips = embeddings.split([count_tokens(length) for length in self.lengths])
        return self.clips[index]


class AudioEncoderGraphs(SupportsEncoderCudaGraph):
    """The protocol's methods, for a model that has an `audio_tower`. Images and video are left to their eager path."""

    audio_tower: AudioEncoder
    vllm_config: VllmConfig

    def get_encoder_cudagraph_config(self) -> EncoderCudaGraphConfig:
        """Raises ValueError where the attention kernel cannot be captured."""
        if current_platform.is_cuda_alike() and self.audio_tower.attn_backend is AttentionBackendEnum.TORCH_SDPA:
            raise ValueError(
                "cudagraph_mm_encoder needs an attention kernel that takes segment bounds on the device, and "
                "mm_encoder_attn_backend=TORCH_SDPA does not; use FLASH_ATTN or TRITON_ATTN, or switch graphs off"
            )
        return EncoderCudaGraphConfig(
            modalities=["audio"],
            buffer_keys=["frames", "indices"],
            out_hidden_size=self.audio_tower.output_dim,
            padding_logics={"frames": self._copy_frames, "indices": self._copy_indices},
        )

    def get_input_modality(self, mm_kwargs: dict[str, Any]) -> str:
        """Only audio comes here."""
        return "audio"

    def get_max_frames_per_video(self) -> int:
        """The protocol asks; no video comes here."""
        return 1

    def get_encoder_cudagraph_budget_range(self, vllm_config: VllmConfig) -> tuple[int, int]:
        """Smallest and largest budget for vLLM's own choice; `apply_default_budgets` makes a better one."""
        limit = vllm_config.scheduler_config.max_num_batched_tokens
        return DEFAULT_BUDGETS[0], max(DEFAULT_BUDGETS[0], min(DEFAULT_BUDGETS[-1], limit))

    def get_encoder_cudagraph_item_specs(self, mm_kwargs: dict[str, Any]) -> list[EncoderItemSpec]:
        """Slots, not tokens: an odd clip's last row needs a place too.

        In a batch beyond the largest budget no clip fits; see `WholeBatch`.
        """
        features, lengths = unpack_audio(mm_kwargs)
        slots = [count_slots(length) for length in lengths]
        largest = max((capacity.tokens for capacity in self._capacities().values()), default=sum(slots))
        if sum(slots) > largest:
            mm_kwargs[WholeBatch.KEY] = WholeBatch(self, features, lengths)
            slots = [largest + 1] * len(lengths)
        sizes = zip(lengths, slots, strict=True)
        return [EncoderItemSpec(input_size=length, output_tokens=count) for length, count in sizes]

    def select_encoder_cudagraph_items(self, mm_kwargs: dict[str, Any], indices: list[int]) -> dict[str, Any]:
        """The batch of the clips at `indices`, in that order; the batch itself if that is all of them."""
        features, lengths = unpack_audio(mm_kwargs)
        if WholeBatch.KEY in mm_kwargs:
            [index] = indices  # what fits no graph comes alone
            whole = mm_kwargs[WholeBatch.KEY]
            return {
                "input_audio_features": features,
                "audio_feature_lengths": _host_tensor([lengths[index]]),
                WholeBatch.KEY: (whole, index),
            }
        if indices == list(range(len(lengths))):
            return {"input_audio_features": features, "audio_feature_lengths": _host_tensor(lengths)}
        clips = features.split(lengths, dim=1)
        selected = [clips[index] for index in indices]
        return {
            "input_audio_features": torch.cat(selected, dim=1) if selected else features[:, :0],
            "audio_feature_lengths": _host_tensor([lengths[index] for index in indices]),
        }

    def prepare_encoder_cudagraph_capture_inputs(  # noqa: PLR0917 - the protocol's signature
        self,
        token_budget: int,
        max_batch_size: int,
        max_frames_per_batch: int,
        device: torch.device,
        dtype: torch.dtype,
        path: str = "default",
        axis_keys: tuple[Hashable, ...] | None = None,
    ) -> EncoderCudaGraphCaptureInputs:
        """Static buffers for one graph, filled as for one clip that takes the whole budget."""
        tower = self.audio_tower
        capacity = Capacity.for_budget(token_budget, max_batch_size, tower.n_window)
        self._remember_capacity(capacity)
        indices = build_indices([capacity.frames], tower.n_window, capacity, pin=False)
        frames = torch.zeros(capacity.frames + 1, tower.num_mel_bins, device=device, dtype=dtype)
        return EncoderCudaGraphCaptureInputs(values={"frames": frames, "indices": indices.to(device)})

    def prepare_encoder_cudagraph_replay_buffers(
        self,
        mm_kwargs: dict[str, Any],
        max_batch_size: int,
        max_frames_per_batch: int,
        path: str = "default",
    ) -> EncoderCudaGraphReplayBuffers:
        """What the copies below start from: the indices depend on the budget, which only the buffers tell."""
        features, lengths = unpack_audio(mm_kwargs)
        return EncoderCudaGraphReplayBuffers(values={"frames": features, "indices": _host_tensor(lengths)})

    def encoder_cudagraph_forward(self, inputs: dict[str, torch.Tensor], path: str = "default") -> torch.Tensor:
        """The whole tower over static buffers, captured once and replayed; shape = (budget, output_dim)."""
        indices = EncoderIndices.split(inputs["indices"], self._capacities()[inputs["indices"].numel()])
        # Compiled layers ask the forward context whether they may run their own graphs; here they may not.
        with set_forward_context(None, self.vllm_config):
            return self.audio_tower.encode(inputs["frames"], indices)

    def encoder_eager_forward(self, mm_kwargs: dict[str, Any], path: str = "default") -> torch.Tensor:
        """For a clip of a batch beyond the largest budget; shape = (tokens, output_dim)."""
        logger.warning_once(
            "An audio batch exceeds the largest encoder CUDA graph budget and runs eagerly in one pass. "
            "Its clips are counted as misses."
        )
        whole, index = mm_kwargs[WholeBatch.KEY]
        return whole.clip(index)

    def postprocess_encoder_output(  # noqa: PLR0917 - the protocol's signature
        self,
        outputs: dict[str, torch.Tensor],
        indices: list[int],
        per_item_out_tokens: list[int],
        dest: dict[int, torch.Tensor] | list[torch.Tensor | None],
        clone: bool = False,
        batch_mm_kwargs: dict[str, Any] | None = None,
    ) -> None:
        """Hand each clip its rows; copies, since the next replay overwrites them."""
        _, lengths = unpack_audio(batch_mm_kwargs or {})
        start = 0
        for index, length in zip(indices, lengths, strict=True):
            rows = outputs["default"][start : start + count_tokens(length)]
            dest[index] = rows.clone() if clone else rows
            start += count_tokens(length)

    def encode_audio(self, features: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """The eager path; shapes as in `AudioEncoder.forward`."""
        with set_forward_context(None, self.vllm_config):
            return self.audio_tower(features, lengths)

    def _capacities(self) -> dict[int, Capacity]:
        """By length of the index vector, which grows with the budget and so tells it."""
        if not hasattr(self, "_graph_capacities"):
            self._graph_capacities: dict[int, Capacity] = {}
        return self._graph_capacities

    def _remember_capacity(self, capacity: Capacity) -> None:
        self._capacities()[capacity.size] = capacity

    @staticmethod
    def _copy_frames(buffer: torch.Tensor, features: torch.Tensor) -> None:
        # Rows beyond the batch keep what they held: no index points at them, and the last one stays zero.
        buffer[: features.shape[1]].copy_(features.t())

    def _copy_indices(self, buffer: torch.Tensor, lengths: torch.Tensor) -> None:
        capacity = self._capacities()[buffer.numel()]
        on_device = buffer.device.type != "cpu"
        flat = build_indices(lengths.tolist(), self.audio_tower.n_window, capacity, pin=on_device)
        buffer.copy_(flat, non_blocking=on_device)
