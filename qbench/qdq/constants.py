"""The constant operands of integer units as integers: weights, biases, and what else is added or multiplied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qbench.affine import SMALLEST_SCALE, Affine, Range, Scheme, affine, quantize
from qbench.errors import PlanError
from qbench.graph.attributes import real
from qbench.graph.kernels import constant
from qbench.graph.operators import SIZE_OPERANDS
from qbench.plan import BIAS_GUARD, Plan
from qbench.qdq.builder import Builder
from qbench.qdq.layout import Slices, Weight, cut, weight_of
from qbench.qdq.weights import (
    INT32_MAX,
    LOWER_BITS,
    AddedBias,
    Grid,
    as_stored,
    bias_codes,
    bias_limit,
    codes_of,
    extremes,
    grid,
    halves_of,
)
from qbench.target import QuantScheme

Array = NDArray[Any]
INT32 = Scheme(32, True, True)
NARROW_BIAS_BITS = 8
"""A bias of so few bits is no sum of the accumulator's steps: chips that store it (XINT8) give it a scale of its own."""


@dataclass(frozen=True, slots=True)
class BiasAt:
    """The bias of an anchor: input `index` of `node`, which for a MatMul is the Add behind it."""

    node: ir.Node
    index: int


@dataclass
class Remarks:
    """What could not be as the plan wants it, by initializer: see `qbench.qdq.Written`."""

    widened: dict[str, float] = field(default_factory=dict)
    per_tensor: dict[str, str] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)
    per_channel: dict[str, str] = field(default_factory=dict)
    float_bias: dict[str, str] = field(default_factory=dict)
    vanished: dict[str, float] = field(default_factory=dict)


