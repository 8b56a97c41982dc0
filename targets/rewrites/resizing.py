"""Resize in forms that chips run."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from qbench.graph.attributes import text
from qbench.rewriting import Exactness
from qbench.targets.rewrites.registry import rewrite
from qbench.targets.rewrites.values import attributes, constant, indices, node_of, shape, sliced, source

NEAREST = {("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil")}
"""Coordinates and rounding that repeat each pixel s times, for every whole factor s; with the default rounding and asymmetric coordinates
pixels move by half a step."""


def _whole_factor(y: ir.Value) -> int | None:
    """The one factor in height and width of an image; None where it is no whole one, or other axes change."""
    before, after = shape(source(y)), shape(y)
    if before is None or after is None or len(before) != 4 or before[:2] != after[:2] or after[2] % before[2] or after[3] % before[3]:
        return None
    factors = {after[2] // before[2], after[3] // before[3]}
    return factors.pop() if len(factors) == 1 and factors != {1} else None


@rewrite("resize-cubic-to-linear", "Resize", becomes="Resize of mode linear", exactness=Exactness.C, tolerance=1.0)
def resize_cubic_to_linear(op: Any, y: ir.Value) -> ir.Value | None:
    """A cubic Resize becomes a linear one. The picture changes: judge by the metric of the task."""
    node = node_of(y)
    if text(node, "mode", "nearest") != "cubic":
        return None
    kept = {k: v for k, v in attributes(node).items() if k not in ("mode", "cubic_coeff_a", "exclude_outside")}
    made: ir.Value = op.Resize(*node.inputs, mode="linear", **kept)
    return made


@rewrite("resize-corners", "Resize", becomes="half_pixel in place of align_corners", exactness=Exactness.C, tolerance=1.0)
def resize_corners(op: Any, y: ir.Value) -> ir.Value | None:
    """A linear Resize with align_corners takes half_pixel coordinates: the picture moves by less than a pixel."""
    node = node_of(y)
    if text(node, "coordinate_transformation_mode", "half_pixel") != "align_corners" or text(node, "mode", "nearest") != "linear":
        return None
    kept = {**attributes(node), "coordinate_transformation_mode": "half_pixel"}
    made: ir.Value = op.Resize(*node.inputs, **kept)
    return made


@rewrite("resize-nearest-to-transposed-conv", "Resize", becomes="depthwise ConvTranspose with a kernel of ones", exactness=Exactness.E)
def resize_nearest_to_transposed_conv(op: Any, y: ir.Value) -> ir.Value | None:
    """A nearest Resize by a whole factor s becomes a depthwise ConvTranspose of kernel and stride s, all weights 1."""
    node, factor, x = node_of(y), _whole_factor(y), source(y)
    form = text(node, "coordinate_transformation_mode", "half_pixel"), text(node, "nearest_mode", "round_prefer_floor")
    if x is None or factor is None or text(node, "mode", "nearest") != "nearest" or form not in NEAREST:
        return None
    channels = (shape(x) or ())[1]
    made: ir.Value = op.ConvTranspose(x, constant(op, np.ones((channels, 1, factor, factor)), x, "ones"), group=channels, strides=[factor, factor],
                                      kernel_shape=[factor, factor])
    return made


@rewrite("resize-linear-to-transposed-conv", "Resize", becomes="edge rows repeated, depthwise ConvTranspose with a triangle kernel", exactness=Exactness.N)
def resize_linear_to_transposed_conv(op: Any, y: ir.Value) -> ir.Value | None:
    """A linear half_pixel Resize by an even factor s becomes a depthwise ConvTranspose with a triangle kernel of 2 s and stride s. The edge
    rows and columns are repeated first, so that the borders agree too."""
    node, factor, x = node_of(y), _whole_factor(y), source(y)
    if (x is None or factor is None or factor % 2 or text(node, "mode", "nearest") != "linear"
            or text(node, "coordinate_transformation_mode", "half_pixel") not in ("half_pixel", "pytorch_half_pixel") or 1 in (shape(x) or ())[2:]):
        return None
    sizes = shape(x) or ()
    wide: Any = x
    for axis in (2, 3):
        first, last = sliced(op, wide, axis, 0, 1), sliced(op, wide, axis, sizes[axis] - 1, sizes[axis])
        wide = op.Concat(first, wide, last, axis=axis)
    side = 1.0 - np.abs(np.arange(2 * factor) + 0.5 - factor) / factor
    kernel = np.broadcast_to(np.outer(side, side), (sizes[1], 1, 2 * factor, 2 * factor))
    crop = factor + factor // 2
    made: ir.Value = op.ConvTranspose(wide, constant(op, kernel, x, "triangle"), group=sizes[1], strides=[factor, factor], pads=[crop] * 4,
                                      kernel_shape=[2 * factor, 2 * factor])
    return made


@rewrite("resize-nearest-to-concat", "Resize", becomes="Reshape, Concat and Reshape", exactness=Exactness.E)
def resize_nearest_to_concat(op: Any, y: ir.Value) -> ir.Value | None:
    """A nearest Resize by a whole factor s repeats pixels by joining s copies beside a new axis, with no arithmetic."""
    node, factor, x = node_of(y), _whole_factor(y), source(y)
    form = text(node, "coordinate_transformation_mode", "half_pixel"), text(node, "nearest_mode", "round_prefer_floor")
    if x is None or factor is None or text(node, "mode", "nearest") != "nearest" or form not in NEAREST:
        return None
    n, c, h, w = shape(x) or ()
    columns = op.Reshape(op.Concat(*[op.Reshape(x, indices(op, [n * c, h * w, 1]))] * factor, axis=2), indices(op, [n * c, h, w * factor]))
    made: ir.Value = op.Reshape(op.Concat(*[columns] * factor, axis=2), indices(op, [n, c, h * factor, w * factor]))
    return made
