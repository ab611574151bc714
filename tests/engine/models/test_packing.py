import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as reference

from engine.models.packing import (
    Capacity,
    EncoderIndices,
    build_indices,
    count_positions,
    count_slots,
    count_tokens,
    fill_indices,
    fill_up,
    round_up,
)

N_WINDOW = 100
lengths_of_clips = st.lists(st.integers(1, 900), min_size=1, max_size=6)


def exact_indices(lengths: list[int], n_window: int = N_WINDOW) -> tuple[Capacity, EncoderIndices]:
    capacity = Capacity.of(lengths, n_window)
    return capacity, EncoderIndices.split(build_indices(lengths, n_window, capacity, pin=False), capacity)


@pytest.mark.parametrize("frames", [1, 2, 3, 4, 5, 199, 200, 201, 3000, 4001])
def test_counts_are_those_of_transformers(frames: int) -> None:
    positions = (frames - 1) // 2 + 1
    assert positions == count_positions(frames)
    assert (positions - 2) // 2 + 1 == count_tokens(frames)
    assert 2 * count_slots(frames) >= positions
    assert count_slots(frames) in (count_tokens(frames), count_tokens(frames) + 1)


@given(lengths_of_clips, st.sampled_from([1, 2, 3, 75, 100]))
@settings(max_examples=60, deadline=None)
def test_bounds_and_pairs_are_those_of_transformers(lengths: list[int], n_window: int) -> None:
    _, indices = exact_indices(lengths, n_window)
    frames = torch.tensor(lengths)
    _, chunks = reference.chunk_and_pad_features(torch.zeros(1, sum(lengths)), frames, n_window)
    assert torch.equal(indices.cu_seqlens, reference.get_audio_cu_seqlens(chunks))
    pairs = indices.pool.view(-1, 2)
    assert torch.equal(pairs[:, 0].long(), reference.get_pool_indices(frames))
    assert torch.equal(pairs[:, 1], pairs[:, 0] + 1)


@given(lengths_of_clips)
@settings(max_examples=60, deadline=None)
def test_taps_never_cross_a_window(lengths: list[int]) -> None:
    capacity, indices = exact_indices(lengths)
    window_of_frame = np.concatenate(
        [np.arange(length) // (2 * N_WINDOW) + 1000 * clip for clip, length in enumerate(lengths)]
    )
    for center, taps in enumerate(indices.conv1.view(-1, 3)[:-1].tolist()):
        inside = [tap for tap in taps if tap != capacity.zero_row]
        assert {window_of_frame[tap] for tap in inside} == {window_of_frame[center]}
        assert inside == sorted(inside)
    for taps in indices.conv2.view(-1, 3).tolist():
        inside = [tap for tap in taps if tap != capacity.zero_row]
        assert len({window_of_frame[tap] for tap in inside}) == 1
        assert taps[1] in inside


@given(lengths_of_clips, st.integers(0, 40), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_every_batch_within_a_budget_fits_and_pads_harmlessly(lengths: list[int], spare: int, more_clips: int) -> None:
    budget = sum(map(count_slots, lengths)) + spare
    capacity = Capacity.for_budget(budget, min(budget, len(lengths) + more_clips), N_WINDOW)
    exact, expected = exact_indices(lengths)
    flat = np.full(capacity.size, -1, dtype=np.int32)
    fill_indices(flat, lengths, N_WINDOW, capacity)
    padded = EncoderIndices.split(torch.from_numpy(flat), capacity)

    assert capacity.holds(exact)
    assert flat.min() >= 0
    assert (padded.cu_seqlens.diff() >= 0).all()
    assert padded.cu_seqlens[exact.windows :].unique().tolist() == [exact.positions]
    for name, size in (("cu_seqlens", exact.windows + 1), ("pool", 2 * exact.tokens), ("positions", exact.positions)):
        assert torch.equal(getattr(padded, name)[:size], getattr(expected, name))
    for name, size in (("conv1", 3 * exact.frames), ("conv2", 3 * exact.positions)):
        ours, theirs = getattr(padded, name)[:size], getattr(expected, name)[:size]
        assert torch.equal(ours == capacity.zero_row, theirs == exact.zero_row)
        assert torch.equal(ours[ours != capacity.zero_row], theirs[theirs != exact.zero_row])
        assert (getattr(padded, name)[size:] == capacity.zero_row).all()


def test_a_batch_that_does_not_fit_is_refused() -> None:
    capacity = Capacity.for_budget(50, 4, N_WINDOW)
    with pytest.raises(ValueError, match="does not fit"):
        build_indices([204], N_WINDOW, capacity, pin=False)


def test_a_budget_is_monotone_in_its_index_vector() -> None:
    sizes = [Capacity.for_budget(slots, 32, N_WINDOW).size for slots in range(32, 400)]
    assert sizes == sorted(set(sizes))


def test_rounded_numbers_are_few_and_close() -> None:
    sizes = [round_up(rows) for rows in range(1, 4097)]
    assert all(rows <= size <= rows * 9 / 8 for rows, size in enumerate(sizes, 1))
    assert sizes[:16] == list(range(1, 17))
    assert len(set(sizes)) == 16 + 8 * 8


@given(lengths=st.lists(st.integers(0, 3000), max_size=20))
def test_a_clip_more_makes_the_number_of_rows_a_rounded_one(lengths: list[int]) -> None:
    filled = fill_up(lengths)
    rows = sum(map(count_positions, filled))
    assert filled[: len(lengths)] == lengths
    assert len(filled) <= len(lengths) + 1
    assert rows == round_up(rows) == round_up(sum(map(count_positions, lengths)))
    exact = Capacity.of(filled, N_WINDOW)
    capacity = exact.rounded
    assert capacity.holds(exact)
    assert (capacity.frames, capacity.positions, capacity.tokens) == (2 * rows, rows, rows // 2)
