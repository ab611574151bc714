"""Everything about the accelerated tower that needs a GPU, in one command: `python -m benchmarks.proof`.

1. `benchmarks.kernels` and `benchmarks.encoder`: times, accuracy, padding, device waits (alone on the GPU, one process
   after the other);
2. transcripts of the embedded checkpoint in every encoder mode, alone and 16 at once, beside stock vLLM, and greedy
   tokens of a 3B-size model with random weights (engines side by side: no times are taken);
3. one more start of the 3B-size model with compilation and graphs: memory profiled, compiled code from the cache.

Writes benchmarks/results/proof.json and .md and prints a short table last. Every step has a time limit, and a failed
one leaves the others' results.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TEXT_MODES = ("stock", "eager", "compile", "graph", "graph-small", "graph-first-runner", "both")


def plugin_environment(folder: Path) -> dict[str, str]:
    """This environment, with our entry point visible to child processes even where the project is not installed."""
    path = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    if not any(point.value == "engine.plugin:register" for point in entry_points(group="vllm.general_plugins")):
        info = folder / "omnihear-0.0.0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: omnihear\nVersion: 0.0.0\n")
        (info / "entry_points.txt").write_text("[vllm.general_plugins]\nomnihear = engine.plugin:register\n")
        path.insert(0, str(folder))
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        # The engine core in the caller's process: one start-up instead of two, and the workers' counters at hand.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


class Job:
    """A child process that writes JSON."""

    def __init__(self, name: str, module: str, arguments: list[str], output: Path, env: dict[str, str]) -> None:
        self.name, self.output, self.log = name, output, output.with_suffix(".log")
        self.started = time.monotonic()
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments], cwd=ROOT, env=env, stdout=log, stderr=log
            )

    def wait(self, deadline: float) -> dict[str, Any]:
        try:
            code: int | str = self.process.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = "stopped at the time limit"
        result: dict[str, Any] = json.loads(self.output.read_text()) if self.output.exists() else {}
        result["wall_s"] = time.monotonic() - self.started
        log = self.log.read_text()
        result["log_lines"] = [
            line[-400:]
            for line in log.splitlines()
            if any(word in line for word in ("CUDA graph", "load failure", "saved AOT", "KV cache memory"))
        ][:40]
        if code != 0:
            result["failed"] = f"exit {code}\n{log[-4000:]}"
        print(f"{self.name}: {result['wall_s']:.0f} s{' FAILED' if code != 0 else ''}", flush=True)
        return result


def run_module(name: str, options: list[str], env: dict[str, str], scratch: Path, limit: float) -> str:
    """Run a benchmark of this folder; its output, cut short where its time ran out."""
    log = scratch / f"{name}.log"
    command = [sys.executable, "-m", f"benchmarks.{name}", *options]
    with log.open("w") as stream:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=stream, stderr=stream, start_new_session=True)
    try:
        code: int | str = process.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the processes that it started
        process.wait()
        code = "at the time limit"
    if code != 0:
        print(f"{name}: exit {code}", flush=True)
    return log.read_text()[-6000:]


def run_engines(scratch: Path, limit: float, size: str) -> dict[str, dict[str, Any]]:
    """Step 2; all engines at once."""
    from benchmarks.checkpoints import EMBEDDED, write_checkpoint

    env = plugin_environment(scratch / "plugin")
    stock_env = env | {"VLLM_PLUGINS": "none"}
    large = write_checkpoint(scratch / "large", size)
    jobs = []
    for mode in TEXT_MODES:
        output = scratch / f"texts-{mode}.json"
        arguments = ["texts", mode, str(EMBEDDED), str(output)]
        child = stock_env if mode == "stock" else env
        if mode == "graph-first-runner":
            child = child | {"VLLM_USE_V2_MODEL_RUNNER": "0"}
        jobs.append(Job(f"texts-{mode}", "benchmarks.proof_worker", arguments, output, child))
    for mode in ("stock-compiled", "both"):
        output = scratch / f"tokens-{mode}.json"
        arguments = ["tokens", mode, str(large), str(output)]
        child = stock_env if mode == "stock-compiled" else env
        jobs.append(Job(f"tokens-{mode}", "benchmarks.proof_worker", arguments, output, child))
    deadline = time.monotonic() + limit
    return {job.name: job.wait(deadline) for job in jobs}


def run_start(scratch: Path, limit: float, size: str) -> dict[str, dict[str, Any]]:
    """Step 3: memory profiled as in a service, compiled code from the cache that step 2 has filled."""
    from benchmarks.checkpoints import write_checkpoint

    large = write_checkpoint(scratch / "large", size)
    output = scratch / "start.json"
    arguments = ["start", "both", str(large), str(output)]
    job = Job("start", "benchmarks.proof_worker", arguments, output, plugin_environment(scratch / "plugin"))
    return {job.name: job.wait(time.monotonic() + limit)}


def compare_texts(engines: dict[str, dict[str, Any]]) -> list[str]:
    """One line per mode: how many transcripts equal stock's, alone and together."""
    stock = engines.get("texts-stock", {}).get("alone")
    # The decoder's own rounding depends on who decodes beside whom, so each kind is compared with its like.
    batched = engines.get("texts-stock", {}).get("together", {})
    lines = []
    for mode in TEXT_MODES:
        result = engines.get(f"texts-{mode}", {})
        if not stock or "alone" not in result:
            lines.append(f"texts {mode}: no result")
            continue
        alone = [name for name in stock if result["alone"][name] != stock[name]]
        together = [name for name in stock if result["together"][name] != batched[name]]
        graphs = result.get("status", {}).get("graphs", {})
        counts = f", hits {graphs['hits']}, misses {graphs['misses']}" if graphs.get("budgets") else ""
        lines.append(
            f"texts {mode}: equal to stock alone {len(stock) - len(alone)}/{len(stock)}, "
            f"16 at once {len(stock) - len(together)}/{len(stock)}{counts}"
        )
        for kind, names in (("alone", alone), ("together", together)):
            expected = engines["texts-stock"][kind]
            lines += [f"    {kind} {name}: {result[kind][name]!r} (stock {expected[name]!r})" for name in names[:4]]
    return lines


