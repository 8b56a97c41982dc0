"""Models and data of the statistics tests, built to the descriptions of the bug cases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qbench.protocols import Batch

Array = NDArray[Any]
FLOAT = TensorProto.FLOAT


class InMemory:
    """A data set over a list of batches; equal-shaped samples may also be stacked by `batches(size)`."""

    def __init__(self, *feeds: Mapping[str, Array], name: str = "numbers", key: str = "k") -> None:
        self.name, self.key, self._feeds = name, key, feeds

    def __len__(self) -> int:
        return sum(len(next(iter(f.values()))) for f in self._feeds)

    def batches(self, size: int = 1) -> Iterator[Batch]:
        first = 0
        if size > 1:
            whole = {k: np.concatenate([f[k] for f in self._feeds]) for k in self._feeds[0]}
            for first in range(0, len(self), size):
                yield Batch({k: v[first : first + size] for k, v in whole.items()}, None, first)
            return
        for feeds in self._feeds:
            yield Batch(feeds, None, first)
            first += len(next(iter(feeds.values())))


def info(name: str, shape: Sequence[int | str] | None, dtype: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], weights: Mapping[str, Array] | None = None) -> bytes:
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs),
                              [numpy_helper.from_array(v, k) for k, v in (weights or {}).items()])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data: bytes = proto.SerializeToString()
    return data


def conv_relu(channels: int = 4, shape: Sequence[int | str] = ("N", 3, "H", 8)) -> bytes:
    """x -> Conv(3 -> channels, 3x3, pad 1) "conv" -> c -> Relu "relu" -> y."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(0, 0.5, (channels, 3, 3, 3)).astype(np.float32), "b": rng.normal(size=channels).astype(np.float32)}
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1]), helper.make_node("Relu", ["c"], ["y"], "relu")]
    return model(nodes, [info("x", shape)], [info("y", None)], weights)


def one_node(op: str, inputs: Sequence[str] = ("x",), shape: Sequence[int | str] = ("N", 4)) -> bytes:
    """A node called "it" of operator `op`, y = op(inputs)."""
    return model([helper.make_node(op, list(inputs), ["y"], "it")], [info(i, shape) for i in dict.fromkeys(inputs)], [info("y", None)])


def two_branches() -> bytes:
    """y = If(flag) {then: t = 2x} {else: e = -x}; then r = Relu(y)."""
    two = numpy_helper.from_array(np.array(2, np.float32), "two")
    then = helper.make_graph([helper.make_node("Constant", [], ["c2"], value=two), helper.make_node("Mul", ["x", "c2"], ["t"], "double")],
                             "then", [], [info("t", None)])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["e"], "negate")], "else", [], [info("e", None)])
    nodes = [helper.make_node("If", ["flag"], ["y"], "choice", then_branch=then, else_branch=other),
             helper.make_node("Relu", ["y"], ["r"], "relu")]
    return model(nodes, [info("x", ["N", 4]), info("flag", [1], TensorProto.BOOL)], [info("r", None)])
