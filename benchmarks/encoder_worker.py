"""One way to run the audio tower, measured in a process of its own. `benchmarks.encoder` starts it.

A pass is what a model runner asks for: float32 mel features on the device and clip lengths on the host in, one
embedding tensor per clip out, prologue and epilogue included. Times are wall-clock from before the call until the
device is idle, so that launches count.
"""

import argparse
import contextlib
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import towers
from benchmarks.checkpoints import AUDIO_SIZES
from engine.models.packing import FRAMES_PER_SLOT

Pass = Callable[[dict[str, Any]], Any]

# One frame to 40 s, every residue at the edge of a window.
RAGGED = [3, 50, 199, 200, 201, 333, 400, 401, 777, 1000, 1999, 3000, 3001, 4000]

COMPILED = ("compile", "both")
GRAPHED = ("graph", "both")


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def time_pass(run: Pass, batch: dict[str, Any], seconds: float) -> dict[str, float]:
    """Milliseconds of a pass: median, 10th and 90th percentile of as many as fit into `seconds`, 10 at least."""
    for _ in range(3):
        run(batch)
    synchronize()
    times: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(times) < 10 or (time.perf_counter() < deadline and len(times) < 1000):
        start = time.perf_counter()
        run(batch)
        synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    deciles = statistics.quantiles(times, n=10)
    return {"ms": statistics.median(times), "p10": deciles[0], "p90": deciles[-1], "passes": len(times)}


def measure_peak(run: Pass, batch: dict[str, Any]) -> float | None:
    """MiB that a pass needs beside weights, inputs and graphs; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run(batch)
    synchronize()
    return float(torch.cuda.max_memory_allocated() - before) / 2**20


def profile_pass(run: Pass, batch: dict[str, Any]) -> dict[str, Any]:
    """Kernels of one pass by total time, and the calls during it that wait for the device or read from it."""
    from torch.profiler import ProfilerActivity, profile, record_function

    run(batch)
    synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        with record_function("encoder_pass"):
            run(batch)
        synchronize()
    events = profiler.events()
    [region] = [e for e in events if e.name == "encoder_pass" and e.device_type == torch.autograd.DeviceType.CPU]
    kernels: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for event in events:
        if event.device_type == torch.autograd.DeviceType.CUDA:
            if event.name != "encoder_pass":
                kernels[event.name] += event.self_device_time_total
                counts[event.name] += 1
        elif region.time_range.start <= event.time_range.start <= region.time_range.end:
            calls[event.name] += 1
    runtime = {name: n for name, n in calls.items() if name.startswith("cuda")}
    return {
        "device_ms": sum(kernels.values()) / 1e3,
        "kernels": sum(counts.values()),
        "host_ms": (region.time_range.end - region.time_range.start) / 1e3,
        "runtime_calls": runtime,
        "waits": sum(n for name, n in runtime.items() if "Synchronize" in name),
        "reads": sum(n for name, n in counts.items() if "DtoH" in name),
        "top": [[name[:110], counts[name], total / 1e3] for name, total in kernels.most_common(14)],
    }


@contextlib.contextmanager
def forbid_sync() -> Iterator[None]:
    """Make PyTorch raise on any call that waits for the device."""
    if not torch.cuda.is_available():
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def relative_errors(clips: list[torch.Tensor], reference: list[torch.Tensor]) -> list[float]:
    """Per clip, the norm of the difference over the norm of the reference."""
    pairs = zip(clips, reference, strict=True)
    return [float((ours.float().cpu() - theirs).norm() / theirs.norm()) for ours, theirs in pairs]


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a large square matrix product, the yardstick of the arithmetic limit."""
    n = 8192 if device.type == "cuda" else 512
    left, right = torch.randn(2, n, n, device=device, dtype=dtype)
    timing = time_pass(lambda _: left @ right, {}, 0.5)
    return 2 * n**3 / (timing["ms"] / 1e3)


