"""Which axis of a tensor counts its channels, and which tensors brought which channels into a Concat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from qbench.graph.attributes import ints, whole
from qbench.graph.kernels import constant
from qbench.graph.operators import ACTIVATIONS, ELEMENTWISE

KEEPS_AXES = ACTIVATIONS | ELEMENTWISE | {"Identity", "Dropout", "Cast", "Pad", "Softmax", "LogSoftmax", "Erf", "Sqrt", "Pow", "Exp", "Log",
                                         "BatchNormalization", "LayerNormalization", "InstanceNormalization", "GroupNormalization"}
"""Operators whose output axes mean what those of their input of the same rank mean."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Channels [start, stop) of a tensor, and the tensor that they came from."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """axis       tensor -> its channel axis; absent: axis 1 of tensors with two axes or more
    segments      tensor -> what entered the Concat that it is, or that it follows from value by value
    """

    axis: Mapping[str, int]
    segments: Mapping[str, tuple[Segment, ...]]

    def axis_of(self, tensor: str, rank: int) -> int | None:
        """None for tensors of one axis, or none."""
        if rank < 2:
            return None
        axis = self.axis.get(tensor, 1)
        return axis if 0 < axis < rank else 1


def layout_of(model: ir.Model) -> Layout:
    """Channel axes follow from the operators: axis 1, the last one behind a MatMul, the joined one behind a Concat.

    model   with static shapes
    """
    axes: dict[str, int] = {}
    segments: dict[str, tuple[Segment, ...]] = {}
    for node in model.graph:
        out = node.outputs[0] if node.outputs else None
        if out is None or not out.name:
            continue
        name, rank = str(out.name), _rank(out)
        if node.op_type == "MatMul" and rank > 2:
            axes[name] = rank - 1
        elif node.op_type == "Concat":
            axes[name] = whole(node, "axis", 1) % max(rank, 1)
            if found := _entering(node, axes[name]):
                segments[name] = found
        elif node.op_type == "Transpose":
            _follow_transpose(node, name, rank, axes, segments)
        elif node.op_type in KEEPS_AXES:
            source = next((str(v.name) for v in node.inputs if v is not None and not constant(v) and _rank(v) == rank), None)
            if source is not None and source in axes:
                axes[name] = axes[source]
            if source is not None and source in segments and _length(out, axes.get(name, 1)) == segments[source][-1].stop:
                segments[name] = segments[source]
    return Layout(axes, segments)


def _rank(value: ir.Value) -> int:
    return len(value.shape) if value.shape is not None else 0


def _length(value: ir.Value, axis: int) -> int:
    """Size along `axis`; -1 when it is unknown."""
    size = value.shape[axis] if value.shape is not None and axis < len(value.shape) else None
    return size if isinstance(size, int) else -1


def _entering(node: ir.Node, axis: int) -> tuple[Segment, ...]:
    """One segment an input; () when a length is unknown."""
    found: list[Segment] = []
    start = 0
    for value in node.inputs:
        length = _length(value, axis) if value is not None else -1
        if value is None or length < 0:
            return ()
        found.append(Segment(str(value.name), start, start + length))
        start += length
    return tuple(s for s in found if s.stop > s.start)


def _follow_transpose(node: ir.Node, out: str, rank: int, axes: dict[str, int], segments: dict[str, tuple[Segment, ...]]) -> None:
    source = str(node.inputs[0].name) if node.inputs and node.inputs[0] is not None else ""
    order = ints(node, "perm", range(rank)[::-1])
    before = axes.get(source, 1)
    if before not in order or order.index(before) == 0:
        return
    axes[out] = order.index(before)
    if source in segments:
        segments[out] = segments[source]
