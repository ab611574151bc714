"""The torch runner of ONNX graphs against onnxruntime: quantised operators to their rounding, the others exactly."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from training.graph import Graph

CHANCE = np.random.default_rng(0)


def model(
    tmp_path: Path, nodes: list[Any], constants: dict[str, NDArray[Any]], shape: list[Any], outputs: list[str]
) -> Path:
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def both(path: Path, x: NDArray[np.float32]) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": x})
    got = [value.numpy() for value in Graph(path, torch.device("cpu"))(torch.from_numpy(x))]
    return got, expected


def test_shapes_slices_and_arithmetic_are_exact(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "two"], ["width"], axis=0),
        helper.make_node("Unsqueeze", ["width", "zero"], ["widths"]),
        helper.make_node("Concat", ["minus_one", "widths"], ["flat_shape"], axis=0),
        helper.make_node("Reshape", ["x", "flat_shape"], ["flat"]),
        helper.make_node("Slice", ["flat", "one_", "end", "one_", "twos"], ["some"]),
        helper.make_node("Pad", ["some", "pads"], ["padded"], mode="reflect"),
        helper.make_node("LeakyRelu", ["padded"], ["leaky"], alpha=0.2),
        helper.make_node("Exp", ["leaky"], ["risen"]),
        helper.make_node("Sub", ["leaky", "risen"], ["centred"]),
        helper.make_node("Softmax", ["centred"], ["y"], axis=-1),
        helper.make_node("Transpose", ["x"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("CumSum", ["turned", "one"], ["z"]),
    ]

    constants = {
        "two": np.array(2), "zero": np.array([0]), "minus_one": np.array([-1]), "one_": np.array([1]),
        "end": np.array([2**31]), "twos": np.array([2]), "pads": np.array([0, 2, 0, 1]), "one": np.array(1),
    }  # fmt: skip
    x = CHANCE.normal(size=(2, 3, 9)).astype(np.float32)

    got, expected = both(model(tmp_path, nodes, constants, [2, 3, 9], ["y", "z"]), x)

    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_quantised_products_are_near(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "q_scale", "q_zero"]),
        helper.make_node("MatMulInteger", ["q", "w", "q_zero", "w_zero"], ["product"]),
        helper.make_node("Cast", ["product"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["q_scale", "w_scale"], ["scale"]),
        helper.make_node("Mul", ["floats", "scale"], ["y"]),
        helper.make_node("Transpose", ["y"], ["channels"], perm=[0, 2, 1]),
        helper.make_node("DynamicQuantizeLinear", ["channels"], ["c", "c_scale", "c_zero"]),
        helper.make_node("ConvInteger", ["c", "k", "c_zero", "k_zero"], ["conv"], pads=[1, 1]),
        helper.make_node("Cast", ["conv"], ["conv_floats"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["c_scale", "k_scale"], ["conv_scale"]),
        helper.make_node("Mul", ["conv_floats", "conv_scale"], ["z"]),
    ]
    constants: dict[str, NDArray[Any]] = {
        "w": CHANCE.integers(0, 255, (16, 12)).astype(np.uint8),
        "w_zero": np.array(128, np.uint8),
        "w_scale": np.array(0.01, np.float32),
        "k": CHANCE.integers(0, 255, (6, 12, 3)).astype(np.uint8),
        "k_zero": np.array(120, np.uint8),
        "k_scale": np.array(0.02, np.float32),
    }
    x = CHANCE.normal(size=(1, 20, 16)).astype(np.float32)

    got, expected = both(model(tmp_path, nodes, constants, [1, 20, 16], ["y", "z"]), x)

    for mine, theirs in zip(got, expected, strict=True):
        assert np.abs(mine - theirs).max() < 0.03 * np.abs(theirs).max()


def test_an_operator_that_is_not_here_is_named(tmp_path: Path) -> None:
    path = model(tmp_path, [helper.make_node("Erf", ["x"], ["y"])], {}, [1], ["y"])

    with pytest.raises(NotImplementedError, match="Erf"):
        Graph(path, torch.device("cpu"))
