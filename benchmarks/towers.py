"""Audio towers with random weights, stock and ours, for measurements and for proofs.

Weights are made on the device from a seed and the parameter's name in a checkpoint, so that every process has the same.
"""

import math
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniAudioEncoderConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniAudioEncoder
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel, model_parallel_is_initialized
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.models.qwen2_5_omni_thinker import Qwen2_5OmniConditionalGenerationMixin
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.worker.encoder_cudagraph import EncoderCudaGraphManager

from benchmarks.checkpoints import AUDIO_SIZES, write_checkpoint
from engine.models.audio_encoder import AudioEncoder
from engine.models.encoder_graphs import AudioEncoderGraphs, apply_default_budgets, unpack_audio
from engine.models.packing import count_tokens


def audio_config(size: str) -> Qwen2_5OmniAudioEncoderConfig:
    return Qwen2_5OmniAudioEncoderConfig(**AUDIO_SIZES[size])


def build_engine_config(
    size: str, *, dtype: str = "bfloat16", compilation: dict[str, Any] | None = None, **arguments: Any
) -> VllmConfig:
    """What vLLM makes of its arguments for a checkpoint of this size on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = write_checkpoint(Path(folder), size)
        options: dict[str, Any] = {
            "max_model_len": 2048,
            "max_num_batched_tokens": 32768,
            "load_format": "dummy",
            "limit_mm_per_prompt": {"audio": 1, "image": 0, "video": 0},
        }
        return EngineArgs(
            model=str(checkpoint), dtype=dtype, compilation_config=compilation or {}, **(options | arguments)
        ).create_engine_config()


def start_parallel_state(config: VllmConfig) -> None:
    """vLLM's process groups for one process."""
    if model_parallel_is_initialized():
        return
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    with tempfile.NamedTemporaryFile(delete=False) as store:
        rendezvous = f"file://{store.name}"
    Path(store.name).unlink()
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, rendezvous, 0, backend)
        initialize_model_parallel(1, 1)


def random_weights(
    config: Qwen2_5OmniAudioEncoderConfig, device: torch.device, dtype: torch.dtype, seed: int = 0
) -> Iterator[tuple[str, torch.Tensor]]:
    """A tower's weights by their names in a checkpoint, large enough that attention and norms matter."""
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in Qwen2_5OmniAudioEncoder(config).state_dict().items()}
    for name, shape in shapes.items():
        generator = torch.Generator(device=device).manual_seed(seed * 1_000_003 + zlib.crc32(name.encode()))
        value = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
        if len(shape) > 1:
            value *= 1.0 / math.sqrt(math.prod(shape[1:]))
        elif "norm" in name or "ln_post" in name:
            value = 0.1 * value + (1.0 if name.endswith("weight") else 0.0)
        else:
            value *= 0.1
        yield name, value.to(dtype)


class StockTower(Qwen2_5OmniConditionalGenerationMixin):
    """Transformers' tower and the code around it that stock vLLM runs."""

    def __init__(self, audio_tower: Qwen2_5OmniAudioEncoder) -> None:
        self.audio_tower = audio_tower

    def embed(self, batch: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        parsed = self._parse_and_validate_audio_input(**batch)
        clips: tuple[torch.Tensor, ...] = tuple(self._process_audio_input(parsed))
        return clips


class NativeTower(nn.Module, AudioEncoderGraphs):
    """Our tower and the code around it that our thinker runs, without a language model."""

    def __init__(self, config: Qwen2_5OmniAudioEncoderConfig, vllm_config: VllmConfig) -> None:
        super().__init__()
        self.vllm_config = vllm_config
        self.audio_tower = AudioEncoder(config)

    def embed(self, batch: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        features, lengths = unpack_audio(batch)
        clips: tuple[torch.Tensor, ...] = self.encode_audio(features, lengths).split(list(map(count_tokens, lengths)))
        return clips


def build_stock(size: str, device: torch.device, dtype: torch.dtype) -> StockTower:
    config = audio_config(size)
    with torch.device(device), set_default_torch_dtype(dtype):
        tower = Qwen2_5OmniAudioEncoder(config)
    tower.load_state_dict(dict(random_weights(config, device, dtype)))
    return StockTower(tower.eval())


def build_native(size: str, vllm_config: VllmConfig, device: torch.device, dtype: torch.dtype) -> NativeTower:
    config = audio_config(size)
    apply_default_budgets(vllm_config)
    with set_current_vllm_config(vllm_config), torch.device(device), set_default_torch_dtype(dtype):
        model = NativeTower(config, vllm_config)
    model.audio_tower.load_weights(random_weights(config, device, dtype))
    finish_loading(model)
    model.eval()
    return model


def finish_loading(model: nn.Module) -> None:
    """What vLLM's loaders do last: on a CPU this packs the matrices."""
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if isinstance(method, QuantizeMethodBase):
            method.process_weights_after_loading(module)


def build_graphs(model: NativeTower, device: torch.device, dtype: torch.dtype) -> EncoderCudaGraphManager:
    """vLLM's manager with every graph captured, as its model runner does it."""
    from vllm.distributed.parallel_state import graph_capture
    from vllm.platforms import current_platform

    manager = EncoderCudaGraphManager(model.vllm_config, device, dtype, model)
    with torch.inference_mode(), graph_capture(device=device):
        manager.capture(current_platform.graph_pool_handle())
        torch.cuda.synchronize()
    return manager


def make_batch(lengths: list[int], mel_bins: int, device: torch.device, seed: int = 1) -> dict[str, Any]:
    """What a model runner hands to the model: float32 features on the device, the rest on the host."""
    generator = torch.Generator(device="cpu").manual_seed(seed)
    features = torch.randn(mel_bins, sum(lengths), generator=generator, device="cpu")
    mask: torch.Tensor | list[torch.Tensor] = [torch.ones(length, dtype=torch.bool) for length in lengths]
    return {
        "input_audio_features": features.to(device),
        "audio_feature_lengths": torch.tensor(lengths, device="cpu"),
        "feature_attention_mask": mask,
    }


def count_flops(lengths: list[int], size: str, part: Literal["layers", "all"] = "all") -> float:
    """Multiplications and additions of one pass, matrix products and attention."""
    dims = AUDIO_SIZES[size]
    width, ffn, window = dims["d_model"], dims["encoder_ffn_dim"], dims["n_window"]
    rows = sum((length + 1) // 2 for length in lengths)
    layer = 2 * rows * (4 * width * width + 2 * width * ffn)
    attention = sum(
        4 * width * segment * segment
        for length in lengths
        for segment in [window] * (length // (2 * window)) + [(length % (2 * window) + 1) // 2]
    )
    total = float(dims["encoder_layers"] * (layer + attention))
    if part == "layers":
        return total
    frames, tokens = sum(lengths), sum(map(count_tokens, lengths))
    conv = 2 * 3 * width * (frames * dims["num_mel_bins"] + rows * width)
    return total + conv + 2 * tokens * width * dims["output_dim"]
