"""What rewrites ask of a graph, and the few nodes whose form depends on the operator set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qbench.graph.attributes import ints, whole

Array = NDArray[Any]
AXES_AS_INPUT = {"ReduceSum": 13}
"""Operator set since which a reduction reads its axes from an input; 18 for the others."""


def node_of(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node


def source(y: ir.Value, index: int = 0) -> ir.Value | None:
    """Input `index` of the node that makes `y`; None where it is left out."""
    inputs = node_of(y).inputs
    return inputs[index] if index < len(inputs) else None


def opset(y: ir.Value) -> int:
    graph = node_of(y).graph
    return int(graph.opset_imports.get("", 0)) if graph is not None else 0


def shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Static sizes; None where one is not known."""
    found: Any = value.shape if value is not None else None
    return tuple(found) if found is not None and all(isinstance(d, int) for d in found) else None


def data(value: ir.Value | None) -> Array | None:
    """Of a constant."""
    held = value.const_value if value is not None else None
    return None if held is None or held.dtype == ir.DataType.STRING else np.asarray(held.numpy())


def number(value: ir.Value | None) -> float | None:
    """Of a constant with one element."""
    held = data(value)
    return float(held.reshape(-1)[0]) if held is not None and held.size == 1 else None


def is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)


def attributes(node: ir.Node) -> dict[str, Any]:
    """Of numbers and texts, as keyword arguments for a new node."""
    return {name: a.value for name, a in node.attributes.items()}


def axis_of(node: ir.Node, rank: int, default: int) -> int:
    axis = whole(node, "axis", default)
    return axis + rank if axis < 0 else axis


def constant(op: Any, values: Any, like: ir.Value | None = None, name: str = "const") -> ir.Value:
    """A new initializer: of the type of `like`, else as numpy has it."""
    array = np.asarray(values)
    if like is not None and like.dtype is not None:
        array = array.astype(like.dtype.numpy())
    made: ir.Value = op.initializer(ir.tensor(array, name=name), name=name)
    return made


def indices(op: Any, values: Sequence[int], name: str = "indices") -> ir.Value:
    return constant(op, np.array(values, np.int64), name=name)


def reduced(op: Any, kind: str, x: ir.Value, axes: Sequence[int], keepdims: int, version: int) -> ir.Value:
    """A ReduceMean, ReduceSum, ... in the form of operator set `version`."""
    made: ir.Value = (getattr(op, kind)(x, indices(op, axes, "axes"), keepdims=keepdims) if version >= AXES_AS_INPUT.get(kind, 18)
                      else getattr(op, kind)(x, axes=list(axes), keepdims=keepdims))
    return made


def reduced_axes(node: ir.Node) -> tuple[int, ...] | None:
    """Axes of a reduction, counted from the front; None where they are computed or the rank is unknown."""
    sizes = shape(node.inputs[0])
    if sizes is None:
        return None
    given: Sequence[int] | None = None
    if "axes" in node.attributes:
        given = ints(node, "axes", ())
    elif len(node.inputs) > 1 and node.inputs[1] is not None:
        held = data(node.inputs[1])
        if held is None:
            return None
        given = [int(i) for i in held.reshape(-1)]
    if not given:
        return None if whole(node, "noop_with_empty_axes", 0) else tuple(range(len(sizes)))
    return tuple(sorted(a % len(sizes) for a in given))


def sliced(op: Any, x: ir.Value, axis: int, start: int, end: int, step: int = 1) -> ir.Value:
    extra = (indices(op, [step], "steps"),) if step != 1 else ()
    made: ir.Value = op.Slice(x, indices(op, [start], "starts"), indices(op, [end], "ends"), indices(op, [axis], "axes"), *extra)
    return made


def slice_of(node: ir.Node) -> dict[int, tuple[int, int, int]] | None:
    """axis -> (start, end, step) of a Slice with constant bounds, clamped to the axis; None otherwise."""
    sizes = shape(node.inputs[0])
    parts = [data(v) if v is not None else None for v in (*node.inputs[1:], *(None,) * 4)][:4]
    if sizes is None or parts[0] is None or parts[1] is None:
        return None
    if any(v is not None and data(v) is None for v in node.inputs[1:]):
        return None
    starts, ends = ([int(i) for i in p.reshape(-1)] for p in parts[:2] if p is not None)
    axes = [int(i) % len(sizes) for i in parts[2].reshape(-1)] if parts[2] is not None else list(range(len(starts)))
    steps = [int(i) for i in parts[3].reshape(-1)] if parts[3] is not None else [1] * len(starts)
    found = {}
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step < 1:
            return None
        low, high, _ = slice(start, end, step).indices(sizes[axis])
        found[axis] = (low, max(low, high), step)
    return found
