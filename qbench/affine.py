"""Affine quantization arithmetic: real = (q - zero_point) * scale. Integers live here and nowhere else.

Source: ONNX QuantizeLinear / DequantizeLinear (rounding half to even); Jacob et al. 2018 (arXiv 1712.05877), section 2.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating[Any]]
IntArray = NDArray[np.integer[Any]]
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
LARGEST_SCALE = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Range:
    """Closed interval of real values that a tensor's codes shall cover."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise ValueError(f"Range needs finite low <= high, got [{self.low}, {self.high}]")

    def including_zero(self) -> Range:
        """The smallest range that holds this one and 0: padding and ReLU need an exact zero."""
        return Range(min(self.low, 0.0), max(self.high, 0.0))

    def union(self, other: Range) -> Range:
        return Range(min(self.low, other.low), max(self.high, other.high))

    @property
    def magnitude(self) -> float:
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True, slots=True)
class Scheme:
    """Which codes a tensor may use.

    bits          width of one code
    signed        int8/int16 (True) or uint8/uint16 (False)
    symmetric     zero_point is fixed (0 when signed, mid-range when unsigned)
    narrow        leave the most negative code out (-127..127, unsigned 1..255), so that negation is exact
    power_of_two  the scale is a power of two

    Codes of fewer bits than their type (int4 in int8) use the middle of it. QuantizeLinear saturates where the type ends: the
    Q/DQ writer clips activations of such codes in front of it, but leaves it the one code that `narrow` leaves out.
    """

    bits: int
    signed: bool
    symmetric: bool
    narrow: bool = False
    power_of_two: bool = False

    @property
    def qmin(self) -> int:
        return (-(1 << (self.bits - 1)) if self.signed else 0) + (1 if self.narrow else 0)

    @property
    def qmax(self) -> int:
        return (1 << self.bits) - 1 if not self.signed else (1 << (self.bits - 1)) - 1

    @property
    def centre(self) -> int:
        """The zero point of a symmetric scheme."""
        return 0 if self.signed else 1 << (self.bits - 1)

    @property
    def reach(self) -> float:
        """Scales between 0 and the largest magnitude of a symmetric scheme, or between the ends of an asymmetric one."""
        if not self.symmetric:
            return self.qmax - self.qmin
        full = self.signed and not self.narrow      # 2 * absmax over all codes: +absmax may clip by half a step
        return (self.qmax - self.qmin) / 2 if full else self.qmax - self.centre

    @property
    def levels(self) -> int:
        """Number of codes a calibrator may assume."""
        return self.qmax - self.qmin + 1

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(f"{'' if self.signed else 'u'}int{8 if self.bits <= 8 else 16 if self.bits <= 16 else 32}")


@dataclass(frozen=True, slots=True)
class Affine:
    """Scale and zero point of one tensor, or of one slice of a per-channel tensor."""

    scale: float
    zero_point: int
    scheme: Scheme

    @property
    def range(self) -> Range:
        """The reals that the codes reach."""
        s = self.scheme
        return Range((s.qmin - self.zero_point) * self.scale, (s.qmax - self.zero_point) * self.scale)

    @property
    def offset(self) -> int:
        """What formats that count codes from 0 store instead of the zero point: -128 for int8 with zero point 0 (BUG case B11)."""
        return _lowest(self.scheme) - self.zero_point


def affine(seen: Range, scheme: Scheme) -> Affine:
    """Scale and zero point that cover `seen` (widened to hold 0) with the codes of `scheme`.

    A range of width 0 gives scale 1.0 and the code of 0 by convention (BUG case B04), so the scale is always finite and > 0.
    The scale is rounded to float32, the type that ONNX stores, and is neither subnormal nor infinite.
    """
    r = seen.including_zero()
    scale = (r.magnitude if scheme.symmetric else r.high - r.low) / scheme.reach
    if scale == 0.0:
        zero_point = scheme.centre if scheme.symmetric else min(max(0, scheme.qmin), scheme.qmax)
        return Affine(1.0, zero_point, scheme)
    scale = float(np.float32(min(max(scale, SMALLEST_SCALE), LARGEST_SCALE)))
    if scheme.power_of_two:
        mantissa, exponent = math.frexp(scale)      # scale = mantissa * 2**exponent, mantissa in [0.5, 1)
        scale = 2.0 ** min(exponent - (mantissa == 0.5), 127)
    if scheme.symmetric:
        return Affine(scale, scheme.centre, scheme)
    zero_point = int(min(max(round(scheme.qmin - r.low / scale), scheme.qmin), scheme.qmax))
    return Affine(scale, zero_point, scheme)


def _lowest(scheme: Scheme) -> int:
    return -(1 << (scheme.bits - 1)) if scheme.signed else 0


def quantize(x: FloatArray, a: Affine) -> IntArray:
    """Codes of `x`, same shape, dtype of the scheme; rounds half to even and saturates, as ONNX does."""
    s = a.scheme
    q = np.rint(np.asarray(x, np.float32) / np.float32(a.scale)).astype(np.float64) + a.zero_point
    codes: IntArray = np.clip(q, s.qmin, s.qmax).astype(s.dtype)
    return codes


def dequantize(q: IntArray, a: Affine) -> NDArray[np.float32]:
    """Reals of the codes `q`, same shape, float32."""
    return ((q.astype(np.int64) - a.zero_point) * np.float32(a.scale)).astype(np.float32)
