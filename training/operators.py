"""Those ONNX operators that Kokoro's graph has, in torch: https://onnx.ai/onnx/operators, and onnxruntime's own.

Tensors of shapes and indices stay on the CPU, so that a GPU is never waited for. Integer products of quantised weights
are done in floats: that is what int8 kernels approximate, and GPUs have none of theirs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Run = Callable[..., Any]
"""Takes a node's inputs, None for those left out, and gives its output or outputs."""

FLOATS = {1: torch.float32, 2: torch.float32, 3: torch.float32, 10: torch.float32}  # of TensorProto.DataType
TYPES = {**FLOATS, 6: torch.int32, 7: torch.int64, 9: torch.bool}


@dataclass(frozen=True, slots=True)
class Node:
    """One node.

    Attributes:
        attributes: tensors as torch's, names as str.
    """

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attributes.get(name, default)


def together(*tensors: Tensor) -> list[Tensor]:
    """All on the GPU where one of them is."""
    device = next((each.device for each in tensors if each.device.type != "cpu"), None)
    return [each.to(device, non_blocking=True) if device else each for each in tensors]


def run_of(node: Node, device: torch.device) -> Run:
    """How a node is run.

    Raises:
        NotImplementedError: nobody has needed it yet.
    """
    if node.kind in _PLAIN:
        return _PLAIN[node.kind]
    if node.kind in _PAIRS:
        pair = _PAIRS[node.kind]
        return lambda first, second: pair(*together(first, second))
    if node.kind not in _MADE:
        raise NotImplementedError(node.kind)
    return _MADE[node.kind](node, device)


def _divide(first: Tensor, second: Tensor) -> Tensor:
    return torch.div(first, second, rounding_mode=None if first.is_floating_point() else "trunc")


def _unsqueeze(value: Tensor, axes: Tensor) -> Tensor:
    places = axes.reshape(-1).tolist()
    for axis in sorted(axis % (value.ndim + len(places)) for axis in places):
        value = value.unsqueeze(axis)
    return value


def _squeeze(value: Tensor, axes: Tensor | None = None) -> Tensor:
    return value.squeeze() if axes is None else value.squeeze(tuple(axes.reshape(-1).tolist()))


def _reshape(value: Tensor, shape: Tensor) -> Tensor:
    return value.reshape([value.shape[axis] if size == 0 else size for axis, size in enumerate(shape.tolist())])


def _expand(value: Tensor, shape: Tensor) -> Tensor:
    return value.expand(torch.broadcast_shapes(value.shape, tuple(shape.tolist())))


