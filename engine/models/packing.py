"""Where every frame, position and token of a ragged batch goes, computed on the host.

Qwen2.5-Omni's audio tower cuts each clip into windows of `2 * n_window` mel frames, convolves every window on its own
(kernel 3; the second convolution has stride 2), attends within a window, and averages pairs of positions of a clip.
Transformers does this with padded batches, masks and `nonzero` on the device
(`transformers/models/qwen2_5_omni/modeling_qwen2_5_omni.py`). All of it follows from the clip lengths alone, which the
host knows, so here it becomes one flat vector of int32 indices: a convolution is a gather of three rows and a matrix
product, a window edge is a tap on a row of zeros, and padding is more taps on that row. Nothing has to be read back
from the device, and the same code serves a batch of exact size and one padded to the size of a CUDA graph.

Units: a *frame* is a column of the mel spectrogram (10 ms), a *position* is what follows the second convolution
(20 ms), a *token* is a pair of positions of one clip (40 ms). A clip with an odd number of positions drops the last.
A *slot* is a token, or the half of one that an odd clip leaves over: `slots >= tokens`, and two positions always fit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

FRAMES_PER_SLOT = 4


def count_positions(frames: int) -> int:
    """Rows that one clip occupies in the transformer layers."""
    return (frames + 1) // 2


def count_tokens(frames: int) -> int:
    """Embeddings that one clip yields; 0 below three frames."""
    return count_positions(frames) // 2


def count_slots(frames: int) -> int:
    """Pairs of rows that one clip needs in a graph, the unpaired last row included; at least 1."""
    return max(1, (count_positions(frames) + 1) // 2)


def round_up(rows: int) -> int:
    """The next number with four significant bits: eight sizes between n and 2 n, at most an eighth above `rows`."""
    return -(-rows // (step := 1 << max(0, rows.bit_length() - 4))) * step


def fill_up(lengths: Sequence[int]) -> list[int]:
    """Clips of `lengths` frames, and one more where that is needed to have a number of rows that `round_up` gives."""
    rows = sum(map(count_positions, lengths))
    return [*lengths, *filter(None, [2 * (round_up(rows) - rows)])]


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much fits into a set of index buffers.

    Attributes:
        frames: mel frames of all clips together.
        positions: rows of the transformer layers.
        windows: attention segments.
        tokens: rows of the result.
    """

    frames: int
    positions: int
    windows: int
    tokens: int

    @classmethod
    def of(cls, lengths: Sequence[int], n_window: int) -> Self:
        """The exact size of a batch of clips of `lengths` frames."""
        window = 2 * n_window
        return cls(
            frames=sum(lengths),
            positions=sum(map(count_positions, lengths)),
            windows=sum(-(-length // window) for length in lengths),
            tokens=sum(map(count_tokens, lengths)),
        )

    @classmethod
    def for_budget(cls, slots: int, max_clips: int, n_window: int) -> Self:
        """Room for any batch of at most `max_clips` clips that together need at most `slots` slots."""
        window = 2 * n_window
        frames = FRAMES_PER_SLOT * slots
        # The last window of each clip may be as short as one frame.
        windows = (frames + min(max_clips, slots) * (window - 1)) // window
        return cls(frames=frames, positions=2 * slots, windows=windows, tokens=slots)

    @property
    def rounded(self) -> Self:
        """As much as so many positions can come of and make: of few positions follow few sizes of everything else."""
        return replace(self, frames=2 * self.positions, tokens=self.positions // 2)

    @property
    def zero_row(self) -> int:
        """The row that holds zeros, in the frames and in what the first convolution makes of them."""
        return self.frames

    @property
    def sections(self) -> tuple[int, int, int, int, int]:
        """Lengths of the parts of the flat index vector, in the order of `EncoderIndices`."""
        return (self.windows + 1, 2 * self.tokens, self.positions, 3 * self.positions, 3 * (self.frames + 1))

    @property
    def size(self) -> int:
        """Length of the flat index vector."""
        return sum(self.sections)

    def holds(self, other: "Capacity") -> bool:
        """Whether a batch of size `other` fits."""
        return (
            other.frames <= self.frames
            and other.positions <= self.positions
            and other.windows <= self.windows
            and other.tokens <= self.tokens
        )


@dataclass(frozen=True, slots=True)
class EncoderIndices:
    """Views into one flat int32 vector, on the host or on the device.

    Attributes:
        cu_seqlens: shape = (windows + 1,); bounds of the attention segments in the rows, padded with the last bound.
        pool: shape = (2 * tokens,); the two rows that make up each token, next to each other.
        positions: shape = (positions,); each row's place in its window.
        conv2: shape = (3 * positions,); rows of the first convolution's output under each tap of the second.
        conv1: shape = (3 * (frames + 1),); frames under each tap of the first, the zero row last.
    """

    cu_seqlens: torch.Tensor
    pool: torch.Tensor
    positions: torch.Tensor
    conv2: torch.Tensor
    conv1: torch.Tensor

    @classmethod
    def split(cls, flat: torch.Tensor, capacity: Capacity) -> Self:
        """Name the parts of `flat`, shape = (capacity.size,). Views, no copies."""
        return cls(*flat.split(capacity.sections))


def fill_indices(flat: NDArray[np.int32], lengths: Sequence[int], n_window: int, capacity: Capacity) -> None:
    """Write the indices of a batch of clips into `flat`, shape = (capacity.size,), every element of it.

    Raises:
        ValueError: the batch does not fit.
    """
    exact = Capacity.of(lengths, n_window)
    if not capacity.holds(exact):
        raise ValueError(f"a batch of {exact} does not fit into {capacity}")
    window, zero = 2 * n_window, capacity.zero_row
    pattern = EndlessClip.of(1 << capacity.frames.bit_length(), n_window)
    cu_seqlens, pool, positions, conv2, conv1 = _parts(flat, capacity)

    # Empty segments at the end: the bounds must not decrease.
    cu_seqlens[0], cu_seqlens[exact.windows + 1 :] = 0, exact.positions
    pool[2 * exact.tokens :] = positions[exact.positions :] = 0
    conv2[3 * exact.positions :] = conv1[3 * exact.frames :] = zero
    conv1[: 3 * exact.frames] = pattern.conv1[: 3 * exact.frames]

    frame = row = segment = token = 0  # where the clip begins
    for length in filter(None, lengths):
        windows, rows, tokens = -(-length // window), count_positions(length), count_tokens(length)
        cu_seqlens[segment : segment + windows] = n_window * pattern.count[:windows] + row
        np.add(pattern.count[: 2 * tokens], row, out=pool[2 * token : 2 * (token + tokens)])
        positions[row : row + rows] = pattern.positions[:rows]
        taps = conv2[3 * row : 3 * (row + rows)]
        np.add(pattern.conv2[: 3 * rows], frame, out=taps)
        taps[:: 3 * n_window] = zero
        if length % 2:
            taps[-1] = zero
        taps = conv1[3 * frame : 3 * (frame + length)]
        taps[:: 3 * window] = taps[3 * window - 1 :: 3 * window] = taps[-1] = zero
        frame, row, segment, token = frame + length, row + rows, segment + windows, token + tokens
    cu_seqlens[segment] = row


@dataclass(frozen=True, slots=True)
class EndlessClip:
    """The indices of a clip that begins at frame 0 and row 0 and does not end, but for the edges of its windows.

    Those of any clip are a piece from the beginning, moved to where the clip is: windows begin at even frames, so that
    neither rows nor taps depend on the window that a frame is in. All arrays are one-dimensional int32.
    """

    count: NDArray[np.int32]
    positions: NDArray[np.int32]
    conv1: NDArray[np.int32]
    conv2: NDArray[np.int32]

    @classmethod
    @lru_cache(maxsize=32)
    def of(cls, frames: int, n_window: int) -> Self:
        """The first `frames` frames of it, and as many rows."""
        count = np.arange(frames, dtype=np.int32)
        taps = np.array([-1, 0, 1], dtype=np.int32)
        return cls(
            count=count,
            positions=count % n_window,
            conv1=(count[:, None] + taps).ravel(),
            conv2=(2 * count[:, None] + taps).ravel(),
        )


def build_indices(lengths: Sequence[int], n_window: int, capacity: Capacity, *, pin: bool) -> torch.Tensor:
    """The flat index vector in fresh host memory, shape = (capacity.size,), int32.

    Pinned memory comes from PyTorch's caching host allocator, which gives a block out again only after the
    asynchronous copies from it have completed.
    """
    flat = torch.empty(capacity.size, dtype=torch.int32, device="cpu", pin_memory=pin)
    fill_indices(flat.numpy(), lengths, n_window, capacity)
    return flat


def _parts(flat: NDArray[np.int32], capacity: Capacity) -> list[NDArray[np.int32]]:
    bounds = [0, *accumulate(capacity.sections)]
    return [flat[start:end] for start, end in pairwise(bounds)]
