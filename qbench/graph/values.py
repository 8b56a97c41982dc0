"""Questions about the values of a graph that several parts ask: which are constants, which are read, which are only moved."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qbench.graph import operators as ops
from qbench.network import TensorSpec

Array = NDArray[Any]
STANDARD = ("", "ai.onnx")
"""Names of ONNX's own domain."""
MARK = 50.0
"""A larger constant that a Where puts in the place of values is a mark (masked logits, invalid points). Those in front of a Softmax are made
smaller by the correction "mask", and are values then."""
JOINED_MARK = 5000.0
"""The same of a constant that a Concat joins to values, where it is more often one of them (anchors, positions)."""


def is_float(tensor: TensorSpec | None) -> bool:
    return tensor is not None and tensor.dtype == "float32"


def constant(value: ir.Value | None) -> bool:
    return value is not None and (value.is_initializer() or value.const_value is not None)


def held(value: ir.Value | None) -> Array | None:
    """The data of a float32 constant; None for anything else."""
    found = value.const_value if value is not None else None
    return found.numpy() if found is not None and found.dtype == ir.DataType.FLOAT else None


def single(value: ir.Value | None) -> float | None:
    """The number that a constant of one element holds, of whatever type (exponents are integers at times); None for anything else."""
    found = value.const_value if value is not None else None
    if found is None or found.size != 1 or found.dtype == ir.DataType.STRING:
        return None
    return float(found.numpy().reshape(-1)[0])


def bodies(node: ir.Node) -> list[ir.Graph]:
    """The sub-graphs of an If, Loop or Scan."""
    found: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            found.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            found += attribute.as_graphs()
    return found


def captured(graph: ir.Graph) -> list[ir.Value]:
    """Values of outer graphs that `graph`, a body, reads, those its own bodies read included."""
    inside = {id(v) for v in graph.inputs} | {id(v) for n in graph for v in n.outputs}
    reads = [v for n in graph for v in n.inputs] + list(graph.outputs) + [v for n in graph for b in bodies(n) for v in captured(b)]
    mine = {id(v) for v in graph.initializers.values()}
    return [v for v in reads if v is not None and id(v) not in inside and id(v) not in mine]


def activations_of(node: ir.Node) -> list[str]:
    """Names of the non-constant tensors that `node` reads, those its bodies capture included."""
    reads = [*node.inputs, *(v for b in bodies(node) for v in captured(b))]
    return list(dict.fromkeys(str(v.name) for v in reads if v is not None and v.name and not constant(v)))


def sizes(value: ir.Value | None) -> tuple[int, ...]:
    """Shape of a value of the static twin; an axis that stayed open counts as 1."""
    if value is None or value.shape is None:
        return ()
    return tuple(int(d) if isinstance(d, int) else 1 for d in value.shape)


def moves_values(node: ir.Node) -> bool:
    """True when every output value is one of the input values, so that one scale serves both sides."""
    if node.domain not in STANDARD:
        return False
    if node.op_type == "Resize":
        mode = node.attributes.get("mode")
        return (mode.as_string() if mode is not None else "nearest") == "nearest"
    if node.op_type == "Pad":
        mode = node.attributes.get("mode")
        if mode is not None and mode.as_string() != "constant":
            return True
        fill = node.inputs[2] if len(node.inputs) > 2 else None
        number = 0.0 if fill is None else single(fill)
        return number == 0.0 or (number is not None and number < -MARK and _only_for_maxima(node))
    if node.op_type in ops.JOINS:
        return mark_of(node) is None
    return node.op_type in ops.SAME_SCALE


def _only_for_maxima(pad: ir.Node) -> bool:
    """True when a MaxPool is all that reads a Pad, and each of its windows holds a value: the lowest code is as good there as anything below."""
    out, pads = pad.outputs[0], pad.inputs[1].const_value if len(pad.inputs) == 3 and pad.inputs[1] is not None else None
    readers = [n for n, _ in out.uses()]
    if pads is None or not readers or out.is_graph_output() or any(n.op_type != "MaxPool" or n.domain not in STANDARD for n in readers):
        return False
    most = pads.numpy().reshape(2, -1).max(axis=0)
    windows = [[1, 1, *n.attributes["kernel_shape"].as_ints()] for n in readers]
    return all(len(w) == len(most) and (most < np.array(w)).all() for w in windows)


def mark_of(node: ir.Node) -> ir.Value | None:
    """The constant of a Where or Concat that is none of the values beside it: infinity, NaN, or larger than MARK; in a Concat, than JOINED_MARK."""
    most = MARK if node.op_type == "Where" else JOINED_MARK
    for value in moved_inputs(node) if node.op_type in ops.JOINS else ():
        data = held(value)
        if data is not None and not (np.abs(data) <= most).all():
            return value
    return None


def moved_inputs(node: ir.Node) -> list[ir.Value]:
    """The inputs whose values an operator that moves them hands on; the others are shapes, indices or conditions."""
    found = node.inputs if node.op_type == "Concat" else node.inputs[1:3] if node.op_type == "Where" else node.inputs[:1]
    return [v for v in found if v is not None]


def infinite(data: Array) -> bool:
    """True when a value is infinite or NaN; looks at pieces, so that no copy of a large weight is made."""
    flat = data.reshape(-1)
    return any(not np.isfinite(flat[i:i + (1 << 22)]).all() for i in range(0, flat.size, 1 << 22))
