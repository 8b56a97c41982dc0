"""Pools in sizes that chips take."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from qbench.graph.attributes import ints, text, whole
from qbench.rewriting import Exactness
from qbench.targets.rewrites.registry import rewrite
from qbench.targets.rewrites.values import constant, node_of, opset, reduced, reduced_axes, shape, source

LARGEST = 7
"""Side of the largest window that small pooling units take (RKNN compiler operator list 2.3.2)."""
SHARED = "HARDWARE tables: RKNN compiler operator list 2.3.2"


def _equal_stages(side: int) -> tuple[int, int] | None:
    """(a, b) with a * b = side, both from 2 to LARGEST, the larger first."""
    return next(((a, side // a) for a in range(LARGEST, 1, -1) if side % a == 0 and 1 < side // a <= LARGEST), None)


@rewrite("global-pool-two-stage", "GlobalAveragePool", becomes="two AveragePools of equal tiles", exactness=Exactness.N, source=SHARED, speeds=True)
def global_pool_two_stage(op: Any, y: ir.Value) -> ir.Value | None:
    """A GlobalAveragePool of a map larger than 7 x 7 becomes two AveragePools whose windows tile the map."""
    x = source(y)
    sizes = shape(x)
    if x is None or sizes is None or len(sizes) != 4 or max(sizes[2:]) <= LARGEST:
        return None
    stages = [_equal_stages(s) if s > LARGEST else (s, 1) for s in sizes[2:]]
    if None in stages:
        return None
    first, second = ([s[i] for s in stages if s is not None] for i in (0, 1))
    made: ir.Value = op.AveragePool(op.AveragePool(x, kernel_shape=first, strides=first), kernel_shape=second, strides=second)
    return made


@rewrite("reducemean-to-global-pool", "ReduceMean", becomes="GlobalAveragePool", exactness=Exactness.N, speeds=True)
def reducemean_to_global_pool(op: Any, y: ir.Value) -> ir.Value | None:
    """A ReduceMean over height and width of an image becomes a GlobalAveragePool, followed by a Reshape where the axes are dropped."""
    node, x = node_of(y), source(y)
    sizes, after = shape(x), shape(y)
    if x is None or sizes is None or after is None or len(sizes) != 4 or reduced_axes(node) != (2, 3):
        return None
    made: ir.Value = op.GlobalAveragePool(x)
    return made if whole(node, "keepdims", 1) else op.Reshape(made, constant(op, np.array(after, np.int64)))


@rewrite("global-pool-to-reducemean", "GlobalAveragePool", becomes="ReduceMean", exactness=Exactness.N)
def global_pool_to_reducemean(op: Any, y: ir.Value) -> ir.Value | None:
    """A GlobalAveragePool becomes a ReduceMean over height and width."""
    x = source(y)
    sizes = shape(x)
    return None if x is None or sizes is None else reduced(op, "ReduceMean", x, range(2, len(sizes)), 1, opset(y))


@rewrite("maxpool-cascade", "MaxPool", becomes="a cascade of smaller MaxPools", exactness=Exactness.E, source="He et al. 2014 (SPP); Jocher 2022 (SPPF): k 5, 9, 13 by repeated 5")
def maxpool_cascade(op: Any, y: ir.Value) -> ir.Value | None:
    """A MaxPool of stride 1 with a window above 7 becomes smaller ones in a row: windows a and b in a row see a + b - 1. The output must
    have the size of the input, so that the padding is the same."""
    node, x = node_of(y), source(y)
    kernel, pads = ints(node, "kernel_shape", ()), ints(node, "pads", (0, 0, 0, 0))
    if (x is None or len(kernel) != 2 or kernel[0] != kernel[1] or kernel[0] <= LARGEST or kernel[0] % 2 == 0 or set(ints(node, "strides", (1, 1))) != {1}
            or set(pads) != {kernel[0] // 2} or set(ints(node, "dilations", (1, 1))) != {1} or len(node.outputs) != 1
            or text(node, "auto_pad", "NOTSET") != "NOTSET"):
        return None
    made: Any = x
    rest = kernel[0] - 1
    while rest:
        step = min(rest, 4)                                      # a window of 5 adds 4
        made = op.MaxPool(made, kernel_shape=[step + 1] * 2, pads=[step // 2] * 4, strides=[1, 1])
        rest -= step
    result: ir.Value = made
    return result


@rewrite("averagepool-to-conv", "AveragePool", becomes="depthwise Conv with 1 / k^2", exactness=Exactness.N, source=SHARED)
def averagepool_to_conv(op: Any, y: ir.Value) -> ir.Value | None:
    """An AveragePool becomes a depthwise convolution whose weights are 1 / k^2: without padding, or with padding that counts."""
    node, x = node_of(y), source(y)
    sizes, kernel, pads = shape(x), ints(node, "kernel_shape", ()), ints(node, "pads", (0, 0, 0, 0))
    if (x is None or sizes is None or len(kernel) != 2 or (any(pads) and not whole(node, "count_include_pad", 0)) or whole(node, "ceil_mode", 0)
            or text(node, "auto_pad", "NOTSET") != "NOTSET" or set(ints(node, "dilations", (1, 1))) != {1}):
        return None
    weight = np.full((sizes[1], 1, *kernel), 1.0 / (kernel[0] * kernel[1]))
    made: ir.Value = op.Conv(x, constant(op, weight, x, "mean"), group=sizes[1], kernel_shape=list(kernel), pads=list(pads),
                             strides=list(ints(node, "strides", (1, 1))))
    return made
