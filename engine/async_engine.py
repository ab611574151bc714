"""vLLM's `AsyncLLM` behind the engine contract.

Its construction blocks the event loop for as long as a model takes to load, so the service runs it in a process of its
own, see `engine.engine_process`.
"""

import asyncio
import logging
import multiprocessing
import multiprocessing.forkserver
from collections.abc import AsyncGenerator
from contextlib import aclosing
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY
from prometheus_client.metrics_core import Metric

from engine.config import SEGMENT_SECONDS, EngineConfig, vllm_arguments
from engine.interface import (
    ENCODER_MODES,
    EncoderUsage,
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
)
from engine.plugin import register_imported
from engine.prompt import REPEATED_COPIES, REPEATED_TOKENS
from engine.reason import reason_of
from engine.vllm_environment import vllm_distribution

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

    from engine.speech_input import SpeechInputs

logger = logging.getLogger(__name__)

STATUS_SECONDS = 5.0  # the worker answers between two steps of the engine
_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "abort": "abort",
    "repetition": "repetition",
}


class VllmEngine:
    """Serves one Qwen2.5-Omni checkpoint. Implements `engine.interface.SpeechEngine`."""

    def __init__(self, config: EngineConfig) -> None:
        """Set up; starts nothing.

        Args:
            config: of which this machine can do everything, see `engine.vllm_environment.servable`.
        """
        self._config = config
        self._llm: AsyncLLM | None = None
        self._inputs: SpeechInputs | None = None

    async def start(self, report: ReportProgress) -> None:
        """Load the model, wait until the engine core answers; blocks the event loop meanwhile."""
        try:
            self._llm, self._inputs = await _build(self._config, report)
            await _ask_worker(self._llm, "replay_encoder_graphs")
        except Exception as error:
            msg = f"vLLM could not load {self._config.model_path}: {reason_of(error)}"
            raise EngineStartError(msg) from error

    async def generate(
        self, request: SpeechRequest, *, incremental: bool = False
    ) -> AsyncGenerator[SpeechOutput, None]:
        """Transcribe one segment; see `SpeechEngine.generate`."""
        from vllm.exceptions import VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError as VllmEngineDeadError

        llm, inputs = self._serving()
        try:
            engine_input = await inputs.build(request)
            sampling = _sampling(request, incremental=incremental)
            async with aclosing(llm.generate(engine_input, sampling, request.request_id)) as outputs:
                async for output in outputs:
                    yield _translate(output)
        except VllmEngineDeadError as error:
            msg = "the vLLM engine process has died"
            raise EngineDeadError(msg) from error
        except (VLLMClientError, ValueError) as error:
            raise RequestRefusedError(reason_of(error)) from error
        except EngineError:
            raise
        except Exception as error:
            msg = f"vLLM failed on request {request.request_id}"
            raise GenerationError(msg) from error

    async def abort(self, request_id: str) -> None:
        """Stop a request; see `SpeechEngine.abort`."""
        llm, _ = self._serving()
        await llm.abort(request_id)

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
            requests=0 if self._llm is None else self._llm.output_processor.get_num_unfinished_requests(),
            encoder={
                "compile_mm_encoder": config.compile_mm_encoder,
                "cudagraph_mm_encoder": config.cudagraph_mm_encoder,
                "graph_budgets": list(config.encoder_graph_budgets),
                "status": await self._encoder_status(),
            },
            versions={
                "vllm": version(vllm_distribution()),
                **{name: version(name) for name in ("torch", "transformers")},
            },
        )

    async def encoder_usage(self) -> EncoderUsage | None:
        """What the first worker's encoder has done; see `SpeechEngine.encoder_usage`."""
        status = await self._encoder_status()
        return None if status is None else _usage(status, self._config)

    async def _encoder_status(self) -> dict[str, Any] | None:
        """What the first worker says of its encoder, see `engine.models.status`; None where it does not answer."""
        llm = self._llm
        if llm is None or llm.errored:
            return None
        try:
            status: dict[str, Any] = await asyncio.wait_for(_ask_worker(llm, "encoder_status"), STATUS_SECONDS)
        except Exception:
            # Whatever it is, /v1/engine is what an operator looks at when something is wrong, so it has to answer.
            logger.warning("the encoder's status is unknown", exc_info=True)
            return None
        return status

    async def metrics(self) -> list[Metric]:
        """What vLLM counts in this process; see `SpeechEngine.metrics`."""
        return [metric for metric in REGISTRY.collect() if metric.name.startswith("vllm:")]

    async def shutdown(self) -> None:
        """End the engine core."""
        llm, inputs = self._llm, self._inputs
        self._llm = self._inputs = None
        if inputs is not None:
            inputs.close()
        if llm is not None:
            llm.shutdown()

    def _serving(self) -> tuple["AsyncLLM", "SpeechInputs"]:
        if self._llm is None or self._inputs is None:
            msg = "the engine has not started"
            raise EngineNotReadyError(msg)
        return self._llm, self._inputs


async def _build(config: EngineConfig, report: ReportProgress) -> tuple["AsyncLLM", "SpeechInputs"]:
    import vllm.v1.engine.utils
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from engine.speech_input import SpeechInputs

    register_imported()
    # vLLM asks this function how to start its engine core. A process that was forked from the fork server has run
    # nothing yet, and can be forked itself.
    method = "forkserver" if multiprocessing.forkserver.get_inherited_fds() is None else "fork"
    vllm.v1.engine.utils.get_mp_context = lambda: multiprocessing.get_context(method)
    report("reading the model's configuration", 0.6)
    vllm_config = AsyncEngineArgs(**vllm_arguments(config)).create_engine_config()
    report("loading the model", 0.7)
    await asyncio.sleep(0)  # the loop is blocked from here on, and what was reported leaves it before
    llm = AsyncLLM.from_vllm_config(vllm_config)
    model = vllm_config.model_config
    return llm, SpeechInputs(llm.renderer, model.dtype, model.max_model_len)


def _sampling(request: SpeechRequest, *, incremental: bool) -> "SamplingParams":
    from vllm import SamplingParams
    from vllm.sampling_params import RepetitionDetectionParams, RequestOutputKind

    from engine.speech_input import answer_budget

    shortest, longest = REPEATED_TOKENS
    repetition = RepetitionDetectionParams(
        min_pattern_size=shortest, max_pattern_size=longest, min_count=REPEATED_COPIES
    )
    return SamplingParams(
        temperature=request.temperature,
        seed=request.seed,
        max_tokens=answer_budget(request),
        output_kind=RequestOutputKind.DELTA if incremental else RequestOutputKind.FINAL_ONLY,
        repetition_detection=repetition if request.end_repetition else None,
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


def _usage(status: dict[str, Any], config: EngineConfig) -> EncoderUsage:
    """From what `engine.models.status.describe_encoder` gives, which is less where another class serves."""
    graphs, compiled = status.get("graphs", {}), status.get("compile", {})
    fallen = {
        "compile": config.compile_mm_encoder and compiled.get("state") in (None, "off", "failed"),
        "graphs": config.cudagraph_mm_encoder and graphs.get("state") in (None, "off", "unavailable"),
    }
    return EncoderUsage(
        graph_hits=graphs.get("hits", 0),
        graph_misses=graphs.get("misses", 0),
        fallbacks=tuple(mode for mode in ENCODER_MODES if fallen[mode]),
    )


async def _ask_worker(llm: "AsyncLLM", method: str) -> Any:
    """The first one's answer."""
    return (await llm.collective_rpc(method))[0]
