"""Pads."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from qbench.graph.attributes import ints, text, whole
from qbench.rewriting import Exactness
from qbench.targets.rewrites.registry import rewrite
from qbench.targets.rewrites.values import constant, data, indices, node_of, number, shape, sliced, source

PAD_BUG = "rknn-toolkit2 2.5.0 stops with a ValueError (_p_fuse_pad_into_conv) at a Pad in front of a convolution or average pool"
NEGATIVE_BUG = "rknn-toolkit2 2.5.0 builds on after 'Pad: unsupport pads < 0'"


def _padded(name: str) -> Any:
    return lambda op, x, pads: getattr(op, name)(op.Pad(x, pads, _allow_other_inputs=True, _outputs=["padded"]), _allow_other_inputs=True, _outputs=["y"])


@rewrite("fold-pad", "Pad", becomes="the pads of the Conv or AveragePool behind it", exactness=Exactness.E, pattern=[_padded("Conv"), _padded("AveragePool")],
         hazards={"rknn": PAD_BUG}, tidies=True)
def fold_pad(op: Any, y: ir.Value, x: ir.Value, pads: ir.Value, padded: ir.Value) -> ir.Value | None:
    """A Pad with zeros in height and width becomes the pads of the convolution or average pool behind it."""
    node, amounts = node_of(y), _image_pads(node_of(padded))
    if (amounts is None or min(amounts) < 0 or text(node, "auto_pad", "NOTSET") != "NOTSET"
            or (node.op_type == "AveragePool" and (whole(node, "ceil_mode", 0) or (any(ints(node, "pads", (0,) * 4)) and not whole(node, "count_include_pad", 0))))):
        return None
    kernel = ints(node, "kernel_shape", (shape(node.inputs[1]) or ())[2:] if len(node.inputs) > 1 else ())
    if node.op_type == "AveragePool" and any(p >= k for p, k in zip(amounts, kernel * 2, strict=True)):
        return None                                              # onnxruntime refuses pads as large as the window
    kept = {k: v.value for k, v in node.attributes.items()}
    kept["pads"] = [a + b for a, b in zip(ints(node, "pads", (0,) * 4), amounts, strict=True)]
    if node.op_type == "AveragePool":
        kept["count_include_pad"] = 1
    made: ir.Value = getattr(op, node.op_type)(x, *node.inputs[1:], **kept)
    return made


def _image_pads(pad: ir.Node) -> list[int] | None:
    """[top, left, bottom, right] of a Pad with zeros of an image; None for another Pad."""
    amounts, rank = data(pad.inputs[1]) if len(pad.inputs) > 1 else None, len(shape(pad.inputs[0]) or ())
    value = number(pad.inputs[2]) if len(pad.inputs) > 2 and pad.inputs[2] is not None else 0.0
    if amounts is None or rank != 4 or value != 0.0 or text(pad, "mode", "constant") != "constant" or (len(pad.inputs) > 3 and pad.inputs[3] is not None):
        return None
    found = [int(p) for p in amounts.reshape(-1)]
    return None if any(found[i] for i in (0, 1, 4, 5)) else [found[i] for i in (2, 3, 6, 7)]


@rewrite("pad-to-concat", "Pad", becomes="Slice and Concat with zeros", exactness=Exactness.E, hazards={"rknn": NEGATIVE_BUG})
def pad_to_concat(op: Any, y: ir.Value) -> ir.Value | None:
    """A Pad with zeros that also takes rows away becomes Slices, and Concats with zeros."""
    pad, x = node_of(y), source(y)
    sizes, amounts = shape(x), _image_pads(pad)
    if x is None or sizes is None or amounts is None or min(amounts) >= 0:
        return None
    made: Any = x
    now = list(sizes)
    for axis, before, after in ((2, amounts[0], amounts[2]), (3, amounts[1], amounts[3])):
        if before < 0 or after < 0:
            made = sliced(op, made, axis, max(0, -before), now[axis] - max(0, -after))
            now[axis] -= max(0, -before) + max(0, -after)
        around = [constant(op, np.zeros([*now[:axis], p, *now[axis + 1:]]), x, "zeros") if p > 0 else None for p in (before, after)]
        if any(a is not None for a in around):
            made = op.Concat(*[v for v in (around[0], made, around[1]) if v is not None], axis=axis)
            now[axis] += max(0, before) + max(0, after)
    result: ir.Value = made
    return result


@rewrite("pad-mirror-to-concat", "Pad", becomes="Slice and Concat", exactness=Exactness.E)
def pad_mirror_to_concat(op: Any, y: ir.Value) -> ir.Value | None:
    """A Pad that mirrors the image or repeats its edge becomes Slices of one row or column each, joined by Concats."""
    pad, x = node_of(y), source(y)
    mode, sizes, amounts = text(pad, "mode", "constant"), shape(x), data(source(y, 1))
    if x is None or sizes is None or amounts is None or mode not in ("reflect", "edge") or (len(pad.inputs) > 3 and pad.inputs[3] is not None):
        return None
    found, rank = [int(p) for p in amounts.reshape(-1)], len(sizes)
    if min(found) < 0 or any(max(found[a], found[a + rank]) >= sizes[a] for a in range(rank) if max(found[a], found[a + rank])):
        return None
    made: Any = x
    for axis in range(rank):
        before, after, size = found[axis], found[axis + rank], sizes[axis]
        left = range(before, 0, -1) if mode == "reflect" else [0] * before
        right = range(size - 2, size - 2 - after, -1) if mode == "reflect" else [size - 1] * after
        if before or after:
            made = op.Concat(*[sliced(op, made, axis, i, i + 1) for i in left], made, *[sliced(op, made, axis, i, i + 1) for i in right], axis=axis)
    result: ir.Value = made if made is not x else op.Identity(x)
    return result


@rewrite("explicit-pad", "Conv", becomes="Pad, then Conv without pads", exactness=Exactness.E)
def explicit_pad(op: Any, y: ir.Value) -> ir.Value | None:
    """The pads of a convolution, where one is above 15, move into a Pad in front of it."""
    node, x = node_of(y), source(y)
    pads = ints(node, "pads", (0, 0, 0, 0))
    if x is None or len(pads) != 4 or max(pads) <= 15:
        return None
    outside = op.Pad(x, indices(op, [0, 0, *pads[:2], 0, 0, *pads[2:]], "pads"), mode="constant")
    made: ir.Value = op.Conv(outside, *node.inputs[1:], **{**{k: v.value for k, v in node.attributes.items()}, "pads": [0] * 4})
    return made
