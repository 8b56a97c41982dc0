"""Small networks that hold every operator that the workers of Core ML and LiteRT have a rule for; random weights, seeded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import models
import numpy as np
import onnx

RNG = np.random.default_rng(11)


def _w(*shape: int) -> models.Array:
    return RNG.normal(0.0, 0.4, shape).astype(np.float32)


def _i(*values: int) -> Any:
    return np.asarray(values, np.int64)


def _f(*values: float) -> models.Array:
    return np.asarray(values, np.float32)


def windows() -> onnx.ModelProto:
    """Convolutions of all kinds and paddings, poolings, a transposed convolution whose ends are cut off."""
    held = {"w1": _w(8, 4, 3, 3), "b1": _w(8), "w2": _w(8, 1, 3, 3), "b2": _w(8), "w3": _w(8, 4, 1, 1), "w4": _w(8, 8, 3, 3), "b4": _w(8), "w5": _w(8, 6, 3, 3), "b5": _w(6), "w6": _w(6, 4, 3, 3)}
    nodes = [models.node("Conv", ["x", "w1", "b1"], ["c1"], "plain", pads=[1, 0, 2, 1], strides=[2, 1]), models.node("Clip", ["c1", "low", "high"], ["r1"], "relu6"),
             models.node("Conv", ["r1", "w2", "b2"], ["c2"], "depthwise", group=8, pads=[1, 1, 1, 1]),
             models.node("Conv", ["c2", "w3"], ["c3"], "grouped", group=2), models.node("MaxPool", ["c3"], ["p1"], "maximum", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
             models.node("Conv", ["p1", "w4", "b4"], ["c4"], "dilated", dilations=[2, 2], pads=[2, 2, 2, 2]),
             models.node("AveragePool", ["c4"], ["p2"], "average", kernel_shape=[2, 2], strides=[1, 1], auto_pad="SAME_UPPER"),
             models.node("ConvTranspose", ["p2", "w5", "b5"], ["t1"], "transposed", strides=[2, 2], pads=[1, 1, 0, 0]),
             models.node("GlobalAveragePool", ["t1"], ["g"], "global"), models.node("Mul", ["t1", "g"], ["m"], "scaled"),
             models.node("ConvTranspose", ["m", "w6"], ["y"], "doubled", strides=[2, 2], auto_pad="SAME_UPPER")]
    return models.model(nodes, {"x": [1, 4, 16, 12]}, {"y": None}, held | {"low": _f(0.0).reshape(()), "high": _f(6.0).reshape(())})


def elementwise() -> onnx.ModelProto:
    """Functions of one value, and of two with constants of several shapes."""
    held = {"channel": _w(6, 1, 1), "number": _f(0.7).reshape(()), "row": _w(5), "slope": np.abs(_w(6, 1, 1)), "two": _f(2.0).reshape(()), "low": _f(-0.9).reshape(()), "high": _f(1.1).reshape(()),
            "three": _f(3.0).reshape(()), "zero": _f(0.0).reshape(()), "six": _f(6.0).reshape(())}
    nodes = [models.node("Add", ["x", "channel"], ["a"], "add"), models.node("Sub", ["a", "row"], ["s"], "sub"), models.node("Mul", ["number", "s"], ["m"], "mul"),
             models.node("LeakyRelu", ["m"], ["l"], "leaky", alpha=0.2), models.node("PRelu", ["s", "slope"], ["q"], "prelu"), models.node("Sigmoid", ["l"], ["g"], "sigmoid"),
             models.node("Tanh", ["q"], ["t"], "tanh"), models.node("HardSwish", ["s"], ["h"], "hardswish"), models.node("Max", ["g", "t"], ["mx"], "maximum"),
             models.node("Min", ["h", "mx"], ["mn"], "minimum"), models.node("Clip", ["mn", "low", "high"], ["c"], "clip"), models.node("Relu", ["c"], ["r"], "relu"),
             models.node("Add", ["r", "t"], ["u"], "sum"),
             models.node("Add", ["u", "three"], ["u3"], "raised"), models.node("Clip", ["u3", "zero", "six"], ["v"], "relu6"), models.node("Mul", ["u", "v"], ["y"], "swish")]
    return models.model(nodes, {"x": [1, 6, 4, 5]}, {"y": None}, held)


def functions() -> onnx.ModelProto:
    """What has no integer kernel in LiteRT."""
    held = {"one": _f(1.5).reshape(()), "three": _f(3.0).reshape(())}
    nodes = [models.node("Exp", ["x"], ["e"], "exp"), models.node("Sqrt", ["e"], ["s"], "sqrt"), models.node("Abs", ["x"], ["a"], "abs"),
             models.node("Elu", ["x"], ["u"], "elu"), models.node("HardSigmoid", ["x"], ["h"], "hardsigmoid"), models.node("Neg", ["u"], ["n"], "neg"),
             models.node("Add", ["a", "one"], ["a1"], "positive"), models.node("Div", ["s", "a1"], ["d"], "div"), models.node("Reciprocal", ["a1"], ["i"], "reciprocal"),
             models.node("Mul", ["d", "h"], ["p"], "product"), models.node("Sub", ["p", "n"], ["q"], "difference"), models.node("Mul", ["q", "i"], ["y"], "end")]
    return models.model(nodes, {"x": [1, 3, 4, 5]}, {"y": None}, held)


def shapes() -> onnx.ModelProto:
    """What moves values, on four axes and on others."""
    held = {"w": _w(8, 4, 1, 1), "flat": _i(1, 8, 48), "back": _i(1, 4, 12, 8), "starts": _i(1, -5), "ends": _i(4, 11), "axes": _i(1, 3), "steps": _i(1, 2), "pads": _i(0, 1, 0, 2, 0, 0, 1, 0),
            "picked": _i(2, 0, 1), "double": _f(1, 1, 2, 2), "half": _f(1, 1, 2, 3)}
    nodes = [models.node("Conv", ["x", "w"], ["c"], "conv"), models.node("Reshape", ["c", "flat"], ["r"], "flatten"), models.node("Transpose", ["r"], ["t"], "swap", perm=[0, 2, 1]),
             models.node("Reshape", ["t", "back"], ["q"], "unflatten"), models.node("Transpose", ["q"], ["v"], "turn", perm=[0, 3, 1, 2]),
             models.node("Split", ["v"], ["v0", "v1"], "split", axis=1), models.node("Concat", ["v1", "v0"], ["k"], "concat", axis=1),
             models.node("Slice", ["k", "starts", "ends", "axes", "steps"], ["s"], "slice"), models.node("Pad", ["s", "pads"], ["p"], "pad"),
             models.node("Gather", ["p", "picked"], ["g"], "gather", axis=1), models.node("Resize", ["g", "", "double"], ["n"], "nearest", mode="nearest"),
             models.node("Resize", ["n", "", "half"], ["y"], "bilinear", mode="linear")]
    return models.model(nodes, {"x": [1, 4, 6, 8]}, {"y": None}, held)


def heads() -> onnx.ModelProto:
    """Attention of four axes, a Softmax over channels, reductions, both kinds of Gemm."""
    held = {"wq": _w(8, 8), "bq": _w(8), "split": _i(1, 5, 2, 4), "merge": _i(1, 5, 8), "g1": _w(6, 8), "h1": _w(6), "g2": _w(6, 3), "h2": _w(3), "square": _i(1, 8, 5, 1), "axes": _i(2, 3)}
    nodes = [models.node("MatMul", ["x", "wq"], ["q0"], "query"), models.node("Add", ["q0", "bq"], ["q"], "bias"), models.node("Reshape", ["q", "split"], ["s"], "heads"),
             models.node("Transpose", ["s"], ["qh"], "front", perm=[0, 2, 1, 3]), models.node("Transpose", ["s"], ["kh"], "last", perm=[0, 2, 3, 1]),
             models.node("MatMul", ["qh", "kh"], ["scores"], "scores"), models.node("Softmax", ["scores"], ["p"], "softmax", axis=-1),
             models.node("MatMul", ["p", "qh"], ["o"], "mix"), models.node("Transpose", ["o"], ["ot"], "rows", perm=[0, 2, 1, 3]),
             models.node("Reshape", ["ot", "merge"], ["m"], "join"), models.node("Transpose", ["m"], ["mt"], "columns", perm=[0, 2, 1]),
             models.node("Reshape", ["mt", "square"], ["z"], "image"), models.node("Softmax", ["z"], ["zs"], "channels", axis=1),
             models.node("ReduceMean", ["zs"], ["u"], "mean", axes=[2, 3], keepdims=0), models.node("Gemm", ["u", "g1", "h1"], ["f"], "rowwise", transB=1),
             models.node("Relu", ["f"], ["fr"], "relu"), models.node("Gemm", ["fr", "g2", "h2"], ["y"], "columnwise")]
    return models.model(nodes, {"x": [1, 5, 8]}, {"y": None}, held)


def tokens() -> onnx.ModelProto:
    """A LayerNormalization between products, as transformers have it."""
    held = {"w1": _w(8, 8), "g": _w(8), "b": _w(8), "w2": _w(8, 4)}
    nodes = [models.node("MatMul", ["x", "w1"], ["m"], "first"), models.node("LayerNormalization", ["m", "g", "b"], ["n"], "norm", axis=-1),
             models.node("Sigmoid", ["n"], ["s"], "gate"), models.node("Mul", ["n", "s"], ["a"], "swish"), models.node("MatMul", ["a", "w2"], ["y"], "second")]
    return models.model(nodes, {"x": [1, 5, 8]}, {"y": None}, held)


def norms() -> onnx.ModelProto:
    """Normalisations, which only Core ML is written with."""
    held = {"w": _w(6, 4, 1, 1), "g": _w(6), "b": _w(6), "lg": _w(5), "lb": _w(5)}
    nodes = [models.node("Conv", ["x", "w"], ["c"], "conv"), models.node("InstanceNormalization", ["c", "g", "b"], ["i"], "instance"),
             models.node("LayerNormalization", ["i", "lg", "lb"], ["l"], "layer", axis=-1), models.node("Softplus", ["l"], ["s"], "softplus"), models.node("Erf", ["s"], ["y"], "erf")]
    return models.model(nodes, {"x": [1, 4, 6, 5]}, {"y": None}, held)


NETWORKS: Mapping[str, onnx.ModelProto] = {f.__name__: f() for f in (windows, elementwise, functions, shapes, heads, tokens, norms)}
