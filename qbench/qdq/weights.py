"""Integers for weights and biases: pure functions on arrays, without a loop over channels.

The oracle of the scales is `qbench.affine.affine`, of the codes `qbench.affine.quantize`, slice by slice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbench.affine import LARGEST_SCALE, SMALLEST_SCALE, Scheme
from qbench.qdq.layout import Slices

Array = NDArray[Any]
INT32_MAX = 2**31 - 1
WIDEST_BIAS_BITS = 55
"""A bias of more than 32 bits is stored as two int32 of which the upper counts 2**24: together they hold so many."""
LOWER_BITS = 24
SILENT_BIAS_BITS = 16
"""Bits that the bias of an all-zero channel gets where a weight scale of 1.0 would round it too coarsely."""


@dataclass(frozen=True)
class Grid:
    """Scale (float32) and zero point (type of the codes) of each slice, in the shape of the axes that `slices` keeps.

    widened   the largest factor by which a scale was raised for its bias; 1.0 where none was
    """

    slices: Slices
    scheme: Scheme
    scales: Array
    zero_points: Array
    widened: float = 1.0


@dataclass(frozen=True)
class AddedBias:
    """What a bias asks of the weight scales.

    magnitudes   [output channels], or one value
    step         reals of one accumulator step where the weight scale is 1.0: the scale of the input
    bits         of the layer's output
    limit        the largest code that the bias may have
    """

    magnitudes: Array
    step: float
    bits: int
    limit: int = INT32_MAX


def grid(low: Array, high: Array, slices: Slices, scheme: Scheme, bias: AddedBias | None = None, guard: bool = True) -> Grid:
    """Scales and zero points of a weight with the extremes `low`, `high`; what `bias` needs is heeded where it is given.

    guard   raise the scales where round(bias / (step * scale)) would pass the limit of its codes (BUG case B08)
    A slice of zeros has scale 1.0 by convention; where 1.0 would round its bias by more than half a step of an output that is as
    large as the bias, it gets a finer one, as nothing else is lost by it (BUG case B04 d).
    """
    scales, widened = scales_of(low, high, scheme), 1.0
    if bias is not None:
        magnitudes = _per_slice(bias.magnitudes.astype(np.float64), slices)
        scales = np.where((low == 0.0) & (high == 0.0), _silent(scales, magnitudes, bias), scales).astype(np.float32)
        if guard:
            raised = _raised(scales, magnitudes / (bias.step * bias.limit), scheme)
            scales, widened = raised, float((raised / scales).max(initial=1.0))
    return Grid(slices, scheme, scales, zero_points_of(low, high, scales, scheme), widened)


def extremes(data: Array, slices: Slices) -> tuple[Array, Array]:
    """Smallest and largest value of each slice, 0 included, float64."""
    view = data.reshape(slices.view)
    others = tuple(a for a in range(view.ndim) if a not in slices.kept)
    with np.errstate(invalid="ignore"):                # NaN comes out as NaN: the caller refuses it by name
        return (np.asarray(view.min(axis=others, initial=0.0), np.float64), np.asarray(view.max(axis=others, initial=0.0), np.float64))


def scales_of(low: Array, high: Array, scheme: Scheme) -> Array:
    """float32 scales that cover the ranges [low, high], which hold 0, with the codes of `scheme`."""
    with np.errstate(over="ignore"):
        width = np.maximum(-low, high) if scheme.symmetric else high - low
    scales = np.clip(width / scheme.reach, SMALLEST_SCALE, LARGEST_SCALE).astype(np.float32)
    if scheme.power_of_two:
        scales = _power_of_two(scales)
    return np.where(width / scheme.reach == 0.0, np.float32(1.0), scales)


def zero_points_of(low: Array, high: Array, scales: Array, scheme: Scheme) -> Array:
    """Zero points in the type of the codes."""
    if scheme.symmetric:
        return np.full(scales.shape, scheme.centre, scheme.dtype)
    exact = np.clip(np.rint(scheme.qmin - low / scales.astype(np.float64)), scheme.qmin, scheme.qmax)
    empty = min(max(0, scheme.qmin), scheme.qmax)
    return np.where((low == 0.0) & (high == 0.0), empty, exact).astype(scheme.dtype)


def codes_of(data: Array, found: Grid, deltas: Array | None = None) -> Array:
    """Codes of `data` in the shape in which they are stored.

    deltas   added to the codes of rounding to nearest, before they are clipped; shape of `data`
    """
    slices, scheme = found.slices, found.scheme
    shape = tuple(n if a in slices.kept else 1 for a, n in enumerate(slices.view))
    codes = np.divide(data.reshape(slices.view), found.scales.reshape(shape), dtype=np.float32)
    np.rint(codes, out=codes)
    if found.zero_points.any():
        codes += found.zero_points.reshape(shape)
    if deltas is not None:
        codes += deltas.reshape(slices.view)
    np.clip(codes, scheme.qmin, scheme.qmax, out=codes)
    return codes.astype(scheme.dtype).reshape(slices.stored)


def as_stored(values: Array, slices: Slices) -> Array:
    """Scales or zero points in the shape that DequantizeLinear wants for them."""
    if slices.taps > 1:
        values = np.repeat(values.reshape(-1), slices.taps)
    return values.reshape(slices.scales)


def bias_codes(bias: Array, scales: Array, step: float, limit: int = INT32_MAX) -> tuple[Array, Array]:
    """int64 codes of `bias`, at most `limit` in magnitude, and their float32 scale, step * scales. Both broadcast against each other."""
    total = np.maximum(np.float32(step) * scales.astype(np.float32), np.float32(SMALLEST_SCALE)).astype(np.float32)
    codes = np.clip(np.rint(bias.astype(np.float64) / total.astype(np.float64)), -float(limit), float(limit)).astype(np.int64)
    return codes, total


def bias_limit(bits: int, products: int = 0) -> int:
    """The largest code of a bias of so many bits, as far as two int32 hold it, that leaves room for the products.

    products   the largest sum of products of codes that the accumulator adds to it; at most half of the codes are left to them
    A bias at the limit and a sum of products leave int32 together, and the accumulator wraps around. onnxruntime adds Q/DQ models in
    float and shows none of it; the HTP simulator (onnxruntime-qnn 2.7.0, 2026) was 250 steps off in a Conv of EfficientNet-Lite0.
    """
    largest = (1 << (min(bits, WIDEST_BIAS_BITS) - 1)) - 1
    return largest - min(products, largest // 2)


def halves_of(codes: Array) -> tuple[Array, Array]:
    """int32 (upper, lower) with codes = upper * 2**24 + lower."""
    upper = np.rint(codes / 2.0**LOWER_BITS).astype(np.int64)
    return upper.astype(np.int32), (codes - (upper << LOWER_BITS)).astype(np.int32)


def _per_slice(magnitudes: Array, slices: Slices) -> Array:
    """The largest magnitude among the output channels that share a slice; `magnitudes` is [channels] or one value."""
    if not slices.kept:
        return np.asarray(magnitudes.max(initial=0.0))
    channels = slices.view[slices.kept[0]]
    if magnitudes.size == 1:
        return np.full(channels, magnitudes.reshape(-1)[0])
    largest: Array = magnitudes.reshape(slices.groups, channels).max(axis=0)
    return largest


def _silent(scales: Array, magnitudes: Array, bias: AddedBias) -> Array:
    """Scales that keep the bias of channels without weights."""
    exact = magnitudes / (bias.step * scales.astype(np.float64))
    coarse = np.abs(np.rint(exact) - exact) > exact * 2.0 ** -(bias.bits + 1)
    finer = np.exp2(np.floor(np.log2(np.where(coarse, magnitudes, 1.0) / bias.step)) - SILENT_BIAS_BITS)
    return np.where(coarse, np.maximum(finer, SMALLEST_SCALE), scales)


def _raised(scales: Array, least: Array, scheme: Scheme) -> Array:
    """`scales`, not below `least`; a margin of 1e-6 covers the rounding of both scales to float32."""
    low = scales < least * (1 + 1e-6)
    if not low.any():
        return scales
    least = np.clip(least * (1 + 1e-6), SMALLEST_SCALE, LARGEST_SCALE).astype(np.float32)
    return np.where(low, _power_of_two(least) if scheme.power_of_two else least, scales)


def _power_of_two(scales: Array) -> Array:
    """The smallest powers of two that are not below `scales` (float32), at most 2**127."""
    mantissa, exponent = np.frexp(scales)
    powers: Array = np.ldexp(np.float32(1.0), np.minimum(exponent - (mantissa == 0.5), 127))
    return powers


