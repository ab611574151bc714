"""Runs an ONNX graph of dynamically quantised operators with torch, on a GPU, where onnxruntime has no int8 kernels.

Quantisation is undone: activations pass through unrounded with scale 1, and integer weights become floats. What comes
out is what the int8 graph approximates. Written for Kokoro's export; others may need more of `training.operators`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from training.operators import Node, Run, run_of

FLOAT_SUFFIX = ":float"


@dataclass(frozen=True, slots=True)
class _Step:
    run: Run
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    last: tuple[str, ...]  # uses of values that nobody needs afterwards
    name: str


class Graph:
    """A graph, loaded; constants are folded.

    Attributes:
        inputs: names, in the order in which they are given.
    """

    def __init__(self, path: Path, device: torch.device) -> None:
        """Read the file.

        Raises:
            NotImplementedError: it has an operator that is not here.
        """
        self._device = device
        self.inputs, self._outputs, nodes, constants = _read(path)
        self._constants: dict[str, Tensor] = constants
        self._aliases: dict[str, str] = {}
        steps = [step for node in nodes if (step := self._prepare(node)) is not None]
        self._steps = self._live(steps)
        used = {name for step in self._steps for name in step.inputs} | set(self._outputs)
        self._constants = {name: self._placed(value) for name, value in self._constants.items() if name in used}

    @torch.no_grad()
    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Run with inputs in the order of the graph; outputs are on the device."""
        values: dict[str, Any] = {**self._constants, **dict(zip(self.inputs, inputs, strict=True))}
        for step in self._steps:
            try:
                result = step.run(*(values[name] if name else None for name in step.inputs))
            except (RuntimeError, ValueError, TypeError, IndexError) as error:
                shapes = [getattr(values.get(name), "shape", None) for name in step.inputs]
                raise RuntimeError(f"{step.name}: {error}; inputs of shapes {shapes}") from error
            results = result if isinstance(result, tuple | list) else (result,)
            values.update((name, value) for name, value in zip(step.outputs, results, strict=False) if name)
            for name in step.last:
                del values[name]
        return [values[name] for name in self._outputs]

    def _prepare(self, node: Node) -> _Step | None:
        inputs = tuple(self._aliases.get(name, name) for name in node.inputs)
        if node.kind == "DynamicQuantizeLinear":  # value, scale, zero point
            self._aliases[node.outputs[0]] = inputs[0]
            self._constants[node.outputs[1]], self._constants[node.outputs[2]] = torch.tensor(1.0), torch.tensor(0.0)
            return None
        if node.kind == "Floor" and "bias_quant_rounded" in node.name:  # a bias, in units that are not integers here
            self._aliases[node.outputs[0]] = inputs[0]
            return None
        run: Run
        if node.kind == "DynamicQuantizeLSTM":
            run, inputs = self._lstm(node, inputs), inputs[:1]
        elif node.kind in ("MatMulInteger", "ConvInteger"):
            run, inputs = run_of(node, self._device), (inputs[0], self._float(node, inputs))
        else:
            run = run_of(node, self._device)
        return _Step(run, inputs, node.outputs, (), node.name)

    def _float(self, node: Node, inputs: Sequence[str]) -> str:
        """An integer weight without its zero point, as floats; the scale is multiplied later, by the graph."""
        name = inputs[1]
        if name not in self._constants:
            return name
        known = name + FLOAT_SUFFIX
        if known not in self._constants:
            zero = self._constants[inputs[3]].float() if len(inputs) > 3 and inputs[3] else torch.tensor(0.0)
            if node.kind == "ConvInteger" and zero.numel() > 1:
                zero = zero.reshape(-1, 1, 1)
            self._constants[known] = self._constants[name].float() - zero
        return known

    def _lstm(self, node: Node, inputs: Sequence[str]) -> Callable[[Tensor], Tensor]:
        """onnxruntime's LSTM of quantised weights, shape = (directions, inputs, 4 hidden), gates i o f c."""
        constants = [self._constants.get(name) for name in (*inputs, *[""] * (12 - len(inputs)))]
        bias = constants[3]
        assert bias is not None
        hidden = node.get("hidden_size")
        weights = []
        for value, scale, zero in ((constants[1], *constants[8:10]), (constants[2], *constants[10:12])):
            assert value is not None
            assert scale is not None
            assert zero is not None
            weights.append((value.float() - _over(zero)) * _over(scale))
        module = nn.LSTM(weights[0].shape[1], hidden, bidirectional=len(bias) == 2)
        for direction in range(len(bias)):
            suffix = "_reverse" if direction else ""
            parts = zip(("weight_ih_l0", "weight_hh_l0"), weights, strict=True)
            values = {name: _gates(value[direction], hidden).t() for name, value in parts}
            values["bias_ih_l0"], values["bias_hh_l0"] = (
                _gates(part, hidden) for part in bias[direction].split(4 * hidden)
            )
            for name, value in values.items():
                module.get_parameter(name + suffix).data.copy_(value)
        module.to(self._device).eval()

        def run(value: Tensor) -> Tensor:  # (time, batch, directions * hidden) -> (time, directions, batch, hidden)
            states, _ = module(value)
            return states.unflatten(2, (-1, hidden)).transpose(1, 2)

        return run

    def _live(self, steps: list[_Step]) -> list[_Step]:
        """Run what depends on constants alone; of the rest, note where each value is used last."""
        live = []
        with torch.no_grad():
            for step in steps:
                if all(not name or name in self._constants for name in step.inputs):
                    result = step.run(*(self._constants[name] if name else None for name in step.inputs))
                    results = result if isinstance(result, tuple | list) else (result,)
                    self._constants.update(zip(step.outputs, results, strict=False))
                else:
                    live.append(step)
        needed = set(self._outputs) | set(self._constants)
        finished = []
        for step in reversed(live):
            last = tuple({name for name in step.inputs if name and name not in needed})
            needed |= set(step.inputs)
            finished.append(_Step(step.run, step.inputs, step.outputs, last, step.name))
        return finished[::-1]

    def _placed(self, value: Tensor) -> Tensor:
        """Numbers on the device; shapes and indices where they are."""
        return (
            value.to(self._device) if value.is_floating_point() or value.dtype in (torch.uint8, torch.int8) else value
        )


