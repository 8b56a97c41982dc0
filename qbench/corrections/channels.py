"""From one layer with weights to the next, through operators that pass a channel's scale on unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from qbench.corrections.anchors import Anchor, data_of, only_reader
from qbench.graph.attributes import ints, text, whole
from qbench.graph.kernels import constant

Shape = tuple[int, ...]

ELEMENTWISE = {"Relu", "LeakyRelu", "PRelu", "Dropout", "Identity"}
"""f(s x) = s f(x) for every s > 0, value by value."""

SPATIAL = {"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Pad", "Resize"}
"""The same, channel by channel, when axis 1 is that of the channels."""

RESHAPING = {"Flatten", "Reshape", "Squeeze", "Unsqueeze"}


@dataclass(frozen=True)
class Pair:
    """Channel c of `first` is read by `second` as its inputs c * repeat to (c + 1) * repeat - 1, and by nobody else."""

    first: Anchor
    second: Anchor
    repeat: int


def pairs(found: Mapping[str, Anchor], shapes: Mapping[str, Shape]) -> tuple[list[Pair], dict[str, str]]:
    """Every pair of anchors, in graph order, and anchor name -> why it leads no pair.

    found    of `anchors`
    shapes   static shape of each activation tensor
    """
    made, reasons = [], {}
    for anchor in found.values():
        if why := _not_its_own(anchor):
            reasons[anchor.name] = why
            continue
        reached = _follow(anchor, found, shapes)
        if isinstance(reached, str):
            reasons[anchor.name] = reached
        elif why := _not_its_own(reached.second):
            reasons[anchor.name] = f"{reached.second.name!r} reads it, but {why}"
        else:
            made.append(reached)
    return made, reasons


def _not_its_own(anchor: Anchor) -> str:
    """Why the anchor's constants must not be changed, or ""."""
    if len(list(anchor.weight.uses())) > 1:
        return f"its weight {anchor.weight.name!r} is shared"
    bias = anchor.bias
    if bias is not None and len(list(bias.value.uses())) > 1:
        return f"its bias {bias.value.name!r} is shared"
    if bias is not None and prod(data_of(bias.value).shape) != anchor.outputs:
        return f"its bias {bias.value.name!r} is not one value a channel"
    if bias is None and anchor.op == "Gemm" and len(anchor.node.inputs) > 2 and anchor.node.inputs[2] is not None:
        return "its bias is not a constant"
    return ""


def _follow(first: Anchor, found: Mapping[str, Anchor], shapes: Mapping[str, Shape]) -> Pair | str:
    """The pair that `first` leads, or why there is none."""
    value, repeat = first.output, 1
    axis = first.channel_axis % max(len(shapes.get(str(value.name), ())), 1)
    while True:
        node = only_reader(value)
        if node is None:
            readers = len(list(value.uses()))
            return f"{value.name!r} leaves the network" if value.is_graph_output() else f"{readers} operators read {value.name!r}"
        if str(node.name) in found:
            return _ends(first, found[str(node.name)], value, axis, shapes, repeat)
        here, there = shapes.get(str(value.name), ()), shapes.get(str(node.outputs[0].name), ())
        if why := _blocks(node, value, axis, here, there):
            return why
        if node.op_type in RESHAPING:
            repeat *= prod(here[2:]) // prod(there[2:])
        elif node.op_type == "ReduceMean":
            axis = 1
        value = node.outputs[0]


def _ends(first: Anchor, second: Anchor, value: ir.Value, axis: int, shapes: Mapping[str, Shape], repeat: int) -> Pair | str:
    rank = len(shapes.get(str(value.name), ()))
    if second.node.inputs[0] is not value or axis != second.channel_axis % max(rank, 1):
        return f"{second.name!r} reads it along another axis"
    if second.inputs != first.outputs * repeat:
        return f"{second.name!r} reads {second.inputs} channels of its {first.outputs}"
    return Pair(first, second, repeat)


def _blocks(node: ir.Node, value: ir.Value, axis: int, here: Shape, there: Shape) -> str:
    """Why a channel's scale does not pass `node`, or ""."""
    op = node.op_type
    name = f"{op} {node.name!r}"
    if node.domain not in ("", "ai.onnx") or node.inputs[0] is not value or not here or not there:
        return f"{name} comes after it"
    if len(node.outputs) > 1 and any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
        return f"{name} has several outputs"
    if op == "Clip":
        return _clip(node, name)
    if op in ELEMENTWISE:
        return "" if op != "PRelu" or constant(node.inputs[1]) else f"the slope of {name} is not a constant"
    if op in SPATIAL:
        return _spatial(node, name) if axis == 1 and here[:2] == there[:2] else f"{name} mixes its channels"
    if op in RESHAPING:
        same = axis == 1 and len(here) >= 2 and len(there) >= 2 and here[0] == there[0] and (
            (there[:2] == here[:2] and prod(there) == prod(here) and (len(here) == 2 or prod(here[2:]) == 1))
            or there == (here[0], prod(here[1:])))
        return "" if same else f"{name} moves its channels"
    if op == "ReduceMean":
        return "" if axis == 1 and _all_spatial(node, len(here)) else f"{name} mixes its channels"
    return f"{name} comes after it, which does not pass a scale on"


def _clip(node: ir.Node, name: str) -> str:
    """Clip(0, infinity) is a Relu; any other bound is not scaled along."""
    held = [data_of(v) if v is not None and constant(v) else None for v in node.inputs[1:3]]
    low = held[0] if held else None
    if low is None or low.size != 1 or float(low.reshape(-1)[0]) != 0.0:
        return f"{name} does not clamp at 0"
    given = len(node.inputs) > 2 and node.inputs[2] is not None
    high = held[1] if given else np.array(np.inf)
    if high is None or not float(high.reshape(-1)[0]) >= float(np.finfo(np.float32).max):
        shown = "an activation" if high is None else f"{float(high.reshape(-1)[0]):g}"
        return f"{name} clamps at {shown}: a rescaled channel would be cut elsewhere"
    return ""


def _spatial(node: ir.Node, name: str) -> str:
    if node.op_type == "Pad" and text(node, "mode", "constant") == "constant" and len(node.inputs) > 2 and node.inputs[2] is not None:
        fill = node.inputs[2]
        if not constant(fill) or np.any(data_of(fill) != 0):
            return f"{name} fills with something else than 0"
    if node.op_type == "Resize" and text(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        return f"{name} extrapolates"
    return ""


def _all_spatial(node: ir.Node, rank: int) -> bool:
    """True when a ReduceMean goes over axes 2 and up, all of them."""
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        axes = [int(a) for a in data_of(node.inputs[1]).reshape(-1)] if constant(node.inputs[1]) else []
    else:
        axes = list(ints(node, "axes", []))
    return rank > 2 and sorted(a % rank for a in axes) == list(range(2, rank)) and whole(node, "noop_with_empty_axes", 0) == 0
