"""The graph protocol, driven by vLLM's own manager; where it would replay a graph, the same forward runs eagerly."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import CompilationConfig, VllmConfig
from vllm.config.multimodal import MultiModalConfig
from vllm.logger import _print_warning_once
from vllm.model_executor.models.interfaces import supports_encoder_cudagraph
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.worker import encoder_cudagraph
from vllm.v1.worker.encoder_cudagraph import EncoderCudaGraphManager

from benchmarks.checkpoints import AUDIO_SIZES
from benchmarks.towers import NativeTower, build_native, make_batch
from engine.models import encoder_graphs
from engine.models.encoder_graphs import DEFAULT_BUDGETS, DEFAULT_MAX_CLIPS, apply_default_budgets
from engine.models.packing import Capacity, EncoderIndices, count_slots, count_tokens
from engine.models.status import WorkerExtension, describe_encoder, find_graph_manager
from tests.engine.models.conftest import CPU, TowerPair

BUDGETS = [8, 64, 128, 192, 320]


class EagerGraph:
    """Stands in for a captured graph: same static buffers, same forward, run anew at each replay."""

    def __init__(self, model: NativeTower, captured: Any) -> None:
        self.model, self.captured, self.replays = model, captured, 0

    def replay(self) -> None:
        self.replays += 1
        output = self.model.encoder_cudagraph_forward({**self.captured.input_buffers})
        self.captured.output_buffer.copy_(output)


class NoCapture:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *args: object) -> None: ...


def manager_config(compilation: CompilationConfig) -> Any:
    """What the manager reads of vLLM's configuration."""
    limits = MultiModalConfig(limit_per_prompt={"audio": 1, "image": 0, "video": 0})
    return SimpleNamespace(
        compilation_config=compilation,
        model_config=SimpleNamespace(multimodal_config=limits),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=8192),
    )