def _where(condition: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return torch.where(*together(condition, first, second))


def _slice(
    value: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None = None, steps: Tensor | None = None
) -> Tensor:
    first, last = starts.tolist(), ends.tolist()
    places = axes.tolist() if axes is not None else range(len(first))
    strides = steps.tolist() if steps is not None else [1] * len(first)
    for start, end, axis, stride in zip(first, last, places, strides, strict=True):
        if stride < 0:  # only ever all of it, backwards
            value = value.flip(axis)
            continue
        size = value.shape[axis]
        start, end, _ = slice(start, end).indices(size)  # noqa: PLW2901
        value = value.narrow(axis, start, max(0, end - start))
        if stride > 1:
            value = value.index_select(axis, torch.arange(0, value.shape[axis], stride, device=value.device))
    return value


def _scatter(value: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    result = value.clone()
    places = indices.to(value.device).long()
    result[tuple(places.unbind(-1))] = updates
    return result


def _fourier(signal: Tensor, step: Tensor, window: Tensor, length: Tensor | None = None) -> Tensor:
    frames = signal.squeeze(-1).unfold(-1, window.numel(), int(step)) * window.to(signal.device)
    return torch.view_as_real(torch.fft.rfft(frames))


def _clip(value: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    return torch.clamp(value, None if low is None else float(low), None if high is None else float(high))


def _gather(node: Node, device: torch.device) -> Run:
    axis = node.get("axis", 0)

    def run(value: Tensor, indices: Tensor) -> Tensor:
        if indices.ndim == 0 and indices.device.type == "cpu":
            return value.select(axis, int(indices))
        flat = indices.to(value.device).long().reshape(-1) % value.shape[axis]
        shape = value.shape[:axis] + indices.shape + value.shape[axis + 1 :]
        return torch.index_select(value, axis, flat).reshape(shape)

    return run


def _cast(node: Node, device: torch.device) -> Run:
    kind = TYPES[node.get("to")]

    def run(value: Tensor) -> Tensor:  # products of quantised values are floats here, and stay so
        return value if value.is_floating_point() and kind is torch.int32 else value.to(kind)

    return run


def _reduce(reduction: Callable[..., Tensor]) -> Callable[[Node, torch.device], Run]:
    def make(node: Node, device: torch.device) -> Run:
        keep = bool(node.get("keepdims", 1))
        return lambda value, axes: reduction(value, dim=axes.tolist(), keepdim=keep)

    return make


def _split(node: Node, device: torch.device) -> Run:
    axis, count = node.get("axis", 0), len(node.outputs)

    def run(value: Tensor, sizes: Tensor | None = None) -> Sequence[Tensor]:
        return value.chunk(count, axis) if sizes is None else value.split(sizes.tolist(), axis)

    return run


def _fused_product(node: Node, device: torch.device) -> Run:
    turned = node.get("transA", 0), node.get("transB", 0)
    factor = node.get("alpha", 1.0)

    def run(first: Tensor, second: Tensor) -> Tensor:
        sides = [side.mT if turn else side for side, turn in zip(together(first, second), turned, strict=True)]
        product = sides[0] @ sides[1]
        return product * factor

    return run


def _convolution(node: Node, device: torch.device) -> Run:
    before, after = node.get("pads", [0, 0])
    stride, dilation = node.get("strides", [1])[0], node.get("dilations", [1])[0]
    groups = node.get("group", 1)

    def run(value: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        padded = functional.pad(value, (before, after)) if before != after else value
        padding = before if before == after else 0
        return functional.conv1d(padded, weight, bias, stride, padding, dilation, groups)

    return run


def _transposed_convolution(node: Node, device: torch.device) -> Run:
    padding, _ = node.get("pads", [0, 0])
    stride, extra = node.get("strides")[0], node.get("output_padding", [0])[0]
    groups = node.get("group", 1)
    return lambda value, weight, bias=None: functional.conv_transpose1d(
        value, weight, bias, stride, padding, extra, groups
    )


def _normalization(node: Node, device: torch.device) -> Run:
    epsilon = node.get("epsilon", 1e-5)
    return lambda value, weight, bias=None: functional.layer_norm(value, weight.shape, weight, bias, epsilon)


def _skip_normalization(node: Node, device: torch.device) -> Run:
    epsilon = node.get("epsilon", 1e-5)

    def run(value: Tensor, skip: Tensor, weight: Tensor, beta: Tensor | None = None, bias: Tensor | None = None) -> Any:
        total = value + skip if bias is None else value + skip + bias
        return functional.layer_norm(total, weight.shape, weight, beta, epsilon)

    return run


def _filled(node: Node, device: torch.device) -> Run:
    value = node.get("value", torch.zeros(1))
    where = device if value.is_floating_point() else torch.device("cpu")
    return lambda shape: torch.full(shape.tolist(), value.item(), dtype=value.dtype, device=where)


def _resized(node: Node, device: torch.device) -> Run:
    def run(value: Tensor, region: Tensor | None = None, scales: Tensor | None = None, sizes: Any = None) -> Tensor:
        assert scales is not None
        factor = float(scales[2])
        if node.get("mode") == "nearest":
            return value.repeat_interleave(int(factor), -1)
        length = int(value.shape[-1] * factor)
        return functional.interpolate(value, scale_factor=factor, mode="linear", align_corners=False)[..., :length]

    return run


def _dequantized(node: Node, device: torch.device) -> Run:
    axis = node.get("axis", 1)

    def run(value: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
        shape = [-1 if scale.numel() > 1 and place == axis else 1 for place in range(value.ndim)]
        shifted = value.float() if zero is None else value.float() - zero.to(value.device).float().reshape(shape)
        return shifted * scale.to(value.device).reshape(shape)

    return run


def _range(node: Node, device: torch.device) -> Run:
    def run(start: Tensor, end: Tensor, step: Tensor) -> Tensor:
        where = "cpu" if all(each.device.type == "cpu" for each in (start, end, step)) else device
        return torch.arange(int(start), int(end), int(step), device=where)

    return run


def _padded(node: Node, device: torch.device) -> Run:
    mode = node.get("mode", "constant")

    def run(value: Tensor, pads: Tensor, fill: Tensor | None = None, axes: Tensor | None = None) -> Tensor:
        amounts = pads.tolist()
        half = len(amounts) // 2
        sides = [side for axis in reversed(range(half)) for side in (amounts[axis], amounts[axis + half])]
        while len(sides) > 2 and not any(sides[-2:]):
            sides = sides[:-2]
        if mode == "constant":
            return functional.pad(value, sides, value=0.0 if fill is None else float(fill))
        wide = value.reshape(*(1,) * max(0, 3 - value.ndim), *value.shape)  # torch reflects the last axis of three
        padded = functional.pad(wide, sides, mode=mode)
        return padded.reshape(*value.shape[:-1], padded.shape[-1])

    return run


_PLAIN: dict[str, Run] = {
    # 0 over 0 in frames without a voice: the angle of nothing is 0.
    "Atan": lambda value: torch.atan(torch.nan_to_num(value)),
    "Clip": _clip,
    "Cos": torch.cos,
    "CumSum": lambda value, axis: torch.cumsum(value, int(axis)),
    "Exp": torch.exp,
    "Expand": _expand,
    "FastGelu": lambda value, bias=None: functional.gelu(value if bias is None else value + bias, approximate="tanh"),
    "Floor": torch.floor,
    "NonZero": lambda value: torch.nonzero(value).t(),
    "Reshape": _reshape,
    "Round": torch.round,
    "STFT": _fourier,
    "ScatterND": _scatter,
    "Shape": lambda value: torch.tensor(value.shape, dtype=torch.int64),
    "Sigmoid": torch.sigmoid,
    "Sin": torch.sin,
    "Slice": _slice,
    "Sqrt": torch.sqrt,
    "Squeeze": _squeeze,
    "Tanh": torch.tanh,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}
_PAIRS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": torch.add,
    "And": torch.logical_and,
    "Div": _divide,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "MatMul": torch.matmul,
    "MatMulInteger": torch.matmul,
    "Mul": torch.mul,
    "Pow": torch.pow,
    "Sub": torch.sub,
}
_MADE: dict[str, Callable[[Node, torch.device], Run]] = {
    "Cast": _cast,
    "Concat": lambda node, device: lambda *values: torch.cat(together(*values), node.get("axis")),
    "ConstantOfShape": _filled,
    "Conv": _convolution,
    "ConvInteger": _convolution,
    "ConvTranspose": _transposed_convolution,
    "DequantizeLinear": _dequantized,
    "FusedMatMul": _fused_product,
    "Gather": _gather,
    "LayerNormalization": _normalization,
    "LeakyRelu": lambda node, device: lambda value: functional.leaky_relu(value, node.get("alpha", 0.01)),
    "Pad": _padded,
    "Range": _range,
    "ReduceMean": _reduce(torch.mean),
    "ReduceSum": _reduce(torch.sum),
    "Resize": _resized,
    "SkipLayerNormalization": _skip_normalization,
    "Softmax": lambda node, device: lambda value: torch.softmax(value, node.get("axis", -1)),
    "Split": _split,
    "Transpose": lambda node, device: lambda value: value.permute(node.get("perm")),
}
