"""Pixels into channels and back, and transposes of high rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from qbench.graph.attributes import ints, text, whole
from qbench.rewriting import Exactness
from qbench.targets.rewrites.registry import rewrite
from qbench.targets.rewrites.values import constant, data, indices, node_of, shape, source


@rewrite("depthtospace-to-reshape", "DepthToSpace", becomes="Reshape, Transpose, Reshape", exactness=Exactness.E)
def depthtospace_to_reshape(op: Any, y: ir.Value) -> ir.Value | None:
    """A DepthToSpace becomes Reshape, Transpose and Reshape."""
    node, x = node_of(y), source(y)
    sizes, out, b = shape(x), shape(y), whole(node, "blocksize", 1)
    if x is None or sizes is None or out is None:
        return None
    n, c, h, w = sizes
    first, order = ([n, b, b, c // b ** 2, h, w], [0, 3, 4, 1, 5, 2]) if text(node, "mode", "DCR") == "DCR" else ([n, c // b ** 2, b, b, h, w], [0, 1, 4, 2, 5, 3])
    made: ir.Value = op.Reshape(op.Transpose(op.Reshape(x, indices(op, first)), perm=order), indices(op, out))
    return made


@rewrite("pixelshuffle-to-dcr", "DepthToSpace", becomes="permuted weights, DepthToSpace of mode DCR", exactness=Exactness.E,
         pattern=[lambda op, x: op.DepthToSpace(op.Conv(x, _allow_other_inputs=True, _outputs=["wide"]), _outputs=["y"])])
def pixelshuffle_to_dcr(op: Any, y: ir.Value, x: ir.Value, wide: ir.Value) -> ir.Value | None:
    """A DepthToSpace of mode CRD behind a Conv becomes mode DCR: the output channels of the Conv are put in the other order."""
    node, conv = node_of(y), node_of(wide)
    weight, bias = data(conv.inputs[1]), data(conv.inputs[2]) if len(conv.inputs) > 2 else None
    if text(node, "mode", "DCR") != "CRD" or weight is None or whole(conv, "group", 1) != 1 or (len(conv.inputs) > 2 and conv.inputs[2] is not None and bias is None):
        return None
    b = whole(node, "blocksize", 1)
    order = np.arange(weight.shape[0]).reshape(-1, b, b).transpose(1, 2, 0).reshape(-1)
    others = [constant(op, bias[order], x, "bias")] if bias is not None else []
    made: ir.Value = op.DepthToSpace(op.Conv(x, constant(op, weight[order], x, "weight"), *others, **{k: v.value for k, v in conv.attributes.items()}),
                                     blocksize=b, mode="DCR")
    return made


@rewrite("spacetodepth-to-conv", "SpaceToDepth", becomes="Conv of kernel and stride b with one 1 in each filter", exactness=Exactness.E)
def spacetodepth_to_conv(op: Any, y: ir.Value) -> ir.Value | None:
    """A SpaceToDepth becomes a convolution whose kernel and stride are the block size and whose filters each pick one pixel of one channel."""
    x, b = source(y), whole(node_of(y), "blocksize", 1)
    sizes = shape(x)
    if x is None or sizes is None:
        return None
    c = sizes[1]
    weight = np.zeros((b, b, c, c, b, b))
    for i in range(b):
        for j in range(b):
            weight[i, j, range(c), range(c), i, j] = 1
    made: ir.Value = op.Conv(x, constant(op, weight.reshape(b * b * c, c, b, b), x, "pick"), kernel_shape=[b, b], strides=[b, b])
    return made


@rewrite("transpose-5d", "Transpose", becomes="Reshape, Transpose of rank 4 or less, Reshape", exactness=Exactness.E)
def transpose_5d(op: Any, y: ir.Value) -> ir.Value | None:
    """A Transpose of rank 5 or more becomes one of lower rank, where axes of one element and axes that stay neighbours can be joined."""
    node, x = node_of(y), source(y)
    sizes, out = shape(x), shape(y)
    if x is None or sizes is None or out is None or len(sizes) < 5:
        return None
    perm = [a for a in ints(node, "perm", tuple(range(len(sizes)))[::-1]) if sizes[a] != 1]
    runs: list[list[int]] = []
    for axis in perm:
        between = range(runs[-1][-1] + 1, axis) if runs else ()
        if runs and axis > runs[-1][-1] and all(sizes[i] == 1 for i in between):
            runs[-1].append(axis)
        else:
            runs.append([axis])
    if not runs or len(runs) > 4:
        return None
    ordered = sorted(runs)
    narrow = op.Reshape(x, indices(op, [int(np.prod([sizes[a] for a in run])) for run in ordered]))
    made: ir.Value = op.Reshape(op.Transpose(narrow, perm=[ordered.index(run) for run in runs]), indices(op, out))
    return made