@pytest.fixture(name="graphs")
def _graphs(
    config: VllmConfig, varlen: list[int], monkeypatch: pytest.MonkeyPatch
) -> tuple[NativeTower, EncoderCudaGraphManager]:
    """A tower and a manager that has captured all of BUDGETS."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", NoCapture)
    monkeypatch.setattr(encoder_cudagraph, "current_stream", lambda: None)
    model = build_native("tiny", config, CPU, torch.float32)
    compilation = CompilationConfig(
        cudagraph_mm_encoder=True,
        encoder_cudagraph_token_budgets=BUDGETS,
        encoder_cudagraph_max_vision_items_per_batch=8,
    )
    manager = EncoderCudaGraphManager(manager_config(compilation), CPU, torch.float32, model)
    manager.capture("pool")
    for captured in manager._get_graph_set().values():
        captured.graph = EagerGraph(model, captured)
    return model, manager


def replays(manager: EncoderCudaGraphManager) -> dict[int, int]:
    return {key: captured.graph.replays for key, captured in manager._get_graph_set().items() if captured.graph.replays}


@torch.inference_mode()
def compare(model: NativeTower, manager: EncoderCudaGraphManager, lengths: list[int], seed: int = 1) -> None:
    batch = make_batch(lengths, 16, CPU, seed)
    expected = model.embed(batch)
    ours = manager.execute(batch)
    assert [clip.shape for clip in ours] == [clip.shape for clip in expected]
    for left, right in zip(ours, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "lengths",
    [
        [1],
        [2],
        [3],
        [32],  # exactly the smallest budget
        [33],
        [199],
        [200],
        [201],
        [500],
        [1280],  # exactly the largest
        [1, 1, 1, 1, 1, 1, 1, 1],
        [3, 201, 77, 400, 5],
        [640, 600],
        [777, 50, 300],
    ],
)
def test_padding_changes_nothing(graphs: tuple[NativeTower, EncoderCudaGraphManager], lengths: list[int]) -> None:
    model, manager = graphs
    compare(model, manager, lengths)
    assert manager.graph_hits == len(lengths)
    assert manager.graph_misses == 0
    [(budget, count)] = replays(manager).items()
    assert count == 1
    assert budget == min(each for each in BUDGETS if each >= sum(map(count_slots, lengths)))


def test_each_graph_is_replayed_before_the_first_request(
    graphs: tuple[NativeTower, EncoderCudaGraphManager],
) -> None:
    model, manager = graphs
    worker = WorkerExtension()
    worker.model_runner = SimpleNamespace(
        model_state=None,
        encoder_cudagraph_manager=manager,
        get_model=lambda: SimpleNamespace(
            parameters=model.parameters, config=SimpleNamespace(audio_config=SimpleNamespace(num_mel_bins=16))
        ),
    )
    assert worker.replay_encoder_graphs() == BUDGETS
    assert replays(manager) == dict.fromkeys(BUDGETS, 1)
    assert (manager.graph_hits, manager.graph_misses) == (0, 0)


def test_without_graphs_there_is_nothing_to_replay() -> None:
    worker = WorkerExtension()
    worker.model_runner = SimpleNamespace(model_state=None)
    assert worker.replay_encoder_graphs() == []


def test_the_captured_rows_are_those_of_the_budget(
    graphs: tuple[NativeTower, EncoderCudaGraphManager], varlen: list[int]
) -> None:
    _, manager = graphs
    varlen.clear()
    with torch.inference_mode():
        manager.execute(make_batch([100], 16, CPU))
    assert set(varlen) == {2 * 64}


@pytest.mark.parametrize("lengths", [[700, 1000, 1280, 900, 30, 1279], [100, 1281, 3000], [1281]])
def test_a_batch_beyond_the_largest_budget_runs_eagerly_in_one_pass_and_is_counted(
    graphs: tuple[NativeTower, EncoderCudaGraphManager],
    varlen: list[int],
    lengths: list[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, manager = graphs
    _print_warning_once.cache_clear()
    for seed in (1, 2):  # the second must not see what the first computed
        varlen.clear()
        compare(model, manager, lengths, seed)
        assert len(varlen) == 2 * AUDIO_SIZES["tiny"]["encoder_layers"]  # the expected and ours
    assert replays(manager) == {}
    assert [record.levelname for record in caplog.records if "runs eagerly" in record.message] == ["WARNING"]
    status = describe_encoder(model, manager)["graphs"]
    expected = {"state": "active", "budgets": BUDGETS, "max_clips": 8, "hits": 0, "misses": 2 * len(lengths)}
    assert status == expected
    compare(model, manager, [100])
    assert manager.graph_hits == 1


def test_a_batch_beyond_the_largest_budget_can_be_executed_again(
    graphs: tuple[NativeTower, EncoderCudaGraphManager],
) -> None:
    _, manager = graphs
    batch = make_batch([1000, 1000], 16, CPU)
    with torch.inference_mode():
        first = manager.execute(batch)
        batch["input_audio_features"].neg_()
        second = manager.execute(batch)
    assert not torch.equal(first[0], second[0])


def test_more_clips_than_a_graph_holds_are_split(graphs: tuple[NativeTower, EncoderCudaGraphManager]) -> None:
    model, manager = graphs
    compare(model, manager, [40] * 19)
    assert manager.graph_hits == 19
    assert sum(replays(manager).values()) == 3


def test_results_do_not_depend_on_what_ran_before(graphs: tuple[NativeTower, EncoderCudaGraphManager]) -> None:
    model, manager = graphs
    poison = make_batch([250], 16, CPU)
    poison["input_audio_features"].fill_(float("nan"))
    with torch.inference_mode():
        assert manager.execute(poison)[0].isnan().all()
    compare(model, manager, [200])
    compare(model, manager, [129, 3])


def test_results_survive_the_next_replay(graphs: tuple[NativeTower, EncoderCudaGraphManager]) -> None:
    _, manager = graphs
    batch = make_batch([100, 150], 16, CPU, seed=1)
    with torch.inference_mode():
        first = manager.execute(batch)
        kept = [clip.clone() for clip in first]
        manager.execute(make_batch([120, 130], 16, CPU, seed=2))
    for left, right in zip(first, kept, strict=True):
        assert torch.equal(left, right)


def test_replay_writes_into_the_captured_buffers(graphs: tuple[NativeTower, EncoderCudaGraphManager]) -> None:
    _, manager = graphs
    captured = manager._get_graph_set()[64]
    addresses = {name: buffer.data_ptr() for name, buffer in captured.input_buffers.items()}
    with torch.inference_mode():
        manager.execute(make_batch([200, 30], 16, CPU))
    assert {name: buffer.data_ptr() for name, buffer in captured.input_buffers.items()} == addresses
    capacity = Capacity.for_budget(64, 8, 100)
    indices = EncoderIndices.split(captured.input_buffers["indices"], capacity)
    assert indices.cu_seqlens.tolist() == [0, 15, 115] + [115] * (capacity.windows - 2)


def test_the_batch_itself_is_used_where_all_its_clips_fit(graphs: tuple[NativeTower, EncoderCudaGraphManager]) -> None:
    model, _ = graphs
    batch = make_batch([10, 20, 30], 16, CPU)
    whole = model.select_encoder_cudagraph_items(batch, [0, 1, 2])
    assert whole["input_audio_features"] is batch["input_audio_features"]

    some = model.select_encoder_cudagraph_items(batch, [2, 0])

    features = batch["input_audio_features"]
    assert torch.equal(some["input_audio_features"], torch.cat([features[:, 30:], features[:, :10]], dim=1))
    assert some["audio_feature_lengths"].tolist() == [30, 10]
    assert model.select_encoder_cudagraph_items(batch, [])["input_audio_features"].shape == (16, 0)


def test_padded_features_of_the_rust_front_end_are_unpadded(
    graphs: tuple[NativeTower, EncoderCudaGraphManager],
) -> None:
    model, manager = graphs
    batch = make_batch([100, 60], 16, CPU)
    clips = batch["input_audio_features"].split([100, 60], dim=1)
    padded = torch.full((2, 16, 100), float("nan"))
    padded[0], padded[1, :, :60] = clips
    with torch.inference_mode():
        expected = model.embed(batch)
        ours = manager.execute(batch | {"input_audio_features": padded})
    for left, right in zip(ours, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)


def test_item_specs_count_slots(graphs: tuple[NativeTower, EncoderCudaGraphManager]) -> None:
    model, _ = graphs
    specs = model.get_encoder_cudagraph_item_specs(make_batch([1, 4, 5, 1000], 16, CPU))
    assert [(spec.input_size, spec.output_tokens) for spec in specs] == [(1, 1), (4, 1), (5, 2), (1000, 250)]
    assert [count_tokens(length) for length in (1, 4, 5, 3000)] == [0, 1, 1, 750]
    assert supports_encoder_cudagraph(model)
    assert model.get_input_modality({}) == "audio"
    assert model.get_encoder_cudagraph_config().modalities == ["audio"]


def test_off_builds_nothing() -> None:
    config = manager_config(CompilationConfig())
    apply_default_budgets(config)
    assert config.compilation_config.encoder_cudagraph_token_budgets == []
    assert config.compilation_config.encoder_cudagraph_max_vision_items_per_batch == 0


def test_defaults_fill_in_what_the_user_left_out() -> None:
    config = manager_config(CompilationConfig(cudagraph_mm_encoder=True))
    apply_default_budgets(config)
    assert config.compilation_config.encoder_cudagraph_token_budgets == list(DEFAULT_BUDGETS)
    assert config.compilation_config.encoder_cudagraph_max_vision_items_per_batch == DEFAULT_MAX_CLIPS

    config = manager_config(CompilationConfig(cudagraph_mm_encoder=True, encoder_cudagraph_token_budgets=[250, 16]))
    apply_default_budgets(config)
    assert config.compilation_config.encoder_cudagraph_token_budgets == [250, 16]
    assert config.compilation_config.encoder_cudagraph_max_vision_items_per_batch == 16

    config = manager_config(CompilationConfig(cudagraph_mm_encoder=True))
    config.scheduler_config.max_num_batched_tokens = 500
    apply_default_budgets(config)
    assert config.compilation_config.encoder_cudagraph_token_budgets[-1] == 448


def test_default_budgets_waste_little() -> None:
    assert list(DEFAULT_BUDGETS) == sorted(set(DEFAULT_BUDGETS))
    assert all(budget % 32 == 0 for budget in DEFAULT_BUDGETS)
    assert all(budget - below <= max(64, budget / 5) for below, budget in pairwise(DEFAULT_BUDGETS))
    assert DEFAULT_BUDGETS[0] >= DEFAULT_MAX_CLIPS


def test_a_kernel_that_cannot_be_captured_is_refused(
    graphs: tuple[NativeTower, EncoderCudaGraphManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = graphs
    assert model.audio_tower.attn_backend is AttentionBackendEnum.TORCH_SDPA
    monkeypatch.setattr(encoder_graphs, "current_platform", SimpleNamespace(is_cuda_alike=lambda: True))
    with pytest.raises(ValueError, match="use FLASH_ATTN or TRITON_ATTN"):
        model.get_encoder_cudagraph_config()


def test_the_manager_is_found_in_both_model_runners() -> None:
    manager = object()
    first = SimpleNamespace(encoder_cudagraph_manager=manager)
    second = SimpleNamespace(model_state=SimpleNamespace(encoder_runner=SimpleNamespace(cudagraph_manager=manager)))
    assert find_graph_manager(first) is manager
    assert find_graph_manager(second) is manager
    assert find_graph_manager(SimpleNamespace()) is None


def test_status_says_when_graphs_were_asked_for_in_vain(tiny: TowerPair, monkeypatch: pytest.MonkeyPatch) -> None:
    _, native = tiny
    assert describe_encoder(native, None)["graphs"]["state"] == "off"
    monkeypatch.setattr(native.vllm_config.compilation_config, "cudagraph_mm_encoder", True)
    assert describe_encoder(native, None)["graphs"]["state"] == "unavailable"
    assert describe_encoder(SimpleNamespace(audio_tower=object()), None) == {"accelerated": False}
