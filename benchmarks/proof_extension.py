"""What the proof asks of a vLLM worker process beyond `engine.models.status`: other weights, other encoder modes."""

import zlib
from typing import Any

import torch
from vllm.compilation.counter import compilation_counter

from benchmarks.towers import random_weights
from engine.models.audio_encoder import AudioEncoder
from engine.models.status import WorkerExtension, find_graph_manager


class ProofExtension(WorkerExtension):
    """Goes into `worker_extension_cls`."""

    def proof_randomize(self, seed: int) -> int:
        """Replace dummy weights in place by larger ones that depend on seed and name only; number of parameters."""
        model = self.model_runner.get_model()
        tower = model.audio_tower
        count = 0
        with torch.inference_mode():
            for name, value in model.language_model.named_parameters():
                generator = torch.Generator(device=value.device).manual_seed(seed + zlib.crc32(name.encode()))
                if value.dim() > 1 or name.endswith("bias"):
                    value.normal_(0, 0.02, generator=generator)
                else:
                    value.fill_(1)
                count += 1
            first = next(model.language_model.parameters())
            weights = random_weights(model.config.audio_config, first.device, first.dtype, seed)
            if isinstance(tower, AudioEncoder):
                tower.load_weights(weights)
            else:
                tower.load_state_dict(dict(weights))
        return count

    def proof_counters(self) -> dict[str, int]:
        """vLLM's compilation counters of this process."""
        return dict(vars(compilation_counter))

    def proof_encoder_mode(self, mode: str) -> str:
        """Switch a worker that was started with compilation and graphs to a lesser mode, and back."""
        runner = self.model_runner
        tower, encoder = runner.get_model().audio_tower, runner.model_state.encoder_runner
        if not hasattr(self, "proof_manager"):
            self.proof_manager: Any = find_graph_manager(runner)
        for layer in tower.layers:
            layer.do_not_compile = mode not in ("compile", "both")
        encoder.cudagraph_manager = self.proof_manager
        encoder.clear()
        if mode in ("graph", "both"):
            encoder.capture()
        else:
            encoder.cudagraph_manager = None
        return mode
