"""The range whose scale is a power of two: hardware that shifts instead of multiplying."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from qbench.affine import Range
from qbench.calibrators.hull import hull, within
from qbench.calibrators.noise import Noise, Reals
from qbench.errors import InputError
from qbench.protocols import Seen

FEWEST_LEVELS = 4
OCTAVES = 12
"""So much narrower than the data a range may be."""
PLACES = 257
"""So many places of 0 among the levels are compared at a time: all of them for 8 bits."""
_SMALLEST, _LARGEST = 2.0**-126, 2.0**127       # of a float32 that is neither subnormal nor infinite


@dataclass(frozen=True, slots=True)
class PowerOfTwo:
    """Range of the best scale 2**e, cut to the data: `qbench.affine` with a power-of-two scheme makes exactly this scale of it.

    The exponent is chosen with both kinds of error in view; rounding the scale of another calibrator up may double its step.
    For fewer than 4 levels it is the whole of the data.

    by  "mse": the exponent, and where the codes lie around 0, with the least squared error; "overflow": the smallest exponent
        at which no value is off by more than half a step
    Source: Jain et al. 2020 (arXiv 1903.08066), sections 3 and 4 (power-of-two scales; its initial thresholds); the Q formats
            of CMSIS-NN, Lai et al. 2018 (arXiv 1801.06601), section 2.
    """

    by: Literal["mse", "overflow"] = "mse"

    def __post_init__(self) -> None:
        if self.by not in ("mse", "overflow"):
            raise InputError(f"power-of-two: by is {self.by!r}; known: mse, overflow")

    def range(self, seen: Seen, levels: int, symmetric: bool = False) -> Range:
        """Range in real units. Raises NotObserved if the tensor never occurred."""
        return self.chosen(seen, levels, symmetric)[1]

    def chosen(self, seen: Seen, levels: int, symmetric: bool = False) -> tuple[float, Range]:
        """(scale, range); the scale is 1.0 where the data are 0, and not meant for fewer than 4 levels."""
        whole = hull(seen)
        if whole.magnitude == 0.0 or levels < FEWEST_LEVELS:
            return 1.0, whole
        if symmetric:
            return self._symmetric(seen, whole, levels)
        return self._asymmetric(seen, whole, levels)

    def _symmetric(self, seen: Seen, whole: Range, levels: int) -> tuple[float, Range]:
        """Codes from -half to half, one more below where their number is even. A scheme counts with half of them or with half a
        code more; the range's larger side is at most half, and more than (half + 1/2) / 2, which is the same power of two for both."""
        half = (levels - 1) // 2
        scale = _at_least(max(whole.high / (half + 0.5), -whole.low / (levels // 2 + 0.5)))
        if self.by == "mse":
            scales = _down_from(scale)
            errors = Noise(seen, levels, True).of_grids(scales, np.full(scales.size, float(levels // 2)))
            scale = float(scales[int(np.argmin(errors))])
        return scale, within(-half * scale, half * scale, whole)

    def _asymmetric(self, seen: Seen, whole: Range, levels: int) -> tuple[float, Range]:
        widest = _at_least((whole.high - whole.low) / (levels - 1))
        if self.by == "overflow":
            scale = widest / 2
            zero, last = float(np.rint(-whole.low / scale)), float(np.rint(whole.high / scale))
            if zero + last > levels - 1 or scale < _SMALLEST:
                return widest, whole
            return scale, within(-zero * scale, last * scale, whole)
        noise, scales = Noise(seen, levels), _down_from(widest)
        rows = [_places(whole, float(s), levels, PLACES) for s in scales[:-1]] + [np.rint([-whole.low / widest])]
        steps, zeros = np.repeat(scales, [r.size for r in rows]), np.concatenate(rows)
        best = int(np.argmin(noise.of_grids(steps, zeros)))
        scale, zero = float(steps[best]), float(zeros[best])
        if scale == widest:
            return widest, whole
        if levels > PLACES:
            every = _places(whole, scale, levels, levels)
            near = every[np.abs(every - zero) <= levels // (PLACES - 1)]
            zero = float(near[int(np.argmin(noise.of_grids(np.full(near.size, scale), near)))])
        return scale, within(-zero * scale, (levels - 1 - zero) * scale, whole)


def _places(whole: Range, scale: float, levels: int, most: int) -> Reals:
    """Where 0 may lie among the levels so that they reach over neither side of the data by more than half a step, up to `most`."""
    first, last = max(0.0, levels - 1 - np.rint(whole.high / scale)), min(levels - 1.0, np.rint(-whole.low / scale))
    places: Reals = np.unique(np.rint(np.linspace(first, last, min(most, int(last - first) + 1))))
    return places


def _down_from(scale: float) -> Reals:
    """Powers of two up to `scale`, ascending."""
    row: Reals = np.ldexp(scale, np.arange(-OCTAVES, 1))
    return row[row >= _SMALLEST]


def _at_least(scale: float) -> float:
    """The smallest power of two that is not below `scale`, as `qbench.affine` rounds it up."""
    return min(max(math.ldexp(1.0, math.ceil(math.log2(scale))), _SMALLEST), _LARGEST)