class Worker:
    """Builds the tower for a mode and takes the measurements, each guarded so that one failure costs one number."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.mode: str = args.worker
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = getattr(torch, args.dtype)
        self.result: dict[str, Any] = {"mode": self.mode, "errors": {}}
        self.manager: Any = None
        self.eager: Pass

    def build(self) -> Pass:
        """The function that runs a pass."""
        if not self.reference_path.exists():
            with self.guard("reference"):
                self.save_reference()
        if self.mode == "stock":
            self.eager = towers.build_stock(self.args.size, self.device, self.dtype).embed
            return self.eager
        from vllm.compilation.counter import compilation_counter

        compilation: dict[str, Any] = {
            "compile_mm_encoder": self.mode in COMPILED,
            "cudagraph_mm_encoder": self.mode in GRAPHED,
            "cudagraph_mode": "NONE",
        }
        if self.mode not in COMPILED:
            compilation["mode"] = 0
        if self.args.budgets:
            compilation["encoder_cudagraph_token_budgets"] = self.args.budgets
        config = towers.build_engine_config(self.args.size, dtype=self.args.dtype, compilation=compilation)
        towers.start_parallel_state(config)
        before = compilation_counter.clone()
        model = towers.build_native(self.args.size, config, self.device, self.dtype)
        self.eager = model.embed
        started = time.perf_counter()
        with torch.inference_mode():
            model.embed(self.batch([500]))
        synchronize()
        after = compilation_counter
        tower = model.audio_tower
        self.result |= {
            "attention": tower.attention_kernel,
            "first_pass_s": time.perf_counter() - started,
            "compile_state": tower.compile_state,
            "compile_error": tower.compile_error,
            "models_seen": after.num_models_seen - before.num_models_seen,
            "graphs_seen": after.num_graphs_seen - before.num_graphs_seen,
            "aot_compiles": after.num_aot_compiles - before.num_aot_compiles,
            "aot_loaded": after.num_aot_artifacts_loaded - before.num_aot_artifacts_loaded,
        }
        if self.mode not in GRAPHED or self.device.type == "cpu":
            return self.eager
        started, allocated = time.perf_counter(), torch.cuda.mem_get_info()[0]
        self.manager = towers.build_graphs(model, self.device, self.dtype)
        self.result |= {
            "capture_s": time.perf_counter() - started,
            "graph_mib": (allocated - torch.cuda.mem_get_info()[0]) / 2**20,
            "budgets": list(self.manager.token_budgets),
        }
        execute: Pass = self.manager.execute
        return execute

    def batch(self, lengths: list[int]) -> dict[str, Any]:
        return towers.make_batch(lengths, AUDIO_SIZES[self.args.size]["num_mel_bins"], self.device)

    @contextlib.contextmanager
    def guard(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.result["errors"][name] = f"{type(error).__name__}: {error}"[:2000]

    def run(self) -> dict[str, Any]:
        started = time.perf_counter()
        run = self.build()
        self.result["setup_s"] = time.perf_counter() - started
        with torch.inference_mode():
            with self.guard("accuracy"):
                self.check_accuracy(run)
            if self.mode == "stock":
                self.result["matmul_flops"] = matmul_rate(self.device, self.dtype)
            cases: dict[str, Any] = {}
            self.result["cases"] = cases
            for name, lengths in self.args.batches.items():
                with self.guard(name):
                    batch = self.batch(lengths)
                    cases[name] = time_pass(run, batch, self.args.seconds) | {"peak_mib": measure_peak(run, batch)}
            if self.manager is not None:
                with self.guard("sync"):
                    self.check_sync()
                with self.guard("padding"):
                    self.measure_padding()
            if self.device.type == "cuda" and self.mode != "stock":
                for name, lengths in list(self.args.batches.items()):
                    if name in ("1x5", "1x30", "8x30"):
                        with self.guard(f"profile {name}"):
                            profiles = self.result.setdefault("profiles", {})
                            profiles[name] = profile_pass(run, self.batch(lengths))
        return self.result

    def check_accuracy(self, run: Pass) -> None:
        """Ragged clips against the float32 reference; together, alone, and in reverse order."""
        batch = self.batch(RAGGED)
        together = [clip.clone() for clip in run(batch)]
        if self.reference_path.exists():
            errors = relative_errors(together, torch.load(self.reference_path))
            self.result["error_median"], self.result["error_worst"] = statistics.median(errors), max(errors)
        clips = list(batch["input_audio_features"].split(RAGGED, dim=1))
        alone = [run(self.batch_of([clip]))[0].clone() for clip in clips]
        backwards = [clip.clone() for clip in run(self.batch_of(clips[::-1]))][::-1]
        self.result["alone_vs_batch"] = max(relative_errors(alone, [clip.float().cpu() for clip in together]))
        self.result["order"] = max(relative_errors(backwards, [clip.float().cpu() for clip in together]))
        if self.manager is not None:
            self.result["graph_hits"], self.result["graph_misses"] = self.manager.graph_hits, self.manager.graph_misses
            eager = [clip.float().cpu() for clip in self.eager(batch)]
            self.result["graph_vs_eager"] = max(relative_errors(together, eager))

    @property
    def reference_path(self) -> Path:
        return Path(self.args.scratch) / "reference.pt"

    def save_reference(self) -> None:
        """Transformers' tower in float32, without the reduced-precision matrix products that GPUs offer for it."""
        precise = {backend: backend.allow_tf32 for backend in (torch.backends.cuda.matmul, torch.backends.cudnn)}
        for backend in precise:
            backend.allow_tf32 = False
        tower = towers.build_stock(self.args.size, self.device, torch.float32)
        with torch.inference_mode():
            torch.save([clip.cpu() for clip in tower.embed(self.batch(RAGGED))], self.reference_path)
        del tower
        torch.cuda.empty_cache()
        for backend, allowed in precise.items():
            backend.allow_tf32 = allowed

    @staticmethod
    def batch_of(clips: list[torch.Tensor]) -> dict[str, Any]:
        lengths = [clip.shape[1] for clip in clips]
        return {
            "input_audio_features": torch.cat(clips, dim=1),
            "audio_feature_lengths": torch.tensor(lengths, device="cpu"),
            "feature_attention_mask": [torch.ones(length, dtype=torch.bool) for length in lengths],
        }

    def check_sync(self) -> None:
        """Passes under PyTorch's sync debug mode, which raises on a wait; and what a profiler saw."""
        batches = [self.batch(lengths) for lengths in ([500], [3000], [100, 250, 777, 1000], [3000] * 4)]
        synchronize()
        with forbid_sync():
            for batch in batches:
                self.manager.execute(batch)
        synchronize()
        seen = profile_pass(self.manager.execute, batches[0])
        self.result["sync"] = {
            "debug_mode": "no wait",
            "graph_launches": seen["runtime_calls"].get("cudaGraphLaunch", 0),
            "waits": seen["waits"],
            "reads": seen["reads"],
            "runtime_calls": seen["runtime_calls"],
        }

    def measure_padding(self) -> None:
        """Each budget at its fullest, and at its emptiest: one slot more than the budget below; beside eager."""
        rows: list[dict[str, Any]] = []
        below = 0
        for budget in self.manager.token_budgets:
            row: dict[str, Any] = {"budget": budget}
            for fill, slots in (("full", budget), ("emptiest", below + 1)):
                clip = self.batch([FRAMES_PER_SLOT * slots])
                row[f"graph_{fill}"] = time_pass(self.manager.execute, clip, self.args.seconds / 8)["ms"]
                row[f"eager_{fill}"] = time_pass(self.eager, clip, self.args.seconds / 8)["ms"]
            rows.append(row)
            below = budget
        self.result["padding"] = rows


def main(args: argparse.Namespace) -> None:
    """Measure, and write the result as JSON to `args.output`."""
    worker = Worker(args)
    try:
        worker.run()
    except Exception as error:
        worker.result["errors"]["run"] = f"{type(error).__name__}: {error}"[:4000]
        raise
    finally:
        Path(args.output).write_text(json.dumps(worker.result, indent=1))
