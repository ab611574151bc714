"""Does the encoder say the same in every mode that this machine has? `omnihear selftest` asks.

Every mode starts an engine in a process of its own, one after the other, transcribes the bundled clips alone and all at
once, and encodes noise of awkward lengths. What is compared with the eager mode: each text, to the letter, and the
encoder's output. A mode that fell back to another, such as a compilation that failed, does not pass either.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from engine.config import ROOT, EngineConfig, vllm_arguments
from engine.interface import SAMPLE_RATE, Waveform
from engine.prompt import build_prompt
from engine.reason import reason_of
from engine.vllm_environment import prepare_environment, vllm_distribution

Mode: TypeAlias = Literal["eager", "stock", "compile", "graph", "both"]
Outcome: TypeAlias = dict[str, Any]

AUDIO = ROOT / "examples" / "audio"
NOISE_FRAMES = (3, 50, 199, 200, 201, 333, 777, 1000, 3000)  # around the edges of the encoder's windows
TOLERANCES = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 3e-2}
"""Allowed norm of the difference to eager over the norm. Two correct towers part by a rounding in every layer: on 32
layers of random weights in bfloat16 Transformers' own tower alone and in a batch part by 1.5e-2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a mode did.

    Attributes:
        texts: transcripts made, alone and together.
        equal: how many of them equal eager's.
        error: norm of the encoder output's difference to eager's over its norm; None where there is no output.
        note: why it failed, or what it used.
        seconds: of the whole run, start included.
    """

    mode: Mode
    ok: bool
    texts: int
    equal: int
    error: float | None
    note: str
    seconds: float


def modes_here() -> tuple[Mode, ...]:
    """Eager first, which the others are compared with; graphs need vLLM for NVIDIA GPUs."""
    modes: tuple[Mode, ...] = get_args(Mode)
    return modes if vllm_distribution() == "vllm" else tuple(mode for mode in modes if mode not in ("graph", "both"))


def run(config: EngineConfig, modes: Sequence[Mode]) -> Iterator[Verdict]:
    """Yield a verdict per mode as they come; `modes` begins with "eager"."""
    if not set(modes) <= {"eager", "stock"}:
        # It would switch off the encoder's modes with the decoder's; so that decoders are alike, it is off in all.
        config = config.model_copy(update={"enforce_eager": False})
    reference: Outcome = {}
    for mode in modes:
        started = time.monotonic()
        outcome = _run_apart(config, mode)
        reference = reference or outcome
        yield judge(mode, outcome, reference, time.monotonic() - started)


def judge(mode: Mode, outcome: Outcome, reference: Outcome, seconds: float = 0.0) -> Verdict:
    """Compare what two modes made; see `transcribe` for what an outcome holds."""
    if "failed" in outcome or "failed" in reference:
        note = outcome.get("failed") or "there is no eager result to compare with"
        return Verdict(mode=mode, ok=False, texts=0, equal=0, error=None, note=note, seconds=seconds)
    pairs = [(outcome[kind][name], text) for kind in ("alone", "together") for name, text in reference[kind].items()]
    different = [pair for pair in pairs if pair[0] != pair[1]]
    ours, theirs = np.asarray(outcome["output"]), np.asarray(reference["output"])
    error = float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
    allowed = TOLERANCES[outcome["dtype"]]
    note = _missing(mode, outcome["status"])
    if not note and not error <= allowed:
        note = f"the encoder's output differs by more than {allowed:g}"
    if not note and different:
        note = f"{different[0][0]!r} in place of {different[0][1]!r}"
    return Verdict(
        mode=mode,
        ok=not note,
        texts=len(pairs),
        equal=len(pairs) - len(different),
        error=error,
        note=note or _used(outcome["status"]),
        seconds=seconds,
    )


def _missing(mode: Mode, status: Outcome) -> str:
    """What a mode should have used and did not; empty where nothing is missing."""
    if mode == "stock":
        return "the accelerated encoder was used" if status["accelerated"] else ""
    if not status["accelerated"]:
        return "the accelerated encoder was not used: is the plugin installed?"
    if mode in ("compile", "both") and status["compile"]["state"] != "active":
        return f"compilation is {status['compile']['state']}: {status['compile']['error']}"
    graphs = status["graphs"]
    if mode in ("graph", "both") and (graphs["state"] != "active" or not graphs["hits"]):
        return f"graphs are {graphs['state']}, with {graphs['hits']} hits"
    return ""


def _used(status: Outcome) -> str:
    if not status["accelerated"]:
        return "Transformers' encoder"
    parts = [f"attention {status['attention']}"]
    if status["compile"]["layers"]:
        parts.append(f"{status['compile']['layers']} layers compiled")
    if status["graphs"]["budgets"]:
        parts.append(f"{status['graphs']['hits']} clips by graph, {status['graphs']['misses']} without")
    return ", ".join(parts)


def _run_apart(config: EngineConfig, mode: Mode) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        output, log = Path(folder) / "outcome.json", Path(folder) / "log"
        environment = os.environ | ({"VLLM_PLUGINS": "none"} if mode == "stock" else {})
        command = [sys.executable, "-m", "engine.selftest", mode, config.model_dump_json(), str(output)]
        with log.open("w") as stream:
            code = subprocess.run(command, env=environment, stdout=stream, stderr=stream, check=False).returncode  # noqa: S603
        if output.exists():
            outcome: Outcome = json.loads(output.read_text())
            return outcome
        lines = log.read_text().strip().splitlines() or ["no output"]
        return {"failed": f"exit {code}: {lines[-1].strip()[-400:]}"}


def transcribe(config: EngineConfig, mode: Mode) -> Outcome:
    """Run one mode in this process.

    Returns:
        alone, together: texts by clip; output: the encoder's, flat; dtype; status: see `engine.models.status`.
    """
    prepare_environment(config)
    # The engine core in this process: one start-up in place of two.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    graphs = mode in ("graph", "both")
    changes = {
        "compile_mm_encoder": mode in ("compile", "both"),
        "cudagraph_mm_encoder": graphs,
        "encoder_graph_budgets": config.encoder_graph_budgets if graphs else (),
    }
    llm = LLM(**vllm_arguments(config.model_copy(update=changes)))
    sampling = SamplingParams(temperature=0, max_tokens=200)

    def texts(clips: Sequence[Waveform]) -> list[str]:
        language = config.languages[0]
        prompts = [
            {"prompt": build_prompt(language), "multi_modal_data": {"audio": (clip, SAMPLE_RATE)}} for clip in clips
        ]
        return [answer.outputs[0].text for answer in llm.generate(prompts, sampling, use_tqdm=False)]

    clips = {path.stem: decode(path) for path in sorted(AUDIO.glob("*.wav"))}
    alone = {name: texts([clip])[0] for name, clip in clips.items()}
    together = dict(zip(clips, texts(list(clips.values())), strict=True))
    encoded = llm.collective_rpc("encoder_output", args=(list(NOISE_FRAMES),))[0]
    return {
        "alone": alone,
        "together": together,
        "output": np.frombuffer(encoded["values"], dtype=np.float32).tolist(),
        "dtype": str(llm.llm_engine.model_config.dtype).removeprefix("torch."),
        "status": llm.collective_rpc("encoder_status")[0],
    }


def decode(path: Path) -> Waveform:
    """Read a sound file as mono at SAMPLE_RATE; for files that are ours."""
    import av

    with av.open(str(path)) as container:
        resampler = av.AudioResampler(format="flt", layout="mono", rate=SAMPLE_RATE)
        frames = [out for frame in container.decode(audio=0) for out in resampler.resample(frame)]
        frames += resampler.resample(None)
        samples: Waveform = np.concatenate([frame.to_ndarray()[0] for frame in frames]).astype(np.float32)
        return samples


def main(mode: Mode, config: str, output: str) -> None:
    """What `run` starts for each mode."""
    try:
        outcome = transcribe(EngineConfig.model_validate_json(config), mode)
    except Exception as error:
        Path(output).write_text(json.dumps({"failed": f"{type(error).__name__}: {reason_of(error)}"}))
        raise
    Path(output).write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
