"""One model per operator, as rknn-toolkit2 was asked: [1, 16, 32, 32] unless the operator needs another shape. Placement is the vendor's, not ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from models import Array, node
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
SHAPE = (1, 16, 32, 32)


def single(op: str, weights: Mapping[str, Array] | None = None, *, inputs: Sequence[str] = ("x",), shape: Sequence[int] = SHAPE, outputs: int = 1, opset: int = 17,
           types: Mapping[str, int] | None = None, **attributes: Any) -> onnx.ModelProto:
    """inputs   "" leaves one out; those that are no weights are model inputs of `shape`"""
    weights, kinds = weights or {}, types or {}
    outs = [f"y{i}" for i in range(outputs)]
    free = [helper.make_tensor_value_info(i, kinds.get(i, FLOAT), shape) for i in inputs if i and i not in weights]
    graph = helper.make_graph([node(op, inputs, outs, "n", **attributes)], "g", free, [onnx.ValueInfoProto(name=o) for o in outs],
                              [numpy_helper.from_array(np.asarray(w), k) for k, w in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def noise(*shape: int) -> Array:
    return np.random.default_rng(0).normal(0, 0.5, shape).astype(np.float32)


def whole(*values: int) -> Array:
    return np.array(values, np.int64)


def scalar(value: float) -> Array:
    return np.array(value, np.float32)


def whole_scalar(value: int) -> Array:
    return np.array(value, np.int64)


def recurrent(op: str, gates: int) -> onnx.ModelProto:
    return single(op, {"w": noise(1, gates * 8, 16), "r": noise(1, gates * 8, 8)}, inputs=("x", "w", "r"), shape=(10, 1, 16), hidden_size=8)


def resize(mode: str, **attributes: Any) -> onnx.ModelProto:
    return single("Resize", {"s": np.array([1, 1, 2, 2], np.float32)}, inputs=("x", "", "s"), mode=mode, **attributes)


def models() -> dict[str, onnx.ModelProto]:
    """Name of the question -> model."""
    unary = ("Relu", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "LeakyRelu", "Elu", "Selu", "Softplus", "Softsign", "Exp", "Log", "Sqrt", "Abs", "Neg",
             "Floor", "Ceil", "Round", "Sin", "Cos", "Erf", "Reciprocal", "Sign", "Identity", "GlobalAveragePool", "GlobalMaxPool")
    found = {op: single(op) for op in unary}
    found |= {op: single(op, inputs=("x", "z")) for op in ("Add", "Sub", "Mul", "Max", "Min", "Greater", "Less", "Equal")}
    found |= {op: single(op, axis=1) for op in ("Softmax", "LogSoftmax")}
    found |= {op: single(op, {"axes": whole(2, 3)}, inputs=("x", "axes"), opset=18) for op in ("ReduceMean", "ReduceMax", "ReduceSum", "ReduceL2")}
    found |= {
        "Mish": single("Mish", opset=18), "Gelu20": single("Gelu", opset=20),
        "Div": single("Div", {"d": noise(1, 16, 1, 1)}, inputs=("x", "d")), "Pow": single("Pow", {"e": scalar(2.0)}, inputs=("x", "e")),
        "Where": single("Where", inputs=("c", "x", "z"), types={"c": BOOL}),
        "LayerNorm17": single("LayerNormalization", {"s": noise(32)}, inputs=("x", "s")),
        "InstanceNorm": single("InstanceNormalization", {"s": noise(16), "b": noise(16)}, inputs=("x", "s", "b")),
        "GroupNorm18": single("GroupNormalization", {"s": noise(4), "b": noise(4)}, inputs=("x", "s", "b"), num_groups=4, opset=18),
        "BatchNorm": single("BatchNormalization", {k: np.abs(noise(16)) for k in "sbmv"}, inputs=("x", *"sbmv")),
        "ConvTranspose": single("ConvTranspose", {"w": noise(16, 8, 2, 2)}, inputs=("x", "w"), strides=[2, 2]),
        "Conv3D": single("Conv", {"w": noise(8, 16, 3, 3, 3)}, inputs=("x", "w"), shape=(1, 16, 8, 16, 16)),
        "Conv1D": single("Conv", {"w": noise(8, 16, 3)}, inputs=("x", "w"), shape=(1, 16, 64)),
        "DilatedConv": single("Conv", {"w": noise(8, 16, 3, 3)}, inputs=("x", "w"), dilations=[2, 2], pads=[2, 2, 2, 2]),
        "MatMul": single("MatMul", {"w": noise(32, 16)}, inputs=("x", "w")), "MatMul2": single("MatMul", inputs=("x", "z")),
        "Gemm": single("Gemm", {"w": noise(16, 8), "b": noise(8)}, inputs=("x", "w", "b"), shape=(1, 16)),
        "MaxPool": single("MaxPool", kernel_shape=[2, 2], strides=[2, 2]), "AveragePool": single("AveragePool", kernel_shape=[2, 2], strides=[2, 2]),
        "Concat": single("Concat", inputs=("x", "z"), axis=1), "Split": single("Split", outputs=2, axis=1),
        "Slice": single("Slice", {"a": whole(0), "e": whole(8), "axes": whole(1)}, inputs=("x", "a", "e", "axes")),
        "Transpose": single("Transpose", perm=[0, 2, 3, 1]), "Reshape": single("Reshape", {"s": whole(1, 16, 1024)}, inputs=("x", "s")),
        "Pad": single("Pad", {"p": whole(0, 0, 1, 1, 0, 0, 1, 1)}, inputs=("x", "p")),
        "PadReflect": single("Pad", {"p": whole(0, 0, 1, 1, 0, 0, 1, 1)}, inputs=("x", "p"), mode="reflect"),
        "ResizeNearest": resize("nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        "ResizeLinear": resize("linear", coordinate_transformation_mode="half_pixel"), "ResizeCubic": resize("cubic"),
        "Gather": single("Gather", {"i": whole(0, 2, 4)}, inputs=("x", "i"), axis=1),
        "GatherElements": single("GatherElements", {"i": np.zeros((1, 16, 32, 8), np.int64)}, inputs=("x", "i"), axis=3),
        "GridSample": single("GridSample", {"g": noise(1, 32, 32, 2)}, inputs=("x", "g")),
        "TopK": single("TopK", {"k": whole(5)}, inputs=("x", "k"), outputs=2), "ArgMax": single("ArgMax", axis=1),
        "CumSum": single("CumSum", {"a": whole_scalar(1)}, inputs=("x", "a")), "Einsum": single("Einsum", inputs=("x", "z"), equation="bchw,bchv->bcwv"),
        "PRelu": single("PRelu", {"s": noise(16, 1, 1)}, inputs=("x", "s")),
        "Clip": single("Clip", {"lo": scalar(0.0), "hi": scalar(6.0)}, inputs=("x", "lo", "hi")),
        "DepthToSpace": single("DepthToSpace", blocksize=2), "SpaceToDepth": single("SpaceToDepth", blocksize=2),
        "Expand": single("Expand", {"s": whole(1, 16, 32, 32)}, inputs=("x", "s"), shape=(1, 16, 1, 1)),
        "LSTM": recurrent("LSTM", 4), "GRU": recurrent("GRU", 3),
        "ScatterND": single("ScatterND", {"i": whole(0).reshape(1, 1)}, inputs=("x", "i", "z")),
        "NonZero": single("NonZero"), "OneHot": single("OneHot", {"d": whole_scalar(10), "v": np.array([0, 1], np.float32)}, inputs=("x", "d", "v"), types={"x": INT64}, shape=(1, 16)),
        "RoiAlign": single("RoiAlign", {"r": np.array([[0, 0, 8, 8]], np.float32), "b": whole(0)}, inputs=("x", "r", "b"), output_height=4, output_width=4),
        "NMS": single("NonMaxSuppression", {"k": whole(5)}, inputs=("x", "z", "k"), shape=(1, 10, 4)),
    }
    return found
