"""The Q/DQ model as a diagnosis sees it: where tensors are stored as codes, where products are summed, and parts between tensors that are known."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qbench.protocols import Array

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True, slots=True)
class Point:
    """Where a tensor becomes codes. raw   as computed; stored   as readers see it, behind the Q/DQ pair; node   index of the QuantizeLinear"""

    node: int
    raw: str
    stored: str
    scale_name: str
    scale: float
    zero_point: int
    dtype: str

    @property
    def qmin(self) -> int:
        return int(np.iinfo(self.dtype).min)

    @property
    def qmax(self) -> int:
        return int(np.iinfo(self.dtype).max)

    @property
    def signed(self) -> bool:
        return self.qmin < 0


@dataclass(frozen=True, slots=True)
class Product:
    """A sum of products of codes. unit   value of one accumulator count, one or one a channel, shaped to be divided by; bias likewise"""

    node: int
    name: str
    output: str
    unit: Array
    bias: Array | None


class Graph:
    """Look-ups in one model, made once. given   inputs that are stored tensors of a larger model, for its parts"""

    def __init__(self, model: onnx.ModelProto, given: Mapping[str, Point] | None = None) -> None:
        self.model, self.given = model, given or {}
        self.nodes = list(model.graph.node)
        self.constants = {i.name: i for i in model.graph.initializer}
        self.maker = {o: i for i, n in enumerate(self.nodes) for o in n.output if o}
        self.readers: dict[str, list[int]] = {}
        for i, n in enumerate(self.nodes):
            for name in dict.fromkeys(n.input):
                self.readers.setdefault(name, []).append(i)
        self.inputs = [i.name for i in model.graph.input if i.name not in self.constants]
        self.outputs = [o.name for o in model.graph.output]
        self.points = list(self._points())
        self.by_stored = {p.stored: p for p in self.points}
        self.by_raw = {p.raw: p for p in self.points}
        self.products = list(self._products())

    def value(self, name: str) -> Array | None:
        """A constant, also one behind a DequantizeLinear of constants; None for anything that is computed."""
        if name in self.constants:
            return numpy_helper.to_array(self.constants[name])
        maker = self.nodes[self.maker[name]] if name in self.maker else None
        if maker is None or maker.op_type != "DequantizeLinear":
            return None
        parts = [self.value(n) for n in maker.input]
        if any(p is None for p in parts):
            return None
        q, scale = np.asarray(parts[0]), np.asarray(parts[1])
        zero = np.asarray(parts[2]).astype(np.int64) if len(parts) > 2 and parts[2] is not None else np.int64(0)
        shape = _along(scale, q.ndim, _axis(maker))
        return np.asarray((q.astype(np.int64) - (zero.reshape(shape) if np.ndim(zero) else zero)) * scale.reshape(shape), np.float32)

    def seen(self, tensor: str) -> str:
        """The value in which readers of the same precision see `tensor`."""
        if tensor in self.outputs:
            return tensor
        return self.by_raw[tensor].stored if tensor in self.by_raw and len(self.readers.get(tensor, ())) == 1 else tensor

    def scale_of(self, value: str) -> float | None:
        """Scale of the codes of a stored value."""
        return self.by_stored[value].scale if value in self.by_stored else None

    def _points(self) -> Iterable[Point]:
        for i, n in enumerate(self.nodes):
            if n.op_type != "QuantizeLinear" or n.input[0] in self.constants:
                continue
            scale = self.value(n.input[1])
            zero = self.value(n.input[2]) if len(n.input) > 2 else np.zeros((), np.uint8)
            back = [self.nodes[r] for r in self.readers.get(n.output[0], ()) if self.nodes[r].op_type == "DequantizeLinear"]
            if scale is None or zero is None or scale.size != 1 or not back or zero.dtype.kind not in "iu":
                continue
            yield Point(i, n.input[0], back[0].output[0], n.input[1], float(scale.reshape(-1)[0]), int(np.reshape(zero, -1)[0]), str(zero.dtype))

    def _products(self) -> Iterable[Product]:
        for i, n in enumerate(self.nodes):
            source = self.by_stored.get(n.input[0]) or self.given.get(n.input[0]) if n.input else None
            if n.op_type not in PRODUCTS or source is None or n.input[1] not in self.maker:
                continue
            weight = self.nodes[self.maker[n.input[1]]]
            scale = self.value(weight.input[1]) if weight.op_type == "DequantizeLinear" else None
            if scale is None or scale.ndim > 1:
                continue
            unit = np.asarray(scale * np.float32(source.scale), np.float32)
            shape = (1, -1, 1, 1) if n.op_type.startswith("Conv") and unit.ndim else unit.shape
            if n.op_type.startswith("Conv") and self._rank(n) != 4 and unit.ndim:
                shape = (1, -1, *[1] * (self._rank(n) - 2))
            bias = self.value(n.input[2]) if len(n.input) > 2 and n.input[2] else None
            if n.op_type.startswith("Conv") and bias is not None:
                bias = bias.reshape(1, -1, *[1] * (self._rank(n) - 2))
            yield Product(i, n.name or n.output[0], n.output[0], unit.reshape(shape), bias)

    def _rank(self, node: onnx.NodeProto) -> int:
        """Of a convolution: that of its weights."""
        weight = self.nodes[self.maker[node.input[1]]]
        return len(self.constants[weight.input[0]].dims) if weight.input[0] in self.constants else 4


def _axis(node: onnx.NodeProto) -> int:
    return next((int(a.i) for a in node.attribute if a.name == "axis"), 1)


def _along(scale: Array, rank: int, axis: int) -> tuple[int, ...]:
    return tuple(scale.size if a == axis % rank else 1 for a in range(rank)) if scale.ndim == 1 and scale.size > 1 else ()


def part(graph: Graph, known: Collection[str], wanted: Sequence[str]) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The model between tensors that are known and the wanted ones, and which of the known it reads. `wanted` themselves are computed."""
    needed: set[int] = set()
    reads: dict[str, None] = {}
    stack = [(name, True) for name in wanted]
    visited: set[str] = set()
    while stack:
        name, first = stack.pop()
        if not name or (name in visited and not first) or name in graph.constants:
            continue
        visited.add(name)
        if (name in known and not first) or name in graph.inputs:
            reads[name] = None
            continue
        if graph.maker[name] not in needed:
            needed.add(graph.maker[name])
            node = graph.nodes[graph.maker[name]]
            stack += [(n, False) for n in (*node.input, *_captured(node))]
    nodes = [graph.nodes[i] for i in sorted(needed)]
    used = {n for node in nodes for n in (*node.input, *_captured(node))}
    declared = {i.name: i for i in graph.model.graph.input}
    inputs = [declared.get(n) or helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in reads]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in wanted]
    body = helper.make_graph(nodes, "part", inputs, outputs, [c for n, c in graph.constants.items() if n in used])
    made = helper.make_model(body, opset_imports=list(graph.model.opset_import), ir_version=graph.model.ir_version, functions=list(graph.model.functions))
    return made, tuple(reads)


def _captured(node: onnx.NodeProto) -> Iterable[str]:
    """Names that sub-graphs of If and Loop read from outside."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            made = {o for n in attribute.g.node for o in n.output} | {i.name for i in (*attribute.g.input, *attribute.g.initializer)}
            for n in attribute.g.node:
                yield from (x for x in (*n.input, *_captured(n)) if x and x not in made)
            yield from (o.name for o in attribute.g.output if o.name not in made)


def laid_open(graph: Graph, names: Sequence[str]) -> onnx.ModelProto:
    """A copy that also puts out the float values `names`."""
    copy = onnx.ModelProto()
    copy.CopyFrom(graph.model)
    for name in dict.fromkeys(names):
        if name in graph.maker and name not in graph.outputs:
            copy.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return copy
