"""Our kernels beside what they replace, one by one: `python -m benchmarks.kernels`. Needs a GPU.

Microseconds of one call with a cold L2 cache, median, and the largest error against float32 arithmetic on the same
inputs, over the largest value. Writes benchmarks/results/kernels.json and .md.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from triton.testing import do_bench

from benchmarks.encoder import describe_machine
from engine.models import fused

RESULTS = Path(__file__).resolve().parent / "results"
WIDTH, FFN, HEADS, WINDOW = 1280, 5120, 20, 100  # Qwen2.5-Omni, 3B and 7B
SECONDS = (5, 30, 240, 960)

Candidates = dict[str, Callable[[], Any]]


def norm_candidates(rows: int) -> tuple[Candidates, torch.Tensor]:
    hidden, update = torch.randn(2, rows, WIDTH, device="cuda", dtype=torch.bfloat16)
    norm = torch.nn.LayerNorm(WIDTH, device="cuda", dtype=torch.bfloat16)
    arguments = (norm.weight, norm.bias, norm.eps, False)
    exact = fused.add_layer_norm_reference(hidden, update, *arguments)[0].float()
    return {
        "PyTorch, two kernels": lambda: fused.add_layer_norm_reference(hidden, update, *arguments)[1],
        "ours": lambda: fused.add_layer_norm(hidden, update, norm)[1],
    }, functional.layer_norm(exact, (WIDTH,), norm.weight.float(), norm.bias.float(), norm.eps)


def gelu_candidates(rows: int) -> tuple[Candidates, torch.Tensor]:
    x = torch.randn(rows, FFN, device="cuda", dtype=torch.bfloat16)
    return {"PyTorch": lambda: functional.gelu(x), "ours": lambda: fused.gelu(x)}, functional.gelu(x.float())


def expansion_candidates(rows: int) -> tuple[Candidates, torch.Tensor]:
    """The whole of fc1 and GELU; cuBLASLt can end a product with the GELU that tanh approximates."""
    x = torch.randn(rows, WIDTH, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(FFN, WIDTH, device="cuda", dtype=torch.bfloat16) / WIDTH**0.5
    bias = torch.randn(FFN, device="cuda", dtype=torch.bfloat16)
    return {
        "product alone": lambda: functional.linear(x, weight, bias),
        "product, PyTorch": lambda: functional.gelu(functional.linear(x, weight, bias)),
        "product, ours": lambda: fused.gelu(functional.linear(x, weight, bias)),
        "cuBLASLt, tanh": lambda: fused.linear_gelu(x, weight, bias),
    }, functional.gelu(functional.linear(x.float(), weight.float(), bias.float()))


def attention_candidates(rows: int) -> tuple[Candidates, torch.Tensor]:
    from vllm.v1.attention.backends.fa_utils import get_flash_attn_version
    from vllm.v1.attention.ops.vit_attn_wrappers import vit_flash_attn_wrapper, vit_triton_attn_wrapper

    head_size = WIDTH // HEADS
    qkv = torch.randn(rows, 3 * WIDTH, device="cuda", dtype=torch.bfloat16)
    bounds = torch.arange(0, rows + WINDOW, WINDOW, dtype=torch.int32).clamp(max=rows).unique().cuda()
    longest = torch.tensor(WINDOW, dtype=torch.int32)
    parts = [part.view(1, rows, HEADS, head_size) for part in qkv.chunk(3, dim=-1)]
    named = dict(zip("qkv", parts, strict=True)) | {"batch_size": 1, "cu_seqlens": bounds, "max_seqlen": longest}
    version = get_flash_attn_version(head_size=head_size)
    return {
        "FlashAttention": lambda: vit_flash_attn_wrapper(
            **named, is_rocm_aiter=False, fa_version=version, scale=head_size**-0.5
        ).reshape(rows, WIDTH),
        "vLLM's Triton": lambda: vit_triton_attn_wrapper(**named, scale=head_size**-0.5).reshape(rows, WIDTH),
        "ours": lambda: fused.window_attention(qkv, bounds, HEADS, WINDOW),
    }, fused.window_attention_reference(qkv.float(), bounds, HEADS, WINDOW)


KERNELS = {
    "add and LayerNorm": norm_candidates,
    "GELU": gelu_candidates,
    "fc1 and GELU": expansion_candidates,
    "attention": attention_candidates,
}


def measure(candidates: Candidates, exact: torch.Tensor) -> dict[str, dict[str, Any]]:
    """A candidate that fails costs its own numbers only."""
    results: dict[str, dict[str, Any]] = {}
    for name, run in candidates.items():
        try:
            error = float((run().float() - exact).abs().max() / exact.abs().max())
            results[name] = {"us": 1e3 * do_bench(run, warmup=10, rep=40, return_mode="median"), "error": error}
        except Exception as failure:
            results[name] = {"failed": f"{type(failure).__name__}: {failure}"[-600:]}
    return results


def render(report: dict[str, Any]) -> str:
    lines = ["# Kernels", "", *(f"- {key}: {value}" for key, value in report["machine"].items()), ""]
    lines += ["| kernel | candidate | " + " | ".join(f"{s} s" for s in SECONDS) + " | error |"]
    lines += ["|---" * (3 + len(SECONDS)) + "|"]
    for kernel, by_seconds in report["kernels"].items():
        for candidate in by_seconds[str(SECONDS[0])]:
            found = [by_seconds[str(seconds)].get(candidate, {}) for seconds in SECONDS]
            cells = [f"{result['us']:.1f}" if "us" in result else "-" for result in found]
            errors = [result["error"] for result in found if "error" in result]
            worst = f"{max(errors):.1e}" if errors else found[0].get("failed", "")[:200]
            lines.append(f"| {kernel} | {candidate} | " + " | ".join(cells) + f" | {worst} |")
    return "\n".join(lines) + "\n"


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "kernels", help="path without suffix")
    args = parser.parse_args()
    torch.manual_seed(0)
    report: dict[str, Any] = {
        "machine": describe_machine(),
        "kernels": {
            name: {str(seconds): measure(*make(50 * seconds)) for seconds in SECONDS} for name, make in KERNELS.items()
        },
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    args.out.with_suffix(".md").write_text(render(report))
    print(render(report))


if __name__ == "__main__":
    main()
