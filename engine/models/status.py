"""What the accelerated tower is doing in a worker process, for operators and for the self test.

`WorkerExtension` goes into vLLM's `worker_extension_cls`; then
`await engine.collective_rpc("encoder_status")` answers with one mapping per worker.
"""

from typing import TYPE_CHECKING, Any

import torch
from vllm.compilation.counter import compilation_counter

from engine.models.audio_encoder import AudioEncoder
from engine.models.packing import FRAMES_PER_SLOT

if TYPE_CHECKING:
    from vllm.v1.worker.encoder_cudagraph import EncoderCudaGraphManager

EncoderStatus = dict[str, Any]


def find_graph_manager(model_runner: Any) -> "EncoderCudaGraphManager | None":
    """The encoder graph manager of either of vLLM's model runners, None where it has none."""
    state = getattr(model_runner, "model_state", None)
    if state is None:
        return getattr(model_runner, "encoder_cudagraph_manager", None)
    return getattr(getattr(state, "encoder_runner", None), "cudagraph_manager", None)


def describe_encoder(model: Any, manager: "EncoderCudaGraphManager | None") -> EncoderStatus:
    """State and counters of the tower.

    Returns:
        accelerated: False where another class serves.
        attention: the kernel.
        compile: state ("off", "pending", "active", "failed"), number of compiled layers, artefacts loaded from the
            cache, and the error if it failed.
        graphs: state ("off", "unavailable": asked for, but this machine or model runner has none, "pending",
            "active"), budgets in slots of 40 ms, most clips in one graph, hits and misses in clips.
    """
    tower = getattr(model, "audio_tower", None)
    if not isinstance(tower, AudioEncoder):
        return {"accelerated": False}
    compiled = len(tower.layers) if tower.compile_state == "active" else 0
    return {
        "accelerated": True,
        "attention": tower.attention_kernel,
        "compile": {
            "state": tower.compile_state,
            "layers": compiled,
            "loaded_from_cache": compilation_counter.num_aot_artifacts_loaded if compiled else 0,
            "error": tower.compile_error,
        },
        "graphs": _describe_graphs(model, manager),
    }


def _describe_graphs(model: Any, manager: "EncoderCudaGraphManager | None") -> EncoderStatus:
    wanted = model.vllm_config.compilation_config.cudagraph_mm_encoder
    if manager is None:
        state = "unavailable" if wanted else "off"
        return {"state": state, "budgets": [], "max_clips": 0, "hits": 0, "misses": 0}
    return {
        "state": "active" if manager.is_captured() else "pending",
        "budgets": list(manager.token_budgets),
        "max_clips": manager.max_batch_size,
        "hits": manager.graph_hits,
        "misses": manager.graph_misses,
    }


class WorkerExtension:
    """Methods that vLLM adds to its worker class."""

    model_runner: Any

    def encoder_status(self) -> EncoderStatus:
        """See `describe_encoder`."""
        return describe_encoder(self.model_runner.get_model(), find_graph_manager(self.model_runner))

    def replay_encoder_graphs(self) -> list[int]:
        """Encode noise once by each CUDA graph, so that no request finds one that fails or that is slow at first.

        Returns:
            the budgets, in slots; none where there are no graphs.
        """
        manager = find_graph_manager(self.model_runner)
        if manager is None or not manager.is_captured():
            return []
        for budget in manager.token_budgets:
            self.encoder_output([FRAMES_PER_SLOT * budget])
        manager.graph_hits = manager.graph_misses = 0
        return list(manager.token_budgets)

    def encoder_output(self, lengths: list[int], seed: int = 0) -> dict[str, Any]:
        """Encode noise of the given numbers of frames as the model runner would encode audio, with or without graphs.

        Returns:
            shapes of the clips' embeddings, and all values as float32 bytes one after the other.
        """
        model, manager = self.model_runner.get_model(), find_graph_manager(self.model_runner)
        device = next(model.parameters()).device
        generator = torch.Generator(device="cpu").manual_seed(seed)
        bins = model.config.audio_config.num_mel_bins
        features = torch.randn(bins, sum(lengths), generator=generator, device="cpu").to(device)
        batch = {
            "input_audio_features": features,
            "audio_feature_lengths": torch.tensor(lengths, device="cpu"),
            "feature_attention_mask": torch.ones(len(lengths), max(lengths), dtype=torch.bool, device="cpu"),
        }
        with torch.inference_mode():
            use_graphs = manager is not None and manager.is_captured()
            clips = manager.execute(batch) if manager is not None and use_graphs else model.embed_multimodal(**batch)
            flat = torch.cat([clip.float().flatten() for clip in clips]).cpu()
        return {"shapes": [list(clip.shape) for clip in clips], "values": flat.numpy().tobytes()}