def compare_tokens(engines: dict[str, dict[str, Any]]) -> list[str]:
    """One line per mode: sequences equal to the eager tower's, and how close the race was where they part."""
    tokens: dict[str, Any] = {}
    for name in ("tokens-stock-compiled", "tokens-both"):
        tokens |= engines.get(name, {}).get("tokens", {})
    reference = tokens.get("eager")
    if not reference:
        return ["tokens: no result"]
    typical = sorted(gap for clip in reference for gap in clip["gaps"])
    lines = [f"tokens: typical lead of the best token {typical[len(typical) // 2]:.3f} (log-probability)"]
    for mode, clips in tokens.items():
        partings = []
        for ours, theirs in zip(clips, reference, strict=True):
            pairs = enumerate(zip(ours["ids"], theirs["ids"], strict=True))
            first = next((step for step, (left, right) in pairs if left != right), None)
            if first is not None:
                partings.append(round(theirs["gaps"][first], 4))
        equal = len(clips) - len(partings)
        lines.append(f"tokens {mode}: {equal}/{len(clips)} equal; leads where they part {partings}")
    return lines


def summarise(report: dict[str, Any]) -> str:
    """The short table."""
    lines = [*(line for line in report["kernels"].splitlines() if line.startswith("|")), ""]
    lines += ["| mode | " + " | ".join(report["encoder"].get("batches", [])) + " | error |"]
    for mode, result in report["encoder"].get("modes", {}).items():
        if "cases" in result:
            cells = [f"{result['cases'].get(b, {}).get('ms', float('nan')):.2f}" for b in report["encoder"]["batches"]]
            lines.append(f"| {mode} | " + " | ".join(cells) + f" | {result.get('error_median', float('nan')):.1e} |")
        for name, error in result.get("errors", {}).items():
            lines.append(f"    FAILED {mode} {name}: {error[:300]}")
    for mode, result in report["encoder"].get("modes", {}).items():
        if "sync" in result:
            lines.append(f"sync {mode}: {json.dumps(result['sync'])}")
        if "padding" in result:
            slower = [row["budget"] for row in result["padding"] if row["graph_emptiest"] > row["eager_emptiest"]]
            lines.append(f"padding {mode}: graph slower than eager at its emptiest at budgets {slower}")
    lines += compare_texts(report["engines"]) + compare_tokens(report["engines"])
    for name, result in report["start"].items():
        picked = {k: v for k, v in result.get("counters", {}).items() if v}
        lines.append(f"{name}: {result.get('start_s', float('nan')):.0f} s, {picked}")
        lines += [f"    {line}" for line in result["log_lines"] if "pool memory" in line or "KV cache memory" in line]
    for name, result in (report["engines"] | report["start"]).items():
        if "failed" in result:
            lines.append(f"FAILED {name}: {result['failed'][-600:]}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="3b")
    parser.add_argument("--steps", nargs="+", default=["kernels", "encoder", "engines", "start"])
    parser.add_argument("--seconds", type=float, default=0.5, help="time spent on each batch of step 1")
    parser.add_argument("--limits", nargs=4, type=float, default=[70, 255, 130, 80], help="seconds for each step")
    args = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"kernels": "", "encoder": {}, "engines": {}, "start": {}}
    output = RESULTS / "proof.json"
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        environment = plugin_environment(scratch / "plugin")
        if "kernels" in args.steps:
            report["kernels"] = run_module("kernels", [], environment, scratch, args.limits[0])
        if "encoder" in args.steps:
            options = ["--size", args.size, "--seconds", str(args.seconds), "--timeout", str(args.limits[1] / 3)]
            print(run_module("encoder", options, environment, scratch, args.limits[1])[:1000], flush=True)
            if (RESULTS / "encoder.json").exists():
                report["encoder"] = json.loads((RESULTS / "encoder.json").read_text())
        if "engines" in args.steps:
            report["engines"] = run_engines(scratch, args.limits[2], args.size)
        output.write_text(json.dumps(report, indent=1) + "\n")
        if "start" in args.steps:
            report["start"] = run_start(scratch, args.limits[3], args.size)
    output.write_text(json.dumps(report, indent=1) + "\n")
    summary = summarise(report)
    output.with_suffix(".md").write_text(f"# Proof on the GPU\n\n{summary}\n")
    print(summary, flush=True)


if __name__ == "__main__":
    main()
