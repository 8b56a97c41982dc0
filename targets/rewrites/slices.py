"""Slices, splits and gathers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from qbench.graph.attributes import whole
from qbench.rewriting import Exactness
from qbench.targets.rewrites.registry import rewrite
from qbench.targets.rewrites.values import axis_of, data, indices, is_float, node_of, shape, slice_of, sliced, source

SPLIT_BUG = "rknn-toolkit2 2.5.0 stops with an IndexError (_p_seperate_conv_rs_split) where Slices follow the Softmax, Conv and Reshape of a box decode (DFL)"


@rewrite("slice-step-to-pool", "Slice", becomes="MaxPool k=1 of that stride", exactness=Exactness.E)
def slice_step_to_pool(op: Any, y: ir.Value) -> ir.Value | None:
    """A Slice with steps in height or width becomes a MaxPool of kernel 1 and that stride, behind a Slice of step 1 where it starts later."""
    node, x = node_of(y), source(y)
    parts, sizes = slice_of(node), shape(x)
    if x is None or parts is None or sizes is None or len(sizes) != 4 or not is_float(x):
        return None
    strides = [parts.get(axis, (0, 0, 1))[2] for axis in (2, 3)]
    if strides == [1, 1] or any(step != 1 for axis, (_, _, step) in parts.items() if axis < 2) or any(a >= b for a, b, _ in parts.values()):
        return None
    cut: Any = x
    for axis, (start, end, _) in parts.items():
        if (start, end) != (0, sizes[axis]):
            cut = sliced(op, cut, axis, start, end)
    made: ir.Value = op.MaxPool(cut, kernel_shape=[1, 1], strides=strides)
    return made


@rewrite("slice-before-reshape", "Slice", becomes="Slice of the Conv's output, then Reshape", exactness=Exactness.E, hazards={"rknn": SPLIT_BUG})
def slice_before_reshape(op: Any, y: ir.Value) -> ir.Value | None:
    """A Slice behind the Reshape of a box decode (YOLOv8 and later: Softmax, Conv, Reshape) moves in front of that Reshape, which only drops or
    adds axes of one element."""
    node = node_of(y)
    reshape = node.inputs[0].producer() if node.inputs[0] is not None else None
    x = reshape.inputs[0] if reshape is not None and reshape.op_type in ("Reshape", "Squeeze", "Unsqueeze") else None
    conv = x.producer() if x is not None else None
    fed = conv.inputs[0].producer() if conv is not None and conv.inputs[0] is not None else None
    before, after, parts, out = shape(x), shape(node.inputs[0]), slice_of(node), shape(y)
    if (fed is None or fed.op_type != "Softmax" or x is None or before is None or after is None or parts is None or out is None or conv is None or conv.op_type != "Conv"
            or [d for d in before if d != 1] != [d for d in after if d != 1]):
        return None
    places, kept = [i for i, d in enumerate(before) if d != 1], [i for i, d in enumerate(after) if d != 1]
    if any(axis not in kept for axis in parts):
        return None
    made: Any = x
    for axis, (start, end, step) in parts.items():
        made = sliced(op, made, places[kept.index(axis)], start, end, step)
    result: ir.Value = op.Reshape(made, indices(op, out, "sizes"))
    return result


def _focus(op: Any, x: Any) -> Any:
    return op.Concat(*[op.Slice(x, _allow_other_inputs=True, _outputs=[f"s{i}"]) for i in range(4)], _outputs=["y"])


@rewrite("focus-to-spacetodepth", "Slice", "Concat", becomes="SpaceToDepth, and a Gather of channels where their order differs", exactness=Exactness.E,
         pattern=[lambda op, x: _focus(op, x)], speeds=True)
def focus_to_spacetodepth(op: Any, y: ir.Value, x: ir.Value, **slices: ir.Value) -> ir.Value | None:
    """Four Slices of step 2 joined by a Concat (the Focus layer of YOLOv5) become SpaceToDepth, with the blocks put in order behind it."""
    sizes, parts = shape(x), [slice_of(node_of(slices[f"s{i}"])) for i in range(4)]
    if sizes is None or len(sizes) != 4 or sizes[2] % 2 or sizes[3] % 2 or whole(node_of(y), "axis", 1) % 4 != 1:
        return None
    order = []
    for part in parts:
        if part is None or any(axis < 2 for axis in part):
            return None
        (top, bottom, down), (left, right, along) = (part.get(axis, (0, sizes[axis], 1)) for axis in (2, 3))
        if (down, along) != (2, 2) or top > 1 or left > 1 or bottom < sizes[2] - 1 + top or right < sizes[3] - 1 + left:
            return None
        order.append(2 * top + left)
    if sorted(order) != [0, 1, 2, 3]:
        return None
    made: Any = op.SpaceToDepth(x, blocksize=2)
    if order != [0, 1, 2, 3]:
        made = op.Gather(made, indices(op, [block * sizes[1] + c for block in order for c in range(sizes[1])]), axis=1)
    result: ir.Value = made
    return result


@rewrite("gather-to-slice", "Gather", becomes="Slice, and a Reshape where the axis is dropped", exactness=Exactness.E)
def gather_to_slice(op: Any, y: ir.Value) -> ir.Value | None:
    """A Gather of neighbouring constant indices becomes a Slice."""
    node, x, held = node_of(y), source(y), data(source(y, 1))
    sizes, out = shape(x), shape(y)
    if x is None or sizes is None or out is None or held is None or held.ndim > 1 or data(x) is not None:
        return None
    axis = whole(node, "axis", 0) % len(sizes)
    picked = [int(i) % sizes[axis] for i in held.reshape(-1)]
    if picked != list(range(picked[0], picked[0] + len(picked))):
        return None
    made = sliced(op, x, axis, picked[0], picked[-1] + 1)
    return made if held.ndim else op.Reshape(made, indices(op, out))


def _split(parts: int) -> Any:
    return lambda op: op.Split(_allow_other_inputs=True, _outputs=[f"y{i}" for i in range(parts)])


@rewrite("split-to-slice", "Split", becomes="one Slice for each part", exactness=Exactness.E, pattern=[_split(n) for n in range(2, 9)])
def split_to_slice(op: Any, **outputs: ir.Value) -> list[ir.Value] | None:
    """A Split into two to eight parts becomes as many Slices."""
    parts = [outputs[f"y{i}"] for i in range(len(outputs))]
    node = node_of(parts[0])
    x, sizes = node.inputs[0], [shape(p) for p in parts]
    if x is None or any(s is None for s in sizes):
        return None
    axis = axis_of(node, len(sizes[0] or ()), 0)
    ends = np.cumsum([s[axis] for s in sizes if s is not None])
    return [sliced(op, x, axis, int(end - (s or ())[axis]), int(end)) for s, end in zip(sizes, ends, strict=True)]