class Constants:
    """Replaces constant operands node by node; equal ones are stored once (BUG case B10).

    deltas   initializer -> int8 array added to the codes of rounding to nearest
    """

    def __init__(self, builder: Builder, plan: Plan, deltas: Mapping[str, Array]) -> None:
        self.builder, self.plan, self.deltas = builder, plan, deltas
        self.guard = BIAS_GUARD in plan.corrections
        self.remarks = Remarks()

    # -- weights and biases

    def weights(self, node: ir.Node, scheme: QuantScheme, bias: BiasAt | None) -> None:
        """Integers for the weight of `node` and for its bias. An anchor without a constant weight is left alone."""
        weight = weight_of(node)
        if weight is None:
            if bias is not None and (held := bias.node.inputs[bias.index]) is not None:
                self.remarks.float_bias[str(held.name)] = "the layer has no constant weight"
            return
        value = node.inputs[weight.index]
        assert value is not None
        found = cut(weight, self.plan.granularity, scheme)
        self._remark(str(value.name), found.per_tensor, found.shared, found.per_channel)
        added = self._bias_of(node, weight, found.slices, scheme, bias)
        narrow = scheme.bias_bits <= NARROW_BIAS_BITS
        chosen = self._grid(node, value, found.slices, scheme, None if narrow else added)
        node.replace_input_with(weight.index, self._weight(value, chosen))
        if bias is not None and added is not None:
            bias.node.replace_input_with(bias.index, self._narrow_bias(bias, scheme) if narrow else self._bias(bias, weight, chosen, added))

    def _remark(self, name: str, per_tensor: str, shared: str, per_channel: str) -> None:
        for known, why in ((self.remarks.per_tensor, per_tensor), (self.remarks.shared, shared), (self.remarks.per_channel, per_channel)):
            if why:
                known[name] = why

    def _grid(self, node: ir.Node, value: ir.Value, slices: Slices, scheme: QuantScheme, added: AddedBias | None) -> Grid:
        low, high = extremes(to_numpy(value), slices)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise _not_finite("weight", value, node)
        chosen = grid(low, high, slices, scheme.weight, added, self.guard)
        if (most := float(np.maximum(-low, high).max(initial=0.0))) > 0.0 and chosen.scales.max() <= SMALLEST_SCALE:
            self.remarks.vanished[str(value.name)] = most
        if chosen.widened > 1.0:
            self.remarks.widened[str(value.name)] = max(chosen.widened, self.remarks.widened.get(str(value.name), 1.0))
        return chosen

    def _weight(self, value: ir.Value, chosen: Grid) -> ir.Value:
        """The DequantizeLinear of a weight, made once for equal scales."""
        key = (value.name, chosen.slices, chosen.scheme, chosen.scales.tobytes())
        if key not in self.builder.kept:
            slices, data = chosen.slices, to_numpy(value)
            self.builder.kept[key] = self.builder.dequantized(
                str(value.name), codes_of(data, chosen, self.deltas.get(str(value.name))), as_stored(chosen.scales, slices),
                as_stored(chosen.zero_points, slices), chosen.scheme, slices.axis, slices.block, data.shape)
        return self.builder.kept[key]

    def _bias_of(self, node: ir.Node, weight: Weight, slices: Slices, scheme: QuantScheme, at: BiasAt | None) -> AddedBias | None:
        """What the bias asks of the weight scales; None when there is none, or when it stays in float for a reason that is noted."""
        if at is None:
            return None
        value = at.node.inputs[at.index]
        assert value is not None
        why, step = "", scale_in_front(node.inputs[1 if weight.left else 0])
        factor = bias_factor(node)
        if not constant(value) or value.dtype != ir.DataType.FLOAT:
            why = "it is computed"
        elif slices.inputs:
            why = "the target wants a scale per input channel of its weights, so the accumulator has no single step"
        elif slices.block:
            why = "its weights have a scale per group of inputs, so the accumulator has no single step"
        elif step is None:
            why = "the layer's input is not stored as integers"
        elif factor == 0.0:
            why = "alpha or beta is 0"
        if why or step is None:
            self.remarks.float_bias[str(value.name)] = why
            return None
        data = to_numpy(value)
        if not np.isfinite(data).all():
            raise _not_finite("bias", value, at.node)
        products = _largest_sum(weight, scheme) if self.guard else 0
        return AddedBias(_by_channel(data, weight), step * factor, scheme.activation.bits, bias_limit(scheme.bias_bits, products))

    def _bias(self, at: BiasAt, weight: Weight, chosen: Grid, added: AddedBias) -> ir.Value:
        """The bias behind a DequantizeLinear, int32 with the scale of the accumulator; the sum of two where its codes need more bits.

        A bias in float is no way out: onnxruntime 1.32 makes int32 of it by itself, and clips.
        """
        value = at.node.inputs[at.index]
        assert value is not None
        data, scales, axis = to_numpy(value), chosen.scales, None
        if chosen.slices.kept:
            data, axis = _spread(data, weight)
            scales = np.tile(scales, chosen.slices.groups).reshape([-1 if a == axis else 1 for a in range(data.ndim)])
        codes, total = bias_codes(data, scales, added.step, added.limit)
        total = total.reshape(-1 if axis is not None else ())
        key = (value.name, "bias", total.tobytes(), codes.shape, added.limit)
        if key not in self.builder.kept:
            self.builder.kept[key] = self._int32(str(value.name), codes, total, axis)
        return self.builder.kept[key]

    def _narrow_bias(self, at: BiasAt, scheme: QuantScheme) -> ir.Value:
        """The bias as a tensor of its own: one scale, codes like a weight's. It asks nothing of the weight's scale."""
        value = at.node.inputs[at.index]
        assert value is not None
        return self._operand(at.node, value, scheme.weight, None)

    def _int32(self, name: str, codes: Array, scale: Array, axis: int | None) -> ir.Value:
        if np.abs(codes).max(initial=0) <= INT32_MAX:
            return self.builder.dequantized(name, codes.astype(np.int32), scale, None, INT32, axis)
        upper, lower = halves_of(codes)
        parts = [self.builder.dequantized(f"{name}_upper", upper, scale * np.float32(2.0**LOWER_BITS), None, INT32, axis),
                 self.builder.dequantized(f"{name}_lower", lower, scale, None, INT32, axis)]
        return self.builder.node("Add", parts, f"{name}_whole", f"{name}_whole")

    # -- other operands

    def operands(self, node: ir.Node, scheme: Scheme, moved: Affine | None) -> None:
        """Integers for the constants that an element-wise operator or a Concat reads.

        moved   scale and zero point of the output, where the operator only moves values
        """
        for index, value in enumerate(node.inputs):
            if value is not None and constant(value) and value.dtype == ir.DataType.FLOAT:
                node.replace_input_with(index, self._operand(node, value, scheme, moved))

    def _operand(self, node: ir.Node, value: ir.Value, scheme: Scheme, moved: Affine | None) -> ir.Value:
        data = to_numpy(value)
        if not np.isfinite(data).all():
            raise _not_finite("constant", value, node)
        a = moved or affine(Range(float(data.min(initial=0.0)), float(data.max(initial=0.0))), scheme)
        key = (value.name, a.scale, a.zero_point, a.scheme)
        if key not in self.builder.kept:
            self.builder.kept[key] = self.builder.dequantized(
                str(value.name), quantize(data, a), np.asarray(a.scale, np.float32), np.asarray(a.zero_point, a.scheme.dtype), a.scheme)
        return self.builder.kept[key]

    def halves(self, node: ir.Node) -> None:
        """float16 values for the constants of a node, as float32."""
        limit = float(np.finfo(np.float16).max)
        for index, value in enumerate(node.inputs):
            if index in SIZE_OPERANDS.get(node.op_type, ()):
                continue                                            # numbers that shape the output are never data (BUG case B22)
            if value is not None and constant(value) and value.dtype == ir.DataType.FLOAT:
                key = (value.name, "half")
                if key not in self.builder.kept:
                    rounded = np.clip(to_numpy(value), -limit, limit).astype(np.float16).astype(np.float32)
                    self.builder.kept[key] = self.builder.initializer(f"{value.name}_half", rounded)
                node.replace_input_with(index, self.builder.kept[key])


