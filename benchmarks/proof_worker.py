"""One engine of the proof, in a process of its own. `benchmarks.proof` starts it."""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from engine.interface import SAMPLE_RATE, Waveform
from engine.prompt import build_prompt
from engine.selftest import AUDIO, decode

CUTS = (0.5, 0.8, 1, 1.5, 2, 3, 4, 5, 6.5, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 29.9, 30)  # seconds

# Encoder modes as vLLM is told them. The decoder stays uncompiled where the encoder is, so that starts are short.
SETTINGS: dict[str, dict[str, Any]] = {
    "stock": {"mode": 0, "cudagraph_mode": "NONE"},
    "eager": {"mode": 0, "cudagraph_mode": "NONE"},
    "compile": {"cudagraph_mode": "NONE", "compile_mm_encoder": True},
    "graph": {"mode": 0, "cudagraph_mode": "NONE", "cudagraph_mm_encoder": True},
    # Clips of more than 10 s exceed the largest budget.
    "graph-small": {
        "mode": 0,
        "cudagraph_mode": "NONE",
        "cudagraph_mm_encoder": True,
        "encoder_cudagraph_token_budgets": [32, 64, 128, 250],
    },
    # vLLM's first model runner, which serves GPUs where it is asked for. It captures none unless the decoder has some.
    "graph-first-runner": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_mm_encoder": True},
    "both": {"compile_mm_encoder": True, "cudagraph_mm_encoder": True},
    # The decoder as in "both", so that tokens can be compared.
    "stock-compiled": {},
}


def find_pauses(waveform: Waveform) -> list[int]:
    """Samples in the middle of every stretch of at least 120 ms that is quiet, both ends included."""
    step = SAMPLE_RATE // 50
    loudness = np.sqrt(np.mean(waveform[: len(waveform) // step * step].reshape(-1, step) ** 2, axis=1))
    quiet = loudness < 0.05 * np.quantile(loudness, 0.95)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], quiet.astype(np.int8), [0]])))
    pauses = [int((left + right) / 2 * step) for left, right in edges.reshape(-1, 2) if right - left >= 6]
    return [0, *pauses, len(waveform)]


def load_clips() -> dict[str, Waveform]:
    """The bundled clips of at most 30 s, and stretches of the long one from pause to pause, of about 0.5 to 30 s."""
    clips = {path.stem: decode(path) for path in sorted(AUDIO.glob("*.wav"))}
    story = decode(AUDIO / "harbor-story-long.flac")
    pauses = find_pauses(story)
    stretches = [(left, right) for left in pauses for right in pauses if 0 < right - left <= 30 * SAMPLE_RATE]
    for seconds in sorted(CUTS, reverse=True):  # long stretches are scarce
        if not stretches:
            break
        left, right = min(stretches, key=lambda stretch: abs(stretch[1] - stretch[0] - seconds * SAMPLE_RATE))
        # Each beginning serves once, so that clips differ in more than length.
        stretches = [stretch for stretch in stretches if stretch[0] != left]
        clips[f"story-{left / SAMPLE_RATE:.1f}-{right / SAMPLE_RATE:.1f}s"] = story[left:right]
    return clips


class Engine:
    """vLLM with its engine core and worker in this process."""

    def __init__(self, mode: str, model: str, **arguments: Any) -> None:
        from vllm import LLM

        extension = "benchmarks.proof_extension.ProofExtension"
        started = time.perf_counter()
        self.llm = LLM(
            model=model,
            max_model_len=2048,
            limit_mm_per_prompt={"audio": 1, "image": 0, "video": 0},
            mm_processor_cache_gb=0,
            enable_prefix_caching=False,
            compilation_config=SETTINGS[mode],
            worker_extension_cls=extension,
            **arguments,
        )
        self.start_s = time.perf_counter() - started

    def ask(self, method: str, *args: Any) -> Any:
        return self.llm.collective_rpc(method, args=args)[0]

    def generate(self, clips: list[Waveform], max_tokens: int, logprobs: int | None = None) -> list[Any]:
        from vllm import SamplingParams

        prompts = [{"prompt": build_prompt("en"), "multi_modal_data": {"audio": (clip, SAMPLE_RATE)}} for clip in clips]
        sampling = SamplingParams(
            temperature=0,
            max_tokens=max_tokens,
            logprobs=logprobs,
            # Random weights say words that the tokenizer does not know.
            ignore_eos=logprobs is not None,
            detokenize=logprobs is None,
        )
        return [output.outputs[0] for output in self.llm.generate(prompts, sampling, use_tqdm=False)]


# Engines that run side by side. With kv_cache_memory_bytes vLLM takes that and what the model needs; the share is then
# no more than what has to be free when the engine starts, for which vLLM's default wants nearly the whole device.
SMALL = {"kv_cache_memory_bytes": 1 << 30, "gpu_memory_utilization": 0.05, "max_num_seqs": 16}
LARGE = {"kv_cache_memory_bytes": 4 << 30, "gpu_memory_utilization": 0.15, "max_num_seqs": 16}


def transcribe(args: argparse.Namespace) -> dict[str, Any]:
    """Texts of all clips, alone and 16 at once."""
    engine = Engine(args.mode, args.model, **SMALL)
    clips = load_clips()
    alone = {name: engine.generate([clip], 200)[0].text for name, clip in clips.items()}
    together = engine.generate(list(clips.values()), 200)
    status = engine.ask("encoder_status")
    return {
        "start_s": engine.start_s,
        "alone": alone,
        "together": {name: output.text for name, output in zip(clips, together, strict=True)},
        "status": status,
        "counters": engine.ask("proof_counters"),
    }


def count_tokens(args: argparse.Namespace) -> dict[str, Any]:
    """Greedy tokens of a 3B-size model with random weights, per encoder mode, the decoder being the same."""
    engine = Engine(args.mode, args.model, load_format="dummy", **LARGE)
    engine.ask("proof_randomize", 7)
    clips = list(load_clips().values())[::2]
    stock = args.mode.startswith("stock")
    modes = ["stock"] if stock else ["eager", "compile", "graph", "both"]
    result: dict[str, Any] = {"start_s": engine.start_s, "tokens": {}}
    for mode in modes:
        if not stock:
            engine.ask("proof_encoder_mode", mode)
        outputs = engine.generate(clips, 16, logprobs=2)
        result["tokens"][mode] = [
            {
                "ids": list(output.token_ids),
                "gaps": [gap(step) for step in output.logprobs],
            }
            for output in outputs
        ]
    if not stock:
        result["status"] = engine.ask("encoder_status")
        result["counters"] = engine.ask("proof_counters")
    return result


def gap(step: Any) -> float:
    """Log-probability by which the best token led the second."""
    best = sorted((entry.logprob for entry in step.values()), reverse=True)
    return float(best[0] - best[1])


def start_only(args: argparse.Namespace) -> dict[str, Any]:
    """Start as a service would, with memory profiled, and use the graphs once."""
    engine = Engine(args.mode, args.model, load_format="dummy", max_num_seqs=16, gpu_memory_utilization=0.9)
    engine.generate(list(load_clips().values())[:4], 4, logprobs=1)
    return {
        "start_s": engine.start_s,
        "status": engine.ask("encoder_status"),
        "counters": engine.ask("proof_counters"),
    }


KINDS = {"texts": transcribe, "tokens": count_tokens, "start": start_only}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("mode", choices=SETTINGS)
    parser.add_argument("model")
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    args.output.write_text(json.dumps(KINDS[args.kind](args), indent=1))


if __name__ == "__main__":
    main()
