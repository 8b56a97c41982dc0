"""The cells of the sketch: float32 with its mantissa cut to 10 bits.

A cell is named by a signed code, ascending with the reals it holds: code k >= 0 holds the reals whose float32 bit pattern
starts with k (its upper 18 bits behind the sign), code ~k the same reals negated. So every cell is at most 2**-10 of its
value wide, at every magnitude from 2**-126 up, no range has to be known before the first value, and sketches merge by adding counts.
The grid has the resolution of float16 and the range of float32 (it is the TF32 format), which is why no scaling has to
be chosen and shifted, as a float16 grid would need.

Source: the idea of a relative-error histogram is DDSketch (Masson, Rim, Lee, VLDB 2019, arXiv 1908.10693).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MANTISSA_BITS = 10
SHIFT = 23 - MANTISSA_BITS
CELLS = 1 << (32 - SHIFT)               # both signs
HALF = CELLS // 2                       # patterns from here on have the sign bit set
FINITE = 0xFF << MANTISSA_BITS          # magnitudes of finite reals lie below this pattern

Codes = NDArray[np.int32]
Reals = NDArray[np.float64]


def codes(patterns: NDArray[np.int64]) -> Codes:
    """Signed codes of bit patterns 0..CELLS-1 (the upper bits of a float32, sign first)."""
    return np.where(patterns < HALF, patterns, ~(patterns - HALF)).astype(np.int32)


def code_of(values: NDArray[np.float32]) -> Codes:
    """The cell that each finite value falls into."""
    return codes((np.ascontiguousarray(values, np.float32).view(np.uint32) >> SHIFT).astype(np.int64))


def _real(magnitudes: NDArray[np.int64]) -> Reals:
    """The smallest real of each magnitude pattern; the pattern behind the last finite one is 2**128."""
    inside = np.minimum(magnitudes, FINITE - 1)
    reals = (inside << SHIFT).astype(np.uint32).view(np.float32).astype(np.float64)
    return np.where(magnitudes >= FINITE, 2.0**128, reals)


def edges(cells: Codes) -> tuple[Reals, Reals]:
    """Lower and upper real of each cell, low <= high; adjoining cells share an edge."""
    wide = cells.astype(np.int64)
    negative = wide < 0
    magnitude = np.where(negative, ~wide, wide)
    inner, outer = _real(magnitude), _real(magnitude + 1)
    return np.where(negative, -outer, inner), np.where(negative, -inner, outer)
