"""What a deployment says of its engine, and the one place that names vLLM's arguments."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ByteSize, ConfigDict, Field, model_validator

from engine.prompt import LANGUAGE_NAMES, Task, prompt_tokens, token_budget

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "models"

SEGMENT_SECONDS = 30.0  # the longest audio one request carries
CONTEXT_TOKENS = 512  # kept free for the caller's context

PositiveInt = Annotated[int, Field(gt=0)]


class EngineConfig(BaseModel):
    """The `[engine]` table of a profile.

    Attributes:
        backend: "scripted" answers without a model, for tests and for work on HTTP.
        model: a folder of `models/`, a path, or a hub id.
        languages: ISO codes that the model transcribes; a single one is the default of every request.
        tasks: what the model can do; "translate" is into English, of speech in any of `languages`.
        segment_seconds: length that segments aim at, at most SEGMENT_SECONDS, which none passes.
        max_model_len: tokens of prompt and answer together.
        max_num_seqs: segments that decode at the same time.
        max_num_batched_tokens: tokens of one engine step, None for vLLM's choice.
        gpu_memory_utilization: share of the device that vLLM may take.
        kv_cache_memory: bytes of KV cache, None to take what the share leaves.
        compile_mm_encoder: torch.compile of the audio encoder's layers.
        cudagraph_mm_encoder: CUDA graphs of the audio encoder.
        encoder_graph_budgets: audio tokens (25 a second) of each captured graph, ascending; empty for the defaults.
        cudagraph_mode: CUDA graphs of the decoder as vLLM names them, None for its choice.
        cudagraph_capture_sizes: tokens of a step that the decoder is captured for, ascending; empty for vLLM's choice.
        enforce_eager: run the decoder without torch.compile and CUDA graphs.
        load_format: "dummy" serves random weights, for measurements of speed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    backend: Literal["vllm", "scripted"] = "vllm"
    model: str = "omni-tiny-en"
    languages: tuple[str, ...] = ("en",)
    tasks: tuple[Task, ...] = ("transcribe",)
    segment_seconds: Annotated[float, Field(ge=1, le=SEGMENT_SECONDS)] = SEGMENT_SECONDS
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    max_model_len: PositiveInt = 2048
    max_num_seqs: PositiveInt = 16
    max_num_batched_tokens: PositiveInt | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    kv_cache_memory: ByteSize | None = None
    tensor_parallel_size: PositiveInt = 1
    quantization: str | None = None
    compile_mm_encoder: bool = False
    cudagraph_mm_encoder: bool = False
    encoder_graph_budgets: tuple[PositiveInt, ...] = ()
    cudagraph_mode: Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"] | None = None
    cudagraph_capture_sizes: tuple[PositiveInt, ...] = ()
    enforce_eager: bool = False
    load_format: Literal["auto", "safetensors", "dummy"] = "auto"

    @model_validator(mode="after")
    def _possible(self) -> Self:
        unknown = [code for code in self.languages if code not in LANGUAGE_NAMES]
        if unknown:
            msg = f"languages: no prompt is known for {', '.join(unknown)}; known are {', '.join(LANGUAGE_NAMES)}"
            raise ValueError(msg)
        if not self.languages:
            msg = 'languages: name at least one, such as ["en"]'
            raise ValueError(msg)
        if "transcribe" not in self.tasks:
            msg = f'tasks = {list(self.tasks)}: "transcribe" must be among them'
            raise ValueError(msg)
        for name in ("encoder_graph_budgets", "cudagraph_capture_sizes"):
            sizes = list(getattr(self, name))
            if sizes != sorted(set(sizes)):
                msg = f"{name} = {sizes}: must ascend without repeats"
                raise ValueError(msg)
        if self.encoder_graph_budgets and not self.cudagraph_mm_encoder:
            msg = "encoder_graph_budgets is set but cudagraph_mm_encoder is false: set it to true, or drop the budgets"
            raise ValueError(msg)
        needed = prompt_tokens(SEGMENT_SECONDS, CONTEXT_TOKENS) + token_budget(SEGMENT_SECONDS)
        if self.max_model_len < needed:
            msg = (
                f"max_model_len = {self.max_model_len}: {SEGMENT_SECONDS:.0f} s of audio need {needed} tokens; raise it"
            )
            raise ValueError(msg)
        return self

    @property
    def model_path(self) -> str:
        """Where the model's files are: a bundled folder, else as given."""
        bundled = MODELS / self.model
        return str(bundled) if "/" not in self.model and bundled.is_dir() else self.model


def vllm_arguments(config: EngineConfig) -> dict[str, Any]:
    """Keyword arguments of vLLM's `AsyncEngineArgs`."""
    compilation: dict[str, Any] = {
        "compile_mm_encoder": config.compile_mm_encoder,
        "cudagraph_mm_encoder": config.cudagraph_mm_encoder,
    }
    if config.encoder_graph_budgets:
        compilation["encoder_cudagraph_token_budgets"] = list(config.encoder_graph_budgets)
    if config.cudagraph_mode is not None:
        compilation["cudagraph_mode"] = config.cudagraph_mode
    if config.cudagraph_capture_sizes:
        compilation["cudagraph_capture_sizes"] = list(config.cudagraph_capture_sizes)
    arguments: dict[str, Any] = {
        "model": config.model_path,
        "dtype": config.dtype,
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "kv_cache_memory_bytes": config.kv_cache_memory,
        "tensor_parallel_size": config.tensor_parallel_size,
        "quantization": config.quantization,
        "enforce_eager": config.enforce_eager,
        "worker_extension_cls": "engine.models.status.WorkerExtension",
        "load_format": config.load_format,
        "use_tqdm_on_load": False,
        "compilation_config": compilation,
        # Speech only: with these limits at 0 vLLM builds no vision tower.
        "limit_mm_per_prompt": {"audio": 1, "image": 0, "video": 0},
        # Two uploads are never the same audio, so caches keyed by its hash cost and do not pay.
        "mm_processor_cache_gb": 0,
        "enable_prefix_caching": False,
        "disable_log_stats": False,  # queue and inference times of each request come with them
    }
    return {key: value for key, value in arguments.items() if value is not None}
