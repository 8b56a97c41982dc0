"""For every rewrite, networks it fits, drawn by hypothesis, and networks it must leave alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]
Line = tuple[str, Sequence[str], Sequence[str], Mapping[str, Any]]
FITS: dict[str, list[Callable[[Draw], onnx.ModelProto]]] = {}
MISSES: dict[str, list[onnx.ModelProto]] = {}
F, I = TensorProto.FLOAT, TensorProto.INT64
RNG = np.random.default_rng(7)


def net(lines: Sequence[Line], inputs: Mapping[str, Sequence[int]], constants: Mapping[str, Array] | None = None, outputs: Sequence[str] = ("y",),
        opset: int = 17, types: Mapping[str, int] | None = None) -> onnx.ModelProto:
    """A model of nodes (operator, inputs, outputs, attributes), its output types inferred."""
    nodes = [helper.make_node(op, list(i), list(o), name=f"{op.lower()}{n}", **a) for n, (op, i, o, a) in enumerate(lines)]
    graph = helper.make_graph(nodes, "net", [helper.make_tensor_value_info(n, (types or {}).get(n, F), list(s)) for n, s in inputs.items()],
                              [helper.make_empty_tensor_value_info(o) for o in outputs],
                              [numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8 if opset < 20 else 10)
    return onnx.shape_inference.infer_shapes(model, strict_mode=False)


def one(op: str, *arguments: Any, opset: int = 17, dtype: int = F, **attributes: Any) -> onnx.ModelProto:
    """One node: a tuple is an input of that shape, an array a constant, None an input left out."""
    names, inputs, constants = [], {}, {}
    for n, a in enumerate(arguments):
        names.append("" if a is None else f"x{n}")
        if isinstance(a, tuple):
            inputs[f"x{n}"] = a
        elif a is not None:
            constants[f"x{n}"] = a
    return net([(op, names, ["y"], attributes)], inputs, constants, opset=opset, types=dict.fromkeys(inputs, dtype))


def fits(name: str) -> Callable[[Callable[[Draw], onnx.ModelProto]], Callable[[Draw], onnx.ModelProto]]:
    def add(function: Callable[[Draw], onnx.ModelProto]) -> Callable[[Draw], onnx.ModelProto]:
        FITS.setdefault(name, []).append(function)
        return function
    return add


def misses(name: str, *models: onnx.ModelProto) -> None:
    MISSES.setdefault(name, []).extend(models)


def sizes(rank: int = 4, low: int = 2, high: int = 9) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(st.just(1), *[st.integers(low, high)] * (rank - 1))


def ranks(low: int, high: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.integers(low, high).flatmap(sizes)


def drawn(strategy: st.SearchStrategy[Any], build: Callable[[Draw, Any], onnx.ModelProto]) -> Callable[[Draw], onnx.ModelProto]:
    """`build` of a value drawn from `strategy`."""
    return lambda draw: build(draw, draw(strategy))


def weight(*shape: int) -> Array:
    made: Array = (RNG.standard_normal(shape) / math.sqrt(max(1, math.prod(shape[1:])))).astype(np.float32)
    return made


def whole(*values: int) -> Array:
    return np.array(values, np.int64)


def number(value: float) -> Array:
    return np.array(value, np.float32)


# ------------------------------------------------------------------------------------------------------------ one operator, any shape

def unary(name: str, op: str, miss: onnx.ModelProto | None = None, opset: int = 17, **attributes: Any) -> None:
    fits(name)(lambda draw: one(op, draw(ranks(2, 4)), opset=opset, **attributes))
    misses(name, miss if miss is not None else one("Relu", (1, 4)))


unary("neg-to-mul", "Neg", one("Neg", (1, 4), dtype=I))
unary("ceil-to-floor", "Ceil")
unary("abs-to-max", "Abs", one("Abs", (1, 4), dtype=I))
unary("reciprocal-to-div", "Reciprocal", one("Div", np.array(2, np.float32), (1, 4)))
unary("gelu-to-erf", "Gelu", one("Relu", (1, 4), opset=20), 20)
unary("gelu-to-erf", "Gelu", None, 20, approximate="tanh")
unary("gelu-to-tanh", "Gelu", one("Gelu", (1, 4), opset=20, approximate="tanh"), 20)
unary("gelu-to-sigmoid", "Gelu", one("Gelu", (1, 4), opset=20, approximate="tanh"), 20)
unary("hardswish-to-clip", "HardSwish", one("HardSigmoid", (1, 4)))
unary("sigmoid-to-hardsigmoid", "Sigmoid")
unary("mish-split", "Mish", one("Softplus", (1, 4), opset=18), 18)
unary("silu-split", "Swish", one("Sigmoid", (1, 4), opset=24), 24)
unary("silu-split", "Swish", None, 24, alpha=1.5)


def _power(exponent: float, draw: Draw, shape: tuple[int, ...]) -> onnx.ModelProto:
    return one("Pow", shape, number(exponent))


for exponent in (2.0, 3.0):
    fits("pow-to-mul")(drawn(sizes(3), partial(_power, exponent)))
fits("pow-to-mul")(lambda draw: net([("Abs", ["x"], ["a"], {}), ("Pow", ["a", "half"], ["y"], {})], {"x": draw(sizes(3))}, {"half": number(0.5)}))
misses("pow-to-mul", one("Pow", (1, 4), number(2.5)), one("Pow", (1, 4), (1, 4)))
fits("div-to-mul")(lambda draw: one("Div", (*draw(sizes(3)), 4), weight(4) + 3))
misses("div-to-mul", one("Div", (1, 4), (1, 4)), one("Div", (1, 4), number(0.0)), one("Div", (1, 4), whole(3), dtype=I))
fits("sub-to-add")(lambda draw: one("Sub", (*draw(sizes(3)), 4), weight(4)))
misses("sub-to-add", one("Sub", (1, 4), (1, 4)), one("Sub", weight(4), (1, 4)))
fits("min-to-max")(drawn(sizes(3), lambda draw, s: one("Min", s, s)))
misses("min-to-max", one("Min", (1, 4), whole(3), dtype=I))
fits("sum-to-add")(drawn(sizes(3), lambda draw, s: one(draw(st.sampled_from(["Sum", "Mean"])), s, s, s)))
misses("sum-to-add", one("Add", (1, 4), (1, 4)))
fits("logsoftmax-split")(lambda draw: one("LogSoftmax", draw(sizes(3)), axis=draw(st.integers(-3, 2))))
misses("logsoftmax-split", one("Softmax", (1, 4)))
fits("prelu-split")(drawn(sizes(), lambda draw, s: one("PRelu", s, np.abs(weight(s[1], 1, 1)))))
misses("prelu-split", one("PRelu", (1, 4), (4,)))
fits("cumsum-to-matmul")(drawn(sizes(3), lambda draw, s: one("CumSum", s, np.array(draw(st.integers(0, 2)), np.int64), reverse=draw(st.integers(0, 1)),
                                                     exclusive=draw(st.integers(0, 1)))))
fits("cumsum-to-matmul")(lambda draw: one("CumSum", (draw(st.integers(1, 9)),), np.array(0, np.int64)))
misses("cumsum-to-matmul", one("CumSum", (2, 4), np.array(0, np.int64), dtype=I))
fits("reducel2-to-primitives")(lambda draw: one("ReduceL2", draw(sizes()), axes=[draw(st.integers(-3, 3))], keepdims=draw(st.integers(0, 1))))
fits("reducel2-to-primitives")(lambda draw: one("ReduceL2", draw(sizes()), whole(draw(st.integers(-3, 3))), opset=18))
misses("reducel2-to-primitives", one("ReduceL1", (1, 4), axes=[1]))
misses("gelu-to-erf", one("Erf", (1, 4)))


@fits("split-to-slice")
def _split(draw: Draw) -> onnx.ModelProto:
    parts = draw(st.lists(st.integers(1, 5), min_size=2, max_size=8))
    names = [f"y{i}" for i in range(len(parts))]
    return net([("Split", ["x", "parts"], names, {"axis": draw(st.sampled_from([1, -2]))})], {"x": (1, sum(parts), 3)}, {"parts": whole(*parts)}, names)


misses("split-to-slice", net([("Split", ["x"], [f"y{i}" for i in range(9)], {"axis": 1})], {"x": (1, 9)}, {}, [f"y{i}" for i in range(9)]))

# ------------------------------------------------------------------------------------------------------------ spelled activations


def gelu_chain(shape: Sequence[int], order: int = 0, factor: float = math.sqrt(2.0), opset: int = 17) -> onnx.ModelProto:
    tail: list[Line] = [("Div", ["x", "r"], ["d"], {}), ("Erf", ["d"], ["e"], {}), ("Add", ["e", "one"], ["a"], {})]
    ends: list[list[Line]] = [[("Mul", ["x", "a"], ["m"], {}), ("Mul", ["m", "h"], ["y"], {})], [("Mul", ["a", "x"], ["m"], {}), ("Mul", ["m", "h"], ["y"], {})],
            [("Mul", ["x", "h"], ["m"], {}), ("Mul", ["m", "a"], ["y"], {})], [("Mul", ["a", "h"], ["m"], {}), ("Mul", ["x", "m"], ["y"], {})],
            [("Mul", ["h", "a"], ["m"], {}), ("Mul", ["x", "m"], ["y"], {})]]
    return net([*tail, *ends[order]], {"x": shape}, {"r": number(factor), "one": number(1.0), "h": number(0.5)}, opset=opset)


for rewrite in ("erf-to-gelu", "gelu-to-tanh", "gelu-to-sigmoid"):
    fits(rewrite)(lambda draw: gelu_chain(draw(sizes(3)), draw(st.integers(0, 4)), opset=20))
    misses(rewrite, gelu_chain((1, 4), factor=1.5, opset=20))
misses("erf-to-gelu", gelu_chain((1, 4), opset=17))


def silu(shape: Sequence[int], opset: int = 17, turned: bool = False) -> onnx.ModelProto:
    return net([("Sigmoid", ["x"], ["s"], {}), ("Mul", ["s", "x"] if turned else ["x", "s"], ["y"], {})], {"x": shape}, opset=opset)


NOT_SILU = net([("Sigmoid", ["x"], ["s"], {}), ("Mul", ["z", "s"], ["y"], {})], {"x": (1, 4), "z": (1, 4)}, opset=24)
fits("silu-fuse")(lambda draw: silu(draw(sizes(3)), 24, draw(st.booleans())))
misses("silu-fuse", silu((1, 4), 17), NOT_SILU)
fits("silu-to-hardswish")(lambda draw: silu(draw(sizes(3)), 17, draw(st.booleans())))
misses("silu-to-hardswish", NOT_SILU)

# ------------------------------------------------------------------------------------------------------------ normalisations


@fits("layernorm-to-primitives")
def _layernorm(draw: Draw) -> onnx.ModelProto:
    s, axis = draw(ranks(2, 4)), draw(st.sampled_from([-1, 1]))
    over = s[axis:]
    return one("LayerNormalization", s, weight(*over), *([weight(*over)] if draw(st.booleans()) else []), axis=axis, epsilon=1e-5)


misses("layernorm-to-primitives", one("Softmax", (1, 4)))
fits("layernorm-epsilon")(drawn(sizes(3), lambda draw, s: one("LayerNormalization", s, weight(s[-1]))))
misses("layernorm-epsilon", one("LayerNormalization", (1, 4), weight(4), epsilon=1e-6))


@fits("groupnorm-to-instancenorm")
def _groupnorm(draw: Draw) -> onnx.ModelProto:
    groups, each, side, opset = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(2, 6)), draw(st.sampled_from([18, 21]))
    per = groups if opset < 21 else groups * each
    return one("GroupNormalization", (1, groups * each, side, side + 1), weight(per), weight(per), num_groups=groups, epsilon=1e-4, opset=opset)


misses("groupnorm-to-instancenorm", one("GroupNormalization", (1, 4, 3, 3), (4,), (4,), num_groups=2, opset=21))
fits("instancenorm-to-primitives")(drawn(ranks(3, 4), lambda draw, s: one("InstanceNormalization", s, weight(s[1]), weight(s[1]))))
misses("instancenorm-to-primitives", one("InstanceNormalization", (1, 4, 3, 3), (4,), (4,)))
fits("rmsnorm-to-primitives")(drawn(sizes(3), lambda draw, s: one("RMSNormalization", s, weight(s[-1]), opset=23, axis=-1)))
misses("rmsnorm-to-primitives", one("LayerNormalization", (1, 4), weight(4)))

# ------------------------------------------------------------------------------------------------------------ resizes


def resize(shape: Sequence[int], factors: Sequence[int], **attributes: Any) -> onnx.ModelProto:
    return net([("Resize", ["x", "", "f"], ["y"], attributes)], {"x": shape}, {"f": np.array([1, 1, *factors], np.float32)})


NEAREST = [{"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}, {"coordinate_transformation_mode": "half_pixel"}]
for rewrite in ("resize-nearest-to-transposed-conv", "resize-nearest-to-concat"):
    fits(rewrite)(lambda draw: resize(draw(sizes(4, 1, 6)), [draw(st.integers(2, 4))] * 2, mode="nearest", **draw(st.sampled_from(NEAREST))))
    misses(rewrite, resize((1, 2, 3, 3), [2, 3], mode="nearest", **NEAREST[0]), resize((1, 2, 3, 3), [2, 2], mode="linear"),
           resize((1, 2, 3, 3), [2, 2], mode="nearest", coordinate_transformation_mode="align_corners"))
fits("resize-linear-to-transposed-conv")(lambda draw: resize(draw(sizes(4, 2, 6)), [draw(st.sampled_from([2, 4]))] * 2, mode="linear"))
misses("resize-linear-to-transposed-conv", resize((1, 2, 3, 3), [3, 3], mode="linear"), resize((1, 2, 1, 3), [2, 2], mode="linear"),
       resize((1, 2, 3, 3), [2, 2], mode="linear", coordinate_transformation_mode="align_corners"))
fits("resize-cubic-to-linear")(lambda draw: resize(draw(sizes()), [2, 2], mode="cubic"))
misses("resize-cubic-to-linear", resize((1, 2, 3, 3), [2, 2], mode="linear"))
fits("resize-corners")(lambda draw: resize(draw(sizes()), [2, 2], mode="linear", coordinate_transformation_mode="align_corners"))
misses("resize-corners", resize((1, 2, 3, 3), [2, 2], mode="linear"))

# ------------------------------------------------------------------------------------------------------------ pools

fits("global-pool-two-stage")(lambda draw: one("GlobalAveragePool", (1, 3, *(draw(st.sampled_from([8, 9, 14, 20, 49])) for _ in "hw"))))
misses("global-pool-two-stage", one("GlobalAveragePool", (1, 3, 7, 7)), one("GlobalAveragePool", (1, 3, 11, 14)), one("GlobalAveragePool", (1, 3, 50, 64)))
fits("global-pool-to-reducemean")(lambda draw: one("GlobalAveragePool", draw(sizes())))
misses("global-pool-to-reducemean", one("GlobalMaxPool", (1, 3, 7, 7)))
fits("reducemean-to-global-pool")(lambda draw: one("ReduceMean", draw(sizes()), axes=draw(st.sampled_from([[2, 3], [-1, -2]])), keepdims=draw(st.integers(0, 1))))
misses("reducemean-to-global-pool", one("ReduceMean", (1, 2, 3, 3), axes=[1, 2]), one("ReduceMean", (2, 3, 3), axes=[1, 2]))


def pool(op: str, shape: Sequence[int], k: int, **attributes: Any) -> onnx.ModelProto:
    return one(op, tuple(shape), kernel_shape=[k, k], **attributes)


fits("maxpool-cascade")(drawn(st.sampled_from([9, 11, 13]), lambda draw, k: pool("MaxPool", (1, 2, draw(st.integers(k, 20)), k), k, pads=[k // 2] * 4)))
misses("maxpool-cascade", pool("MaxPool", (1, 2, 9, 9), 5, pads=[2] * 4), pool("MaxPool", (1, 2, 20, 20), 9, pads=[4] * 4, strides=[2, 2]),
       pool("MaxPool", (1, 2, 20, 20), 9))
fits("averagepool-to-conv")(drawn(st.integers(2, 12), lambda draw, k: pool("AveragePool", (1, 3, 20, 17), k, strides=[draw(st.integers(1, 3))] * 2)))
fits("averagepool-to-conv")(lambda draw: pool("AveragePool", (1, 3, 9, 9), 3, pads=[1] * 4, count_include_pad=1))
misses("averagepool-to-conv", pool("AveragePool", (1, 3, 9, 9), 3, pads=[1] * 4), pool("AveragePool", (1, 3, 8, 8), 3, ceil_mode=1, strides=[2, 2]))

# ------------------------------------------------------------------------------------------------------------ slices, pads, layouts


def sliced(shape: Sequence[int], starts: Sequence[int], ends: Sequence[int], axes: Sequence[int], steps: Sequence[int]) -> onnx.ModelProto:
    return one("Slice", tuple(shape), whole(*starts), whole(*ends), whole(*axes), whole(*steps))


@fits("slice-step-to-pool")
def _slice_step(draw: Draw) -> onnx.ModelProto:
    s = draw(sizes(4, 4, 9))
    return sliced(s, [draw(st.integers(0, 1)), 0], [draw(st.sampled_from([99, -1, 3])), 99], [2, 3], [draw(st.integers(2, 3)), draw(st.integers(1, 3))])


misses("slice-step-to-pool", sliced((1, 4, 8, 8), [0], [9], [1], [2]), sliced((1, 4, 8, 8), [0], [4], [2], [1]), sliced((1, 4, 8, 8), [7], [-99], [2], [-2]))


def conv_reshape_slice(rows: int, channels: int, after: Sequence[int], axis: int, before: str = "Softmax") -> onnx.ModelProto:
    """The end of a box decode: values of `rows` coordinates, cut in two."""
    return net([(before, ["x"], ["p"], {}), ("Conv", ["p", "w"], ["c"], {}), ("Reshape", ["c", "s"], ["r"], {}), ("Slice", ["r", "zero", "two", "axis"], ["y"], {}),
                ("Slice", ["r", "two", "end", "axis"], ["z"], {})],
               {"x": (1, channels, rows, 7)}, {"w": weight(1, channels, 1, 1), "s": whole(*after), "zero": whole(0), "two": whole(2), "end": whole(99),
                                               "axis": whole(axis)}, ["y", "z"])


@fits("slice-before-reshape")
def _slice_before_reshape(draw: Draw) -> onnx.ModelProto:
    rows = draw(st.integers(3, 6))
    after, axis = draw(st.sampled_from([([1, rows, 7], 1), ([rows, 7], 0), ([1, 1, rows, 1, 7], 2)]))
    return conv_reshape_slice(rows, draw(st.integers(1, 8)), after, axis)


misses("slice-before-reshape", conv_reshape_slice(4, 3, [1, 28], 1), conv_reshape_slice(4, 3, [1, 4, 7], 1, "Relu"))


def padded(op: str, shape: Sequence[int], amounts: Sequence[int], value: float = 0.0, mode: str = "constant", **attributes: Any) -> onnx.ModelProto:
    extra = {"w": weight(4, shape[1], 3, 3)} if op == "Conv" else {}
    return net([("Pad", ["x", "p", "v"], ["w0"], {"mode": mode}), (op, ["w0", *extra], ["y"], attributes)], {"x": shape},
               {"p": whole(0, 0, *amounts[:2], 0, 0, *amounts[2:]), "v": number(value), **extra})


AMOUNTS = st.lists(st.integers(0, 2), min_size=4, max_size=4)
fits("fold-pad")(lambda draw: padded("Conv", draw(sizes(4, 3, 9)), draw(AMOUNTS), strides=[draw(st.integers(1, 2))] * 2, pads=[draw(st.integers(0, 1))] * 4))
fits("fold-pad")(lambda draw: padded("AveragePool", draw(sizes(4, 3, 9)), draw(AMOUNTS), kernel_shape=[3, 3]))
misses("fold-pad", padded("Conv", (1, 3, 5, 5), [1, 1, 1, 1], value=1.0), padded("Conv", (1, 3, 6, 6), [-1, 0, 1, 0]), padded("Conv", (1, 3, 5, 5), [1] * 4, mode="reflect"),
       padded("MaxPool", (1, 3, 5, 5), [1] * 4, kernel_shape=[3, 3]), padded("AveragePool", (1, 3, 5, 5), [1] * 4, kernel_shape=[3, 3], pads=[1] * 4))


def pad(shape: Sequence[int], amounts: Sequence[int], mode: str = "constant", value: float = 0.0) -> onnx.ModelProto:
    return one("Pad", tuple(shape), whole(0, 0, *amounts[:2], 0, 0, *amounts[2:]), number(value), mode=mode)


fits("pad-to-concat")(lambda draw: pad(draw(sizes(4, 4, 9)), [-1, *draw(st.lists(st.integers(-1, 2), min_size=3, max_size=3))]))
misses("pad-to-concat", pad((1, 2, 5, 5), [1] * 4), pad((1, 2, 5, 5), [-1] * 4, value=2.0))
fits("pad-mirror-to-concat")(lambda draw: pad(draw(sizes(4, 3, 6)), draw(AMOUNTS), draw(st.sampled_from(["reflect", "edge"]))))
misses("pad-mirror-to-concat", pad((1, 2, 5, 5), [1] * 4), pad((1, 2, 5, 5), [-1, 0, 1, 0], "reflect"))
fits("explicit-pad")(lambda draw: one("Conv", (1, 2, 5, 6), weight(3, 2, 3, 3), pads=[draw(st.integers(16, 18)), 0, 1, draw(st.integers(0, 20))]))
misses("explicit-pad", one("Conv", (1, 2, 5, 6), weight(3, 2, 3, 3), pads=[15] * 4))


@fits("depthtospace-to-reshape")
def _depth_to_space(draw: Draw) -> onnx.ModelProto:
    b = draw(st.integers(2, 3))
    return one("DepthToSpace", (draw(st.integers(1, 2)), b * b * draw(st.integers(1, 3)), 3, 4), blocksize=b, mode=draw(st.sampled_from(["CRD", "DCR"])))


misses("depthtospace-to-reshape", one("SpaceToDepth", (1, 1, 4, 4), blocksize=2))


def shuffled(b: int, filters: int, mode: str, group: int = 1) -> onnx.ModelProto:
    return net([("Conv", ["x", "w", "b"], ["c"], {"group": group}), ("DepthToSpace", ["c"], ["y"], {"blocksize": b, "mode": mode})], {"x": (1, 4, 5, 6)},
               {"w": weight(filters * b * b, 4 // group, 3, 3), "b": weight(filters * b * b)})


fits("pixelshuffle-to-dcr")(lambda draw: shuffled(draw(st.integers(2, 4)), draw(st.integers(1, 3)), "CRD"))
misses("pixelshuffle-to-dcr", shuffled(2, 2, "DCR"), shuffled(2, 2, "CRD", 2), one("DepthToSpace", (1, 4, 2, 2), blocksize=2, mode="CRD"))
fits("spacetodepth-to-conv")(drawn(st.integers(2, 3), lambda draw, b: one("SpaceToDepth", (1, draw(st.integers(1, 3)), 2 * b, 3 * b), blocksize=b)))
misses("spacetodepth-to-conv", one("DepthToSpace", (1, 4, 4, 4), blocksize=2))


def focus(shape: Sequence[int], order: Sequence[tuple[int, int]], axis: int = 1) -> onnx.ModelProto:
    constants: dict[str, Array] = {"axes": whole(2, 3), "steps": whole(2, 2), "ends": whole(9999, 9999)}
    lines: list[Line] = []
    for i, (down, along) in enumerate(order):
        constants[f"s{i}"] = whole(down, along)
        lines.append(("Slice", ["x", f"s{i}", "ends", "axes", "steps"], [f"p{i}"], {}))
    return net([*lines, ("Concat", [f"p{i}" for i in range(len(order))], ["y"], {"axis": axis})], {"x": shape}, constants)


BLOCKS = [(0, 0), (1, 0), (0, 1), (1, 1)]
fits("focus-to-spacetodepth")(lambda draw: focus((1, draw(st.integers(1, 4)), 2 * draw(st.integers(1, 4)), 6), draw(st.permutations(BLOCKS))))
misses("focus-to-spacetodepth", focus((1, 3, 4, 6), [*BLOCKS[:3], (0, 0)]), focus((1, 3, 4, 6), BLOCKS, 2))


@fits("transpose-5d")
def _transpose(draw: Draw) -> onnx.ModelProto:
    perm = draw(st.sampled_from([[0, 3, 1, 4, 2], [0, 2, 1, 3, 4], [0, 1, 4, 2, 3], [0, 4, 3, 1, 2]]))
    return one("Transpose", tuple(draw(sizes(5, 2, 4))), perm=perm)


misses("transpose-5d", one("Transpose", (1, 2, 3, 4), perm=[0, 2, 1, 3]), one("Transpose", (2, 3, 2, 3, 2), perm=[4, 3, 2, 1, 0]))
fits("gather-to-slice")(lambda draw: one("Gather", (3, 6, 4), np.array(draw(st.sampled_from([2, -1, [1, 2, 3], [-2, -1]])), np.int64), axis=1))
misses("gather-to-slice", one("Gather", (3, 6), whole(0, 2)), one("Gather", (3, 6), np.array([[0, 1]], np.int64)), one("Gather", weight(5, 3), (2,), dtype=I))
fits("int64-indices-to-int32")(lambda draw: one("Gather", (3, 6, 4), whole(*draw(st.lists(st.integers(0, 5), min_size=1, max_size=5))), axis=1))
misses("int64-indices-to-int32", one("Gather", (3, 6), np.array([0, 2], np.int32)))

# ------------------------------------------------------------------------------------------------------------ products


@fits("einsum-to-matmul")
def _einsum(draw: Draw) -> onnx.ModelProto:
    equation = draw(st.sampled_from(["bij,bjk->bik", "bhqd,bhkd->bhqk", "bij,kj->bik", "nchw,kc->nkhw", "bchw,bkc->bkhw", "ij,jk->ki", "abc,acd->dab"]))
    size = {k: draw(st.integers(1, 5)) for k in sorted(set(equation) - set(",->"))}
    left, right = equation.split("->")[0].split(",")
    return one("Einsum", tuple(size[k] for k in left), tuple(size[k] for k in right), equation=equation)


misses("einsum-to-matmul", one("Einsum", (3, 3), (3, 4), equation="ii,ij->ij"), one("Einsum", (3, 4), equation="ij->ji"), one("Einsum", (3, 4), (5,), equation="ij,k->ik"), one("Einsum", (2, 3), (2, 3), equation="ij,ij->ij"))
fits("matmul-to-conv")(drawn(ranks(2, 3), lambda draw, s: one("MatMul", s, weight(s[-1], draw(st.integers(1, 6))))))
misses("matmul-to-conv", one("MatMul", (1, 3, 4), (1, 4, 5)), one("MatMul", (2, 3, 4), weight(4, 5)), one("MatMul", (1, 2, 3, 4), weight(4, 5)))


@fits("gemm-to-conv")
def _gemm(draw: Draw) -> onnx.ModelProto:
    n, k, m, turned = draw(st.integers(1, 3)), draw(st.integers(1, 8)), draw(st.integers(1, 8)), draw(st.integers(0, 1))
    bias = draw(st.sampled_from([None, weight(m), weight(1)]))
    return one("Gemm", (n, k), weight(m, k) if turned else weight(k, m), *([] if bias is None else [bias]), transB=turned, alpha=0.5, beta=2.0)


misses("gemm-to-conv", one("Gemm", (4, 3), weight(4, 5), transA=1), one("Gemm", (3, 4), (4, 5)))


def heads(k: int, m: int, together: bool = True, alpha: float = 1.0) -> onnx.ModelProto:
    return net([("Gemm", ["x", "w1", "b1"], ["p"], {}), ("Gemm", ["x" if together else "z", "w2", "b2"], ["q"], {"alpha": alpha}), ("Add", ["p", "q"], ["y"], {})],
               {"x": (2, k)} if together else {"x": (2, k), "z": (2, k)}, {"w1": weight(k, m), "w2": weight(k, m), "b1": weight(m), "b2": weight(m)})


fits("merge-gemms")(lambda draw: heads(draw(st.integers(1, 9)), draw(st.integers(1, 9))))
misses("merge-gemms", heads(3, 4, False), heads(3, 4, True, 0.5))


def attention(heads_: int, length: int, perm: Sequence[int] = (0, 1, 3, 2)) -> onnx.ModelProto:
    return net([("Softmax", ["s"], ["a"], {"axis": -1}), ("Transpose", ["a"], ["t"], {"perm": list(perm)}), ("MatMul", ["v", "t"], ["y"], {})],
               {"s": (1, heads_, length, length), "v": (1, heads_, 5, length)})


fits("attention-values-right")(lambda draw: attention(draw(st.integers(1, 3)), draw(st.integers(2, 9))))
misses("attention-values-right", attention(4, 4, (0, 3, 1, 2)), net(
    [("Softmax", ["s"], ["a"], {"axis": -1}), ("MatMul", ["v", "a"], ["y"], {})], {"s": (1, 2, 4, 4), "v": (1, 2, 5, 4)}))
fits("conv1d-to-conv")(lambda draw: one("Conv", (draw(st.integers(1, 2)), 4, draw(st.integers(6, 12))), weight(6, 2, 3), weight(6), group=2,
                                        strides=[draw(st.integers(1, 2))], pads=[draw(st.integers(0, 2)), 1], dilations=[draw(st.integers(1, 2))]))
misses("conv1d-to-conv", one("Conv", (1, 4, 5, 6), weight(6, 4, 3, 3)))


@fits("conv3d-to-conv")
def _conv3d(draw: Draw) -> onnx.ModelProto:
    depth, pads = draw(st.integers(1, 3)), draw(st.lists(st.integers(0, 1), min_size=6, max_size=6))
    return one("Conv", (1, 4, draw(st.integers(5, 7)), 6, 7), weight(4, 2, depth, 3, 3), weight(4), group=2, pads=pads,
               strides=draw(st.lists(st.integers(1, 2), min_size=3, max_size=3)), dilations=[draw(st.integers(1, 2)), 1, 1])


misses("conv3d-to-conv", one("Conv", (1, 4, 5, 6), weight(6, 4, 3, 3)), one("Conv", (2, 4, 5, 6, 6), weight(6, 4, 3, 3, 3)))


@fits("transposed-conv-stride")
def _transposed(draw: Draw) -> onnx.ModelProto:
    k, strides = draw(st.integers(3, 5)), draw(st.sampled_from([[3, 3], [3, 2], [5, 3], [1, 3]]))
    return one("ConvTranspose", (draw(st.integers(1, 2)), 3, 4, 5), weight(3, 4, k, k), weight(4), strides=strides, pads=[draw(st.integers(0, 1))] * 4,
               output_padding=[draw(st.integers(0, strides[0] - 1)), 0])


misses("transposed-conv-stride", one("ConvTranspose", (1, 3, 4, 5), weight(3, 4, 3, 3), strides=[2, 2]),
       one("ConvTranspose", (1, 4, 4, 5), weight(4, 2, 3, 3), strides=[3, 3], group=2))


def bottleneck(channels: int, group: int = 1) -> onnx.ModelProto:
    return net([("Conv", ["x", "a", "b"], ["c"], {}), ("Relu", ["c"], ["r"], {}), ("Conv", ["r", "d"], ["y"], {"group": group})], {"x": (1, 3, 6, 6)},
               {"a": weight(channels, 3, 3, 3), "b": weight(channels), "d": weight(4 * group, channels // group, 3, 3)})


fits("pad-channels")(lambda draw: bottleneck(draw(st.integers(1, 15))))
misses("pad-channels", bottleneck(16), bottleneck(10, 2))

# ------------------------------------------------------------------------------------------------------------ whole graphs


@fits("fold-constants")
def _folded(draw: Draw) -> onnx.ModelProto:
    n, c, h, w = draw(sizes())
    return net([("Shape", ["x"], ["s"], {}), ("Slice", ["s", "two", "four"], ["hw"], {}), ("ReduceProd", ["hw"], ["p"], {"keepdims": 1}), ("Concat", ["lead", "p"], ["t"], {"axis": 0}),
                ("Reshape", ["x", "t"], ["r"], {}), ("Squeeze", ["p"], ["count"], {}), ("Range", ["zero", "count", "one"], ["i"], {}), ("Cast", ["i"], ["f"], {"to": F}),
                ("Add", ["r", "f"], ["y"], {})],
               {"x": (n, c, h, w)}, {"two": whole(2), "four": whole(4), "lead": whole(n, c), "zero": np.array(0, np.int64), "one": np.array(1, np.int64)})


misses("fold-constants", one("Relu", (1, 4)))


@fits("drop-idle")
def _idle(draw: Draw) -> onnx.ModelProto:
    s = draw(sizes())
    idle: list[Line] = draw(st.permutations([
        ("Identity", {}), ("Cast", {"to": F}), ("Transpose", {"perm": [0, 1, 2, 3]}), ("Dropout", {}), ("Reshape", {})]))
    lines: list[Line] = [("Relu", ["x"], ["t0"], {})]
    for n, (op, attributes) in enumerate(idle):  # type: ignore[misc]
        lines.append((op, [f"t{n}", *(["s"] if op == "Reshape" else [])], [f"t{n + 1}"], attributes))
    turn = {"perm": [0, 2, 3, 1]}
    return net([*lines, ("Transpose", ["t5"], ["u"], turn), ("Transpose", ["u"], ["y"], {"perm": [0, 3, 1, 2]})], {"x": s}, {"s": whole(*s)})


misses("drop-idle", one("Transpose", (1, 2, 3), perm=[0, 2, 1]), one("Cast", (1, 4), to=I), one("Reshape", (1, 4), whole(2, 2)), one("Identity", (1, 4)))


def batchnorm(channels: int, before: str) -> onnx.ModelProto:
    constants = {"g": weight(channels) + 2, "b": weight(channels), "m": weight(channels), "v": np.abs(weight(channels)) + 0.5}
    lead: Line = ("Conv", ["x", "w"], ["t"], {}) if before == "Conv" else ("Relu", ["x"], ["t"], {})
    return net([lead, ("BatchNormalization", ["t", "g", "b", "m", "v"], ["y"], {})], {"x": (1, channels, 5, 5)},
               {**constants, **({"w": weight(channels, channels, 3, 3)} if before == "Conv" else {})})


fits("fold-batchnorm")(lambda draw: batchnorm(draw(st.integers(1, 6)), "Conv"))
misses("fold-batchnorm", batchnorm(3, "Relu"))
fits("batchnorm-to-affine")(lambda draw: batchnorm(draw(st.integers(1, 6)), "Relu"))
misses("batchnorm-to-affine", one("BatchNormalization", (1, 3, 4, 4), weight(3), weight(3), (3,), (3,)))


def classes(count: int, to: int = TensorProto.UINT8, op: str = "ArgMax") -> onnx.ModelProto:
    return net([(op, ["x"], ["a"], {"axis": 1, "keepdims": 0}), ("Cast", ["a"], ["y"], {"to": to})], {"x": (1, count, 5)})


fits("widen-outputs")(lambda draw: classes(draw(st.integers(2, 256)), draw(st.sampled_from([TensorProto.UINT8, TensorProto.INT16]))))
misses("widen-outputs", classes(257), classes(200, TensorProto.INT8), classes(20, TensorProto.INT32), classes(20, op="ReduceMax"))


def masked(value: float, axis_length: int, behind: str = "Softmax") -> onnx.ModelProto:
    mask = np.triu(np.full((axis_length, axis_length), value, np.float32), 1)
    return net([("Add", ["x", "m"], ["a"], {}), (behind, ["a"], ["y"], {})], {"x": (1, axis_length, axis_length)}, {"m": np.nan_to_num(mask, neginf=value)})


fits("mask-to-finite")(lambda draw: masked(draw(st.sampled_from([-3.4e38, -1e9])), draw(st.integers(2, 9))))
misses("mask-to-finite", masked(-1e4, 4), masked(-1e9, 4, "Relu"))


def top(behind: bool, op: str = "TopK") -> onnx.ModelProto:
    tail: list[Line] = [("TopK", ["r", "k"], ["v", "i"], {}), ("Mul", ["v", "two"], ["y"], {})] if op == "TopK" else [("Mul", ["r", "two"], ["y"], {})]
    return net([*([("Relu", ["x"], ["r"], {})] if behind else [("Identity", ["x"], ["r"], {})]), *tail], {"x": (1, 9)}, {"k": whole(3), "two": number(2.0)})


fits("post-processing-to-host")(lambda draw: top(True))
misses("post-processing-to-host", top(True, "Mul"), one("NonZero", (3, 4)))


@fits("lower-operator-set")
def _newer(draw: Draw) -> onnx.ModelProto:
    shape, opset = draw(sizes()), draw(st.integers(20, 24))
    return net([("Transpose", ["x"], ["t"], {"perm": [0, 2, 1, 3]}), ("Reshape", ["t", "s"], ["r"], {}), ("Softmax", ["r"], ["y"], {"axis": 1})], {"x": shape},
               {"s": whole(1, -1)}, opset=opset)


misses("lower-operator-set", one("Gelu", (1, 4), opset=20), one("Relu", (1, 4), opset=19), one("Relu", (1, 4), opset=13))
