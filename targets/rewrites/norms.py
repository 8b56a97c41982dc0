"""Normalisations in primitive operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from qbench.graph.attributes import real, whole
from qbench.rewriting import Exactness
from qbench.targets.rewrites.registry import NORM_ROUNDED, rewrite
from qbench.targets.rewrites.values import (
    attributes,
    axis_of,
    constant,
    data,
    indices,
    node_of,
    opset,
    reduced,
    reduced_axes,
    shape,
    source,
)

EPSILON = 1e-5
GROUP_WISE_OPSET = 21
"""GroupNormalization has one scale per channel since; one per group before."""


def _normalised(op: Any, x: ir.Value, axes: list[int], epsilon: float, version: int) -> Any:
    centred = op.Sub(x, reduced(op, "ReduceMean", x, axes, 1, version))
    variance = reduced(op, "ReduceMean", op.Mul(centred, centred), axes, 1, version)
    return op.Div(centred, op.Sqrt(op.Add(variance, constant(op, epsilon, x, "epsilon"))))


@rewrite("layernorm-epsilon", "LayerNormalization", becomes="the same operator with its epsilon attribute written out", exactness=Exactness.E)
def layernorm_epsilon(op: Any, y: ir.Value) -> ir.Value | None:
    """A LayerNormalization that leaves its epsilon to the default gets it written out: rknn-toolkit2 2.5.0 stops without the attribute."""
    node = node_of(y)
    if "epsilon" in node.attributes:
        return None
    made: ir.Value = op.LayerNormalization(*node.inputs, **attributes(node), epsilon=EPSILON)
    return made


@rewrite("layernorm-to-primitives", "LayerNormalization", becomes="ReduceMean, Sub, Mul, ReduceMean, Add, Sqrt, Div, Mul, Add", exactness=Exactness.N,
         tolerance=NORM_ROUNDED, source="Ba et al. 2016 (arXiv 1607.06450), equation 4")
def layernorm_to_primitives(op: Any, y: ir.Value) -> ir.Value | None:
    """A LayerNormalization becomes primitive operators. In FP16 the square of values above 255 overflows: scale first."""
    node, x, scale, bias = node_of(y), source(y), source(y, 1), source(y, 2)
    sizes = shape(x)
    if x is None or scale is None or sizes is None:
        return None
    axes = list(range(axis_of(node, len(sizes), -1), len(sizes)))
    made: ir.Value = op.Mul(_normalised(op, x, axes, real(node, "epsilon", EPSILON), opset(y)), scale)
    return made if bias is None else op.Add(made, bias)


@rewrite("groupnorm-to-instancenorm", "GroupNormalization", becomes="Reshape, InstanceNormalization, Reshape, Mul, Add", exactness=Exactness.N,
         tolerance=NORM_ROUNDED, source="Wu and He 2018 (arXiv 1803.08494), equation 7")
def groupnorm_to_instancenorm(op: Any, y: ir.Value) -> ir.Value | None:
    """A GroupNormalization becomes an InstanceNormalization over [N, groups, rest] with the scale behind it. Price it: that runs on the CPU at times."""
    node, x, scale, bias = node_of(y), source(y), data(source(y, 1)), data(source(y, 2))
    sizes = shape(x)
    if x is None or sizes is None or scale is None or bias is None:
        return None
    groups = whole(node, "num_groups", 1)
    rest = int(np.prod(sizes[1:])) // groups
    if opset(y) < GROUP_WISE_OPSET:
        scale, bias = (np.repeat(v, sizes[1] // groups) if v.size == groups else v for v in (scale, bias))
    ones = constant(op, np.ones(groups), x, "ones"), constant(op, np.zeros(groups), x, "zeros")
    inner = op.InstanceNormalization(op.Reshape(x, indices(op, [sizes[0], groups, rest], "groups")), *ones, epsilon=real(node, "epsilon", EPSILON))
    per_channel = (1, sizes[1], *(1,) * (len(sizes) - 2))
    spread = op.Mul(op.Reshape(inner, indices(op, sizes, "sizes")), constant(op, scale.reshape(per_channel), x, "scale"))
    made: ir.Value = op.Add(spread, constant(op, bias.reshape(per_channel), x, "bias"))
    return made


@rewrite("instancenorm-to-primitives", "InstanceNormalization", becomes="ReduceMean, Sub, Mul, ReduceMean, Add, Sqrt, Div, Mul, Add", exactness=Exactness.N,
         tolerance=NORM_ROUNDED, source="Ulyanov et al. 2016 (arXiv 1607.08022), equation 4")
def instancenorm_to_primitives(op: Any, y: ir.Value) -> ir.Value | None:
    """An InstanceNormalization with constant scale and bias becomes primitive operators."""
    node, x, scale, bias = node_of(y), source(y), data(source(y, 1)), data(source(y, 2))
    sizes = shape(x)
    if x is None or sizes is None or scale is None or bias is None:
        return None
    per_channel = (1, -1, *(1,) * (len(sizes) - 2))
    made = _normalised(op, x, list(range(2, len(sizes))), real(node, "epsilon", EPSILON), opset(y))
    if not np.all(scale == 1):
        made = op.Mul(made, constant(op, scale.reshape(per_channel), x, "scale"))
    result: ir.Value = op.Add(made, constant(op, bias.reshape(per_channel), x, "bias")) if np.any(bias) else made
    return result


@rewrite("rmsnorm-to-primitives", "RMSNormalization", becomes="Mul, ReduceMean, Add, Sqrt, Div, Mul", exactness=Exactness.N, tolerance=NORM_ROUNDED,
         source="Zhang and Sennrich 2019 (arXiv 1910.07467), equation 4")
def rmsnorm_to_primitives(op: Any, y: ir.Value) -> ir.Value | None:
    """An RMSNormalization becomes primitive operators."""
    node, x, scale = node_of(y), source(y), source(y, 1)
    sizes = shape(x)
    if x is None or sizes is None or scale is None:
        return None
    axes = list(range(axis_of(node, len(sizes), -1), len(sizes)))
    mean = reduced(op, "ReduceMean", op.Mul(x, x), axes, 1, opset(y))
    made: ir.Value = op.Mul(op.Div(x, op.Sqrt(op.Add(mean, constant(op, real(node, "epsilon", EPSILON), x, "epsilon")))), scale)
    return made


@rewrite("reducel2-to-primitives", "ReduceL2", becomes="Mul, ReduceSum, Sqrt", exactness=Exactness.N)
def reducel2_to_primitives(op: Any, y: ir.Value) -> ir.Value | None:
    """A ReduceL2 becomes Mul, ReduceSum and Sqrt."""
    node, x = node_of(y), source(y)
    axes = reduced_axes(node)
    if x is None or axes is None:
        return None
    made: ir.Value = op.Sqrt(reduced(op, "ReduceSum", op.Mul(x, x), axes, whole(node, "keepdims", 1), opset(y)))
    return made


@rewrite("batchnorm-to-affine", "BatchNormalization", becomes="Mul, Add", exactness=Exactness.N, tolerance=NORM_ROUNDED,
         source="Ioffe and Szegedy 2015 (arXiv 1502.03167), algorithm 2")
def batchnorm_to_affine(op: Any, y: ir.Value) -> ir.Value | None:
    """A BatchNormalization that no layer in front takes in becomes one factor and one shift for each channel."""
    node, x, sizes = node_of(y), source(y), shape(source(y))
    held = [data(v) for v in node.inputs[1:5]]
    if x is None or sizes is None or len(node.outputs) != 1:
        return None
    gamma, beta, mean, variance = (None if h is None else h.astype(np.float64) for h in held)
    if gamma is None or beta is None or mean is None or variance is None:
        return None
    factor, form = gamma / np.sqrt(variance + real(node, "epsilon", EPSILON)), (1, -1, *(1,) * (len(sizes) - 2))
    made: ir.Value = op.Add(op.Mul(x, constant(op, factor.reshape(form), x, "factor")), constant(op, (beta - mean * factor).reshape(form), x, "shift"))
    return made
