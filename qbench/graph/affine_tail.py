"""Constants added or multiplied channel by channel behind a convolution become part of it, also behind a Transpose.

Exporters from channels-last frameworks write Conv, Transpose, Add(bias): left alone, the sum without its bias gets a scale of
its own, and the Add costs a kernel. Exact but for the order of one addition.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qbench.graph.attributes import ints, whole
from qbench.graph.transposed import only_source
from qbench.graph.values import STANDARD, held

Array = NDArray[Any]


def fold_affine_tails(model: ir.Model) -> None:
    """In place, as often as one follows the other."""
    graph = model.graph
    folded = True
    while folded:
        folded = any(_fold(node, graph) for node in list(graph) if node.op_type in ("Add", "Sub", "Mul") and node.domain in STANDARD)


def _fold(node: ir.Node, graph: ir.Graph) -> bool:
    if node.graph is None:
        return False
    first, second = node.inputs
    constant = held(second)
    source = first
    if constant is None and node.op_type != "Sub":
        constant, source = held(first), second
    if constant is None or source is None:
        return False
    moved = only_source(source, "Transpose")
    conv = only_source(source if moved is None else moved.inputs[0], "Conv", "ConvTranspose")
    if conv is None:
        return False
    rank = len(source.shape) if source.shape is not None else 0
    perm = _perm(moved, rank)
    axis = perm.index(1) if 1 in perm else -1
    values = _per_channel(constant, rank, axis, _channels(conv))
    if values is None or not np.isfinite(values).all() or not _take(conv, graph, node.op_type, values):
        return False
    _drop(node, source, graph)
    return True


def _perm(moved: ir.Node | None, rank: int) -> list[int]:
    return list(range(rank) if moved is None else ints(moved, "perm", range(rank)[::-1]))


def _channels(conv: ir.Node) -> int:
    """Output channels; 0 when the weights are not constant."""
    value = conv.inputs[1]
    weight = value.const_value if value is not None else None
    if weight is None or weight.dtype != ir.DataType.FLOAT:
        return 0
    shape = weight.shape.numpy()
    return int(shape[0] if conv.op_type == "Conv" else shape[1] * whole(conv, "group", 1))


def _per_channel(values: Array, rank: int, axis: int, channels: int) -> Array | None:
    """float32 [channels] when `values` broadcasts over all axes but `axis`, which counts channels; None otherwise."""
    if not channels or axis < 0 or values.ndim > rank or values.size not in (1, channels):
        return None
    shape = (1,) * (rank - values.ndim) + values.shape
    if any(size != 1 for i, size in enumerate(shape) if i != axis):
        return None
    return np.array(np.broadcast_to(values.reshape(-1), channels), np.float32)


def _take(conv: ir.Node, graph: ir.Graph, operator: str, values: Array) -> bool:
    """Give weights and bias of `conv` the constants. False when its bias is not constant, or its weights serve another node too."""
    weight, has_bias = conv.inputs[1], len(conv.inputs) > 2 and conv.inputs[2] is not None
    bias = held(conv.inputs[2]) if has_bias else np.zeros_like(values)
    if bias is None or weight is None:
        return False
    name = str(weight.name)
    if operator == "Mul":
        shared = len(list(weight.uses())) > 1 or isinstance(weight.const_value, ir.ExternalTensor)
        data = None if shared or (conv.op_type == "ConvTranspose" and whole(conv, "group", 1) > 1) else held(weight)
        if data is None:
            return False
        shape = [1] * data.ndim
        shape[0 if conv.op_type == "Conv" else 1] = -1
        conv.replace_input_with(1, _initializer(graph, f"{name}_scaled", data * values.reshape(shape)))
        new = bias * values
    else:
        new = bias + values if operator == "Add" else bias - values
    if operator == "Mul" and not has_bias:
        return True
    if len(conv.inputs) < 3:
        conv.resize_inputs(3)
    conv.replace_input_with(2, _initializer(graph, f"{name}_bias", new.astype(np.float32)))
    return True


def _initializer(graph: ir.Graph, name: str, data: Array) -> ir.Value:
    taken = set(graph.initializers) | {v.name for n in graph for v in n.outputs} | {v.name for v in graph.inputs}
    stem, number = name, 0
    while name in taken:
        number += 1
        name = f"{stem}_{number}"
    value = ir.Value(name=name, const_value=ir.tensor(data, name=name), type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(data.shape))
    graph.register_initializer(value)
    return value


def _drop(node: ir.Node, source: ir.Value, graph: ir.Graph) -> None:
    """Take `node` out; what it made keeps its name."""
    out = node.outputs[0]
    name, leads_out = out.name, out.is_graph_output()
    ir.convenience.replace_all_uses_with(out, source, replace_graph_outputs=True)
    source.shape, source.type = source.shape if source.shape is not None else out.shape, source.type or out.type
    graph.remove(node, safe=True)
    if leads_out:
        source.name = name
