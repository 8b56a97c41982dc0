"""Operators with weights, seen alike: weights as [groups, inputs, outputs, taps], their bias wherever it sits."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qbench.graph.attributes import whole
from qbench.graph.kernels import constant
from qbench.graph.operators import ANCHORS

Array = NDArray[Any]


@dataclass(frozen=True)
class Bias:
    """Where the bias of an anchor is: input `index` of `node`, whose constant is `value`."""

    node: ir.Node
    index: int
    value: ir.Value


@dataclass(frozen=True)
class Anchor:
    """One Conv, ConvTranspose, Gemm or MatMul with a constant float weight.

    groups    of a convolution; 1 otherwise
    inputs, outputs   channels, of all groups
    bias      None when it has none
    output    the tensor that holds weights times input plus bias
    """

    node: ir.Node
    weight: ir.Value
    groups: int
    inputs: int
    outputs: int
    bias: Bias | None
    output: ir.Value

    @property
    def name(self) -> str:
        return str(self.node.name)

    @property
    def op(self) -> str:
        return self.node.op_type

    @property
    def channel_axis(self) -> int:
        """Of the output tensor; negative: counted from the end."""
        return 1 if self.op in ("Conv", "ConvTranspose") else -1

    def per_channel(self, values: Array) -> Array:
        """[outputs], shaped so that it adds to the output tensor channel by channel."""
        axes = data_of(self.weight).ndim - 2 if self.channel_axis == 1 else 0
        return values.reshape(-1, *[1] * axes)

    def mean_of_channels(self, output: Array) -> Array:
        """Mean of each channel of the output tensor, float64 [outputs]."""
        return np.asarray(np.moveaxis(output, self.channel_axis, 0).reshape(self.outputs, -1).mean(axis=1, dtype=np.float64))

    def canonical(self, data: Array) -> Array:
        """The weight, or an array of its shape, as [groups, inputs / groups, outputs / groups, taps]."""
        g = self.groups
        if self.op == "Conv":
            return data.reshape(g, self.outputs // g, self.inputs // g, -1).transpose(0, 2, 1, 3)
        if self.op == "ConvTranspose":
            return data.reshape(g, self.inputs // g, self.outputs // g, -1)
        return (data.T if self._transposed else data).reshape(1, self.inputs, self.outputs, 1)

    def original(self, data: Array) -> Array:
        """The inverse of `canonical`."""
        shape = data_of(self.weight).shape
        if self.op == "Conv":
            return np.ascontiguousarray(data.transpose(0, 2, 1, 3)).reshape(shape)
        if self.op == "ConvTranspose":
            return np.ascontiguousarray(data).reshape(shape)
        flat = data.reshape(self.inputs, self.outputs)
        return np.ascontiguousarray(flat.T if self._transposed else flat)

    @property
    def _transposed(self) -> bool:
        return self.op == "Gemm" and bool(whole(self.node, "transB", 0))


def anchor_of(node: ir.Node) -> Anchor | str:
    """`node` as an anchor, or the reason why it is none."""
    if node.op_type not in ANCHORS or node.domain not in ("", "ai.onnx"):
        return f"{node.op_type} has no weights"
    weight = node.inputs[1]
    if weight is None or not constant(weight) or weight.dtype != ir.DataType.FLOAT:
        return "its second operand is not a constant float weight"
    shape = tuple(int(d) for d in data_of(weight).shape)
    if node.op_type in ("Gemm", "MatMul") and len(shape) != 2:
        return f"its weight has {len(shape)} axes"
    if node.op_type == "Gemm" and whole(node, "transA", 0):
        return "it reads its input transposed"
    groups = whole(node, "group", 1) if node.op_type in ("Conv", "ConvTranspose") else 1
    if node.op_type == "Conv":
        inputs, outputs = shape[1] * groups, shape[0]
    elif node.op_type == "ConvTranspose":
        inputs, outputs = shape[0], shape[1] * groups
    else:
        inputs, outputs = shape[::-1] if node.op_type == "Gemm" and whole(node, "transB", 0) else shape
    bias, output = _bias(node, outputs)
    return Anchor(node, weight, groups, inputs, outputs, bias, output)


def anchors(graph: ir.Graph) -> dict[str, Anchor]:
    """Node name -> anchor, for every one of the graph."""
    found = {str(n.name): anchor_of(n) for n in graph if n.op_type in ANCHORS}
    return {name: a for name, a in found.items() if isinstance(a, Anchor)}


def _bias(node: ir.Node, outputs: int) -> tuple[Bias | None, ir.Value]:
    """The bias input; for a MatMul the constant of the Add behind it."""
    out = node.outputs[0]
    if node.op_type != "MatMul":
        value = node.inputs[2] if len(node.inputs) > 2 else None
        return (Bias(node, 2, value) if value is not None and constant(value) else None), out
    reader = only_reader(out)
    if reader is not None and reader.op_type == "Add":
        for index, value in enumerate(reader.inputs):
            if value is not None and constant(value) and is_per_channel(data_of(value).shape, outputs):
                return Bias(reader, index, value), reader.outputs[0]
    return None, out


def is_per_channel(shape: tuple[int, ...], channels: int) -> bool:
    """True for [channels], [1, channels], [1, 1, channels] ..."""
    return len(shape) > 0 and shape[-1] == channels and prod(shape) == channels


def only_reader(value: ir.Value) -> ir.Node | None:
    """The single node that reads `value`, once; None when there are several or it leaves the graph."""
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output():
        return None
    node: ir.Node = uses[0][0]
    return node if node.graph is value.graph else None


def data_of(value: ir.Value) -> Array:
    """The data of a constant."""
    assert value.const_value is not None
    return value.const_value.numpy()


def set_data(value: ir.Value, data: Array) -> None:
    """Give an initializer new values of the same type and shape."""
    value.const_value = ir.tensor(np.asarray(data, order="C"), name=value.name)
