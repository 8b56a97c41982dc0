"""Normalisations in the spellings of torch, TensorFlow, jax, Paddle and hand-written code (BUG case B14)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from models import Array, node
from odd_models import info, odd_model

EPS = 1e-5
Nodes = list[onnx.NodeProto]


@dataclass(frozen=True)
class Spelling:
    """nodes   from tensor "x" to tensor "y"; chain   number of operators that are the normalisation
    exact      what it computes, in float64; shape   of x
    """

    nodes: Nodes
    chain: int
    exact: Callable[[Array], Array]
    shape: tuple[int, ...] = (1, 4, 16)
    guarded: bool = True


CONSTANTS: Mapping[str, Array] = {k: np.asarray(v) for k, v in {
    "eps": np.float32(EPS), "two": np.float32(2), "half": np.float32(0.5), "minus_half": np.float32(-0.5), "sixteenth": np.float32(1 / 16),
    "zero": np.float32(0), "tiny": np.float32(1e-12), "last": np.array([-1]), "space": np.array([2, 3]), "first": np.array([0]), "grouped": np.array([1, 2, -1]),
    "back": np.array([1, 4, 4, 4]), "inside": np.array([2]), "gamma": np.linspace(0.5, 2, 16, dtype=np.float32),
    "beta": np.linspace(-1, 1, 16, dtype=np.float32)}.items()}


def layer(x: Array, axes: int | tuple[int, ...] = -1) -> Array:
    centred = x - x.mean(axes, keepdims=True)
    return np.asarray(centred / np.sqrt((centred ** 2).mean(axes, keepdims=True) + EPS))


def length(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x ** 2).sum(-1, keepdims=True)))


def _mean(source: str, out: str, axes: str = "last") -> onnx.NodeProto:
    return node("ReduceMean", [source, axes], [out], f"mean_{out}")


def _centred(axes: str = "last", source: str = "x") -> Nodes:
    return [_mean(source, "m", axes), node("Sub", [source, "m"], ["d"], "centre")]


def _variance(square: str = "Mul", axes: str = "last") -> Nodes:
    return [node(square, ["d", "d" if square == "Mul" else "two"], ["sq"], "square"), _mean("sq", "v", axes), node("Add", ["v", "eps"], ["ve"], "guard")]


def _torch(square: str, axes: str = "last", out: str = "y", source: str = "x") -> Nodes:
    return [*_centred(axes, source), *_variance(square, axes), node("Sqrt", ["ve"], ["s"], "root"), node("Div", ["d", "s"], [out], "quotient")]


def spellings() -> dict[str, Spelling]:
    rms = [node("Pow", ["x", "two"], ["sq"], "square"), _mean("sq", "v"), node("Add", ["v", "eps"], ["ve"], "guard")]
    sums = [node("Mul", ["x", "x"], ["sq"], "square"), node("ReduceSum", ["sq", "last"], ["v"], "sum")]
    inverse = [*_centred(), *_variance(), node("Sqrt", ["ve"], ["s"], "root"), node("Reciprocal", ["s"], ["i"], "invert")]

    def root_mean_square(x: Array) -> Array:
        return np.asarray(x / np.sqrt((x ** 2).mean(-1, keepdims=True) + EPS))

    def softmax(x: Array) -> Array:
        e = np.exp(x - x.max(-1, keepdims=True))
        return np.asarray(e / e.sum(-1, keepdims=True))

    def grouped(x: Array) -> Array:
        return layer(x.reshape(1, 2, -1)).reshape(x.shape)

    return {
        "by hand": Spelling(_torch("Mul"), 7, layer),
        "torch": Spelling(_torch("Pow"), 7, layer),
        "reciprocal": Spelling([*inverse, node("Mul", ["d", "i"], ["y"], "quotient")], 8, layer),
        "power of minus half": Spelling([*_centred(), *_variance(), node("Pow", ["ve", "minus_half"], ["i"], "invert"),
                                         node("Mul", ["d", "i"], ["y"], "quotient")], 7, layer),
        "power of half": Spelling([*_centred(), *_variance(), node("Pow", ["ve", "half"], ["s"], "root"),
                                   node("Div", ["d", "s"], ["y"], "quotient")], 7, layer),
        "sums times a factor": Spelling([
            node("ReduceSum", ["x", "last"], ["t"], "sum"), node("Mul", ["t", "sixteenth"], ["m"], "mean"), node("Sub", ["x", "m"], ["d"], "centre"),
            node("Mul", ["d", "d"], ["sq"], "square"), node("ReduceSum", ["sq", "last"], ["u"], "sum2"), node("Mul", ["u", "sixteenth"], ["v"], "mean2"),
            node("Add", ["v", "eps"], ["ve"], "guard"), node("Sqrt", ["ve"], ["s"], "root"), node("Div", ["d", "s"], ["y"], "quotient")], 9, layer),
        "tensorflow": Spelling([
            *inverse, node("Mul", ["i", "gamma"], ["ig"], "scale"), node("Mul", ["x", "ig"], ["xi"], "wide"), node("Mul", ["m", "ig"], ["mi"], "narrow"),
            node("Sub", ["beta", "mi"], ["shift"], "shift"), node("Add", ["xi", "shift"], ["y"], "sum")], 12,
            lambda x: layer(x) * CONSTANTS["gamma"] + CONSTANTS["beta"]),
        "mean of squares less square of mean": Spelling([
            _mean("x", "m"), node("Mul", ["x", "x"], ["sq"], "square"), _mean("sq", "q"), node("Mul", ["m", "m"], ["mm"], "square2"),
            node("Sub", ["q", "mm"], ["v"], "variance"), node("Max", ["v", "zero"], ["vp"], "floor"), node("Add", ["vp", "eps"], ["ve"], "guard"),
            node("Sqrt", ["ve"], ["s"], "root"), node("Reciprocal", ["s"], ["i"], "invert"), node("Sub", ["x", "m"], ["d"], "centre"),
            node("Mul", ["d", "i"], ["y"], "quotient")], 11, layer),
        "negated mean": Spelling([
            _mean("x", "m"), node("Neg", ["m"], ["nm"], "negate"), node("Add", ["x", "nm"], ["d"], "centre"), *_variance(),
            node("Sqrt", ["ve"], ["s"], "root"), node("Div", ["d", "s"], ["y"], "quotient")], 8, layer),
        "root mean square": Spelling([*rms, node("Sqrt", ["ve"], ["s"], "root"), node("Div", ["x", "s"], ["y"], "quotient")], 5, root_mean_square),
        "root mean square, inverted": Spelling([*rms, node("Pow", ["ve", "minus_half"], ["i"], "invert"), node("Mul", ["x", "i"], ["y"], "quotient")], 5,
                                               root_mean_square),
        "length": Spelling([node("ReduceL2", ["x", "last"], ["n"], "length"), node("Div", ["x", "n"], ["y"], "quotient")], 2, length, guarded=False),
        "length with a floor": Spelling([node("ReduceL2", ["x", "last"], ["n"], "length"), node("Max", ["n", "tiny"], ["nf"], "floor"),
                                         node("Div", ["x", "nf"], ["y"], "quotient")], 3, length),
        "length, clipped": Spelling([node("ReduceL2", ["x", "last"], ["n"], "length"), node("Clip", ["n", "tiny"], ["nf"], "floor"),
                                     node("Expand", ["nf", "whole"], ["ne"], "expand"), node("Div", ["x", "ne"], ["y"], "quotient")], 4, length),
        "length by sums": Spelling([*sums, node("Sqrt", ["v"], ["s"], "root"), node("Div", ["x", "s"], ["y"], "quotient")], 4, length, guarded=False),
        "sum of magnitudes": Spelling([node("Abs", ["x"], ["a"], "magnitude"), node("ReduceSum", ["a", "last"], ["n"], "sum"),
                                       node("Add", ["n", "tiny"], ["nf"], "guard"), node("Div", ["x", "nf"], ["y"], "quotient")], 4,
                                      lambda x: x / (np.abs(x).sum(-1, keepdims=True) + 1e-12)),
        "instance": Spelling(_torch("Pow", "space"), 7, lambda x: layer(x, (2, 3)), (1, 4, 4, 4)),
        "group": Spelling([node("Reshape", ["x", "grouped"], ["g"], "split_groups"), *_torch("Mul", "inside", "h", "g"),
                           node("Reshape", ["h", "back"], ["y"], "join_groups")], 7, grouped, (1, 4, 4, 4)),
        "batch": Spelling(_torch("Mul", "first"), 7, lambda x: layer(x, 0), (8, 16)),
        "pooled mean": Spelling([
            node("GlobalAveragePool", ["x"], ["m"], "mean"), node("Sub", ["x", "m"], ["d"], "centre"), node("Mul", ["d", "d"], ["sq"], "square"),
            node("GlobalAveragePool", ["sq"], ["v"], "mean2"), node("Add", ["v", "eps"], ["ve"], "guard"), node("Sqrt", ["ve"], ["s"], "root"),
            node("Div", ["d", "s"], ["y"], "quotient")], 7, lambda x: layer(x, (2, 3)), (1, 4, 4, 4)),
        "softmax": Spelling([node("ReduceMax", ["x", "last"], ["m"], "most"), node("Sub", ["x", "m"], ["d"], "less"), node("Exp", ["d"], ["e"], "exp"),
                             node("ReduceSum", ["e", "last"], ["n"], "sum"), node("Div", ["e", "n"], ["y"], "quotient")], 5, softmax),
    }


def alone(spelling: Spelling) -> onnx.ModelProto:
    """The normalisation and nothing else."""
    return _model(spelling, [])


def between(spelling: Spelling, before: str) -> onnx.ModelProto:
    """`before` (an operator of one input, or "MatMul" with the identity) -> normalisation -> Mul by 1.5."""
    made = node("MatMul", ["x0", "identity"], ["x"], "before") if before == "MatMul" else node(before, ["x0"], ["x"], "before")
    return _model(spelling, [made])


def _model(spelling: Spelling, first: Nodes) -> onnx.ModelProto:
    after = [node("Mul", ["y", "factor"], ["z"], "after")] if first else []
    width = spelling.shape[-1]
    constants = {**CONSTANTS, "identity": np.eye(width, dtype=np.float32), "factor": np.asarray(1.5, np.float32), "whole": np.array(spelling.shape)}
    nodes = [*first, *spelling.nodes, *after]
    used = {i for n in nodes for i in n.input}
    return odd_model(nodes, [info("x0" if first else "x", spelling.shape)], [info("z" if first else "y", spelling.shape)],
                     {k: v for k, v in constants.items() if k in used}, opset=18)
