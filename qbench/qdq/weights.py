"""Integers for weights and biases: pure functions on arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbench.affine import Range, Scheme, affine

Array = NDArray[Any]
INT32_MAX = 2**31 - 1


def weight_scales(data: Array, axis: int | None, scheme: Scheme) -> Array:
    """float32 [channels], one scale per slice along `axis`; [1] when `axis` is None."""
    slices = [data] if axis is None else list(np.moveaxis(data, axis, 0))
    return np.array([affine(Range(float(s.min(initial=0.0)), float(s.max(initial=0.0))), scheme).scale for s in slices], np.float32)


def weight_codes(data: Array, scales: Array, axis: int | None, scheme: Scheme) -> Array:
    """Codes of `data`, same shape, zero point 0."""
    shape = [1] * data.ndim
    if axis is not None:
        shape[axis] = -1
    return np.clip(np.rint(data / scales.reshape(shape)), scheme.qmin, scheme.qmax).astype(scheme.dtype)


def scales_that_hold_bias(scales: Array, bias: Array, input_scale: float) -> Array:
    """`scales`, raised where round(bias / (input_scale * scale)) would leave int32 (BUG case B08)."""
    worst = np.abs(bias).reshape(-1) if scales.size > 1 else np.abs(bias).max(initial=0.0).reshape(1)
    least = worst.astype(np.float64) / (input_scale * INT32_MAX)
    return np.maximum(scales.astype(np.float64), least * (1 + 1e-6)).astype(np.float32)


def bias_codes(bias: Array, scales: Array, input_scale: float) -> tuple[Array, Array]:
    """int32 codes of `bias` and their float32 scale (input_scale * scales; a scalar for one weight scale)."""
    total = np.maximum(np.float32(input_scale) * scales.astype(np.float32), np.finfo(np.float32).tiny).astype(np.float32)
    codes = np.clip(np.rint(bias.astype(np.float64) / total.astype(np.float64)), -INT32_MAX, INT32_MAX).astype(np.int32)
    return codes, total if total.size > 1 else total.reshape(())
