"""One engine of `benchmarks.engine`: starts it, loads it, writes what was measured."""

import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from engine.config import EngineConfig, vllm_arguments
from engine.engine_process import EngineProcess
from engine.interface import SAMPLE_RATE, SpeechRequest, Waveform
from engine.prompt import build_prompt


def clips(number: int, seconds: float, seed: int) -> list[Waveform]:
    """Noise, every clip another: vLLM remembers audio that it has seen."""
    random = np.random.default_rng(seed)
    return [random.normal(0, 0.1, round(seconds * SAMPLE_RATE)).astype(np.float32) for _ in range(number)]


def summary(concurrency: int, loads: list[tuple[float, list[float], int]]) -> dict[str, Any]:
    """The median load: wall seconds, latency of each clip, tokens of all answers."""
    loads = sorted(loads, key=lambda load: load[0])
    seconds, latencies, tokens = loads[len(loads) // 2]
    return {
        "concurrency": concurrency,
        "clips_per_second": len(latencies) / seconds,
        "p50": statistics.median(latencies),
        "worst": max(latencies),
        "tokens_per_clip": tokens / len(latencies),
        "seconds_of_all_loads": [load[0] for load in loads],
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

    async def load(concurrency: int, seed: int) -> tuple[float, list[float], int]:
        waiting = clips(max(8, 4 * concurrency), plan["seconds"], seed)
        answers: list[tuple[float, int]] = []

        async def caller() -> None:
            while waiting:
                answers.append(await ask(f"{seed}-{len(waiting)}", waiting.pop()))

        started = time.monotonic()
        await asyncio.gather(*(caller() for _ in range(concurrency)))
        seconds = time.monotonic() - started
        return seconds, [latency for latency, _ in answers], sum(tokens for _, tokens in answers)

    await load(1, 0)
    ready = time.monotonic() - begun
    results = []
    for concurrency in plan["concurrency"]:
        await load(concurrency, 1000 * concurrency)
        loads = [await load(concurrency, 1000 * concurrency + repeat + 1) for repeat in range(plan["repeats"])]
        results.append(summary(concurrency, loads))
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

    def load(concurrency: int, seed: int) -> tuple[float, list[float], int]:
        prompts = [
            {"prompt": prompt, "multi_modal_data": {"audio": (waveform, SAMPLE_RATE)}}
            for waveform in clips(concurrency, plan["seconds"], seed)
        ]
        started = time.monotonic()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        seconds = time.monotonic() - started
        return seconds, [seconds] * concurrency, sum(len(output.outputs[0].token_ids) for output in outputs)

    load(1, 0)
    ready = time.monotonic() - begun
    results = []
    for concurrency in plan["concurrency"]:
        load(concurrency, 1000 * concurrency)
        loads = [load(concurrency, 1000 * concurrency + repeat + 1) for repeat in range(plan["repeats"])]
        results.append(summary(concurrency, loads))
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
