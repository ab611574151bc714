"""One engine of `benchmarks.engine`: starts it, loads it, writes what was measured."""

import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from benchmarks.gpu import GpuBusy
from benchmarks.processes import ProcessTree
from engine.config import EngineConfig, vllm_arguments
from engine.engine_process import EngineProcess
from engine.interface import SAMPLE_RATE, SpeechRequest, Waveform
from engine.prompt import build_prompt


def clips(number: int, seconds: float, seed: int) -> list[Waveform]:
    """Noise, every clip another: vLLM remembers audio that it has seen."""
    random = np.random.default_rng(seed)
    return [random.normal(0, 0.1, round(seconds * SAMPLE_RATE)).astype(np.float32) for _ in range(number)]


@dataclass(frozen=True)
class Load:
    """Clips that were answered, `concurrency` at once.

    Attributes:
        latencies: seconds, of each clip.
        tokens: of all answers.
        cpu_seconds: user and system time of this process and all below it.
        gpu_busy: share of the time in which a kernel ran, None without a GPU.
    """

    seconds: float
    latencies: list[float]
    tokens: int
    cpu_seconds: float
    gpu_busy: float | None


class Watch:
    """Takes down what a load takes of the machine while its block runs.

    Attributes:
        seconds: that it took.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._tree, self._gpu = ProcessTree(os.getpid()), GpuBusy()

    def __enter__(self) -> Self:
        self._gpu.__enter__()
        self._cpu_seconds, self._begun = self._tree.cpu_seconds(), time.monotonic()
        return self

    def __exit__(self, *exception: object) -> None:
        self.seconds = time.monotonic() - self._begun
        self._cpu_seconds = self._tree.cpu_seconds() - self._cpu_seconds
        self._gpu.__exit__(*exception)

    def load(self, latencies: list[float], tokens: int) -> Load:
        """What was answered, with what it took."""
        return Load(self.seconds, latencies, tokens, self._cpu_seconds, self._gpu.share)


def summary(concurrency: int, loads: list[Load], clip_seconds: float) -> dict[str, Any]:
    """The median load by its wall time."""
    load = sorted(loads, key=lambda load: load.seconds)[len(loads) // 2]
    p50, p95, p99 = np.percentile(load.latencies, (50, 95, 99))
    return {
        "concurrency": concurrency,
        "clips_per_second": len(load.latencies) / load.seconds,
        "p50": p50,
        "p95": p95,
        "p99": p99,
        "tokens_per_clip": load.tokens / len(load.latencies),
        "cpu_seconds_per_audio_hour": load.cpu_seconds / (len(load.latencies) * clip_seconds) * 3600,
        "gpu_busy": load.gpu_busy,
        "seconds_of_all_loads": [load.seconds for load in loads],
    }


async def measure_ours(config: EngineConfig, plan: dict[str, Any]) -> dict[str, Any]:
    """Closed loop: `concurrency` callers, four clips each and at least eight."""
    begun = time.monotonic()
    engine = EngineProcess(config)
    await engine.start(lambda phase, share: None)

    async def ask(name: str, waveform: Waveform) -> tuple[float, int]:
        started = time.monotonic()
        request = SpeechRequest(
            request_id=name, waveform=waveform, language=config.languages[0], max_tokens=plan["tokens"]
        )
        outputs = [output async for output in engine.generate(request)]
        return time.monotonic() - started, outputs[-1].output_tokens

    async def load(concurrency: int, seed: int) -> Load:
        waiting = clips(max(8, 4 * concurrency), plan["seconds"], seed)
        answers: list[tuple[float, int]] = []

        async def caller() -> None:
            while waiting:
                answers.append(await ask(f"{seed}-{len(waiting)}", waiting.pop()))

        with Watch() as watch:
            await asyncio.gather(*(caller() for _ in range(concurrency)))
        return watch.load([latency for latency, _ in answers], sum(tokens for _, tokens in answers))

    await load(1, 0)
    ready = time.monotonic() - begun
    results = []
    for concurrency in plan["concurrency"]:
        await load(concurrency, 1000 * concurrency)
        loads = [await load(concurrency, 1000 * concurrency + repeat + 1) for repeat in range(plan["repeats"])]
        results.append(summary(concurrency, loads, plan["seconds"]))
    description = await engine.describe()
    await engine.shutdown()
    return {"ready_seconds": ready, "loads": results, "encoder": dict(description.encoder)}


def measure_stock(config: EngineConfig, plan: dict[str, Any]) -> dict[str, Any]:
    """`LLM.generate` over `concurrency` clips at a time, vLLM's own settings but for what the model needs."""
    from vllm import LLM, SamplingParams

    begun = time.monotonic()
    ours = vllm_arguments(config)
    kept = ("model", "dtype", "max_model_len", "load_format", "limit_mm_per_prompt", "kv_cache_memory_bytes")
    llm = LLM(**{name: ours[name] for name in kept if name in ours}, max_num_seqs=max(plan["concurrency"]))
    sampling = SamplingParams(temperature=0, max_tokens=plan["tokens"])
    prompt = build_prompt(config.languages[0])

    def load(concurrency: int, seed: int) -> Load:
        prompts = [
            {"prompt": prompt, "multi_modal_data": {"audio": (waveform, SAMPLE_RATE)}}
            for waveform in clips(concurrency, plan["seconds"], seed)
        ]
        with Watch() as watch:
            outputs = llm.generate(prompts, sampling, use_tqdm=False)
        # All at once, or none: a caller has each when it has the last.
        return watch.load([watch.seconds] * concurrency, sum(len(output.outputs[0].token_ids) for output in outputs))

    load(1, 0)
    ready = time.monotonic() - begun
    results = []
    for concurrency in plan["concurrency"]:
        load(concurrency, 1000 * concurrency)
        loads = [load(concurrency, 1000 * concurrency + repeat + 1) for repeat in range(plan["repeats"])]
        results.append(summary(concurrency, loads, plan["seconds"]))
    return {"ready_seconds": ready, "loads": results}


def main(kind: str, job: Path, result: Path) -> None:
    asked = json.loads(job.read_text())
    config = EngineConfig.model_validate(asked["engine"])
    if kind == "stock":
        measured = measure_stock(config, asked["plan"])
    else:
        measured = asyncio.run(measure_ours(config, asked["plan"]))
    result.write_text(json.dumps(measured))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