def _over(value: Tensor) -> Tensor:
    """A scale or zero point, of each direction or of each of its columns, against (directions, inputs, columns)."""
    return value.float().reshape(value.shape[0], 1, -1) if value.ndim else value.float()


def _gates(value: Tensor, hidden: int) -> Tensor:
    """From ONNX's order of gates, input output forget cell, to torch's."""
    ingoing, outgoing, forget, cell = value.split(hidden, -1)
    return torch.cat([ingoing, forget, cell, outgoing], -1)


def _read(path: Path) -> tuple[list[str], list[str], list[Node], dict[str, Tensor]]:
    """Names of inputs and outputs, nodes in order, constants."""
    import onnx  # of the extra train
    from onnx import numpy_helper

    graph = onnx.load(path).graph
    constants = {each.name: torch.from_numpy(numpy_helper.to_array(each).copy()) for each in graph.initializer}
    nodes = []
    for each in graph.node:
        attributes: dict[str, Any] = {}
        for attribute in each.attribute:
            value = onnx.helper.get_attribute_value(attribute)
            if attribute.type == onnx.AttributeProto.TENSOR:
                value = torch.from_numpy(numpy_helper.to_array(value).copy())
            attributes[attribute.name] = value.decode() if isinstance(value, bytes) else value
        if each.op_type == "Constant":
            constants[each.output[0]] = attributes["value"]
        else:
            nodes.append(Node(each.op_type, each.name, tuple(each.input), tuple(each.output), attributes))
    return [each.name for each in graph.input], [each.name for each in graph.output], nodes, constants