def to_numpy(value: ir.Value) -> Array:
    """The data of a constant."""
    assert value.const_value is not None
    return value.const_value.numpy()


def scale_in_front(value: ir.Value | None) -> float | None:
    """Scale of the DequantizeLinear that makes `value`; None when there is none."""
    maker = value.producer() if value is not None else None
    if maker is None or maker.op_type != "DequantizeLinear":
        return None
    scale = maker.inputs[1]
    return None if scale is None or scale.const_value is None else float(scale.const_value.numpy())


def bias_factor(node: ir.Node) -> float:
    """Steps of the product per step of the bias: |alpha / beta| of a Gemm, 1 elsewhere; 0 where a Gemm ignores one of the two."""
    if node.op_type != "Gemm":
        return 1.0
    alpha, beta = real(node, "alpha", 1.0), real(node, "beta", 1.0)
    return abs(alpha / beta) if beta else 0.0


def _not_finite(what: str, value: ir.Value, node: ir.Node) -> PlanError:
    return PlanError(f"{what} {value.name!r} of node {node.name!r} holds NaN or infinity, which no scale can cover: "
                     "keep its unit in float, or mend the model")


def _largest_sum(weight: Weight, scheme: QuantScheme) -> int:
    """The largest sum of products of codes, less their zero points, behind one output."""
    levels = scheme.weight.levels
    return prod(weight.shape) // weight.channels * (levels // 2 if scheme.weight.symmetric else levels - 1) * (scheme.activation.levels - 1)


def _by_channel(data: Array, weight: Weight) -> Array:
    """Largest magnitudes [output channels] of a bias that may be broadcast, or one value for all."""
    if data.size == 1 or weight.channels == 1:
        return np.full(1, np.abs(data).max(initial=0.0))
    spread, axis = _spread(data, weight)
    largest: Array = np.abs(spread).max(axis=tuple(a for a in range(spread.ndim) if a != axis))
    return largest


def _spread(data: Array, weight: Weight) -> tuple[Array, int]:
    """`data` with all output channels along one axis, and that axis: the last, or the last but one for a left factor."""
    axis = -2 if weight.left else -1
    shape = (1,) * max(0, -axis - data.ndim) + data.shape
    if shape[axis] != weight.channels:
        shape = (*shape[:len(shape) + axis], weight.channels, *shape[len(shape) + axis + 1:])
    return np.broadcast_to(data, shape), len(shape) + axis
