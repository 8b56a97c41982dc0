"""What quantization does to a tensor: the sum of |x - dequantize(quantize(x))|**p for many grids of codes at once, from its histogram."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbench.protocols import Seen

Reals = NDArray[np.float64]

_INNER = 4              # pieces of |e|**p on half a step
_FARTHEST = 40          # the pieces end at 2**_FARTHEST steps: a range of 2**-12 of the data with 65536 levels needs 2**28


class Noise:
    """The error of one tensor when its values go to the nearest level, those beyond the outermost levels to these.

    levels     number of codes
    symmetric  the codes span [-T, T]; otherwise each range is cut into `levels` - 1 even steps that hold 0
    power      p of the sum of |error|**p, 1 or more
    clip       weight of the errors of clipped values
    The centres of the sketch's cells stand for their values. Reals go in and come out in units of the tensor; a sum is that of
    errors in `unit`, a power of two near the largest magnitude, so that it neither overflows nor depends on such a factor.
    """

    def __init__(self, seen: Seen, levels: int, symmetric: bool = False, power: float = 2.0, clip: float = 1.0) -> None:
        from qbench.calibrators import compiled_noise

        x, counts = seen.histogram()
        self.unit = math.ldexp(1.0, math.frexp(max(abs(seen.minimum), abs(seen.maximum)))[1])
        self._x = x / self.unit
        self.levels, self._symmetric, self._power, self._clip = levels, symmetric, power, clip
        self._sums: Reals = compiled_noise.moments(self._x, counts)
        self._starts: NDArray[np.int64] = compiled_noise.buckets(self._x)

    def __call__(self, low: Reals, high: Reals) -> Reals:
        """float64 [candidates], of the grids that ranges with low <= 0 <= high, low < high get.

        Infinity for one that is surely worse than a later one: give narrow ranges first, and look for the least only.
        """
        return self.of_grids(*grids(low, high, self.levels, self._symmetric))

    def of_grids(self, step: Reals, zero: Reals) -> Reals:
        """The same for levels (k - zero) * step, k = 0..levels - 1."""
        from qbench.calibrators.compiled_noise import powered_errors, squared_errors

        common = self._x, self._sums, self._starts, step / self.unit, zero, self.levels, self._clip
        found: Reals = squared_errors(*common) if self._power == 2.0 else powered_errors(*common, self._power, *_pieces(self._power))
        return found


def grids(low: Reals, high: Reals, levels: int, symmetric: bool) -> tuple[Reals, Reals]:
    """Step and place of 0 among the levels of the codes for each range, as `qbench.affine` makes them."""
    if symmetric:
        step = 2 * np.maximum(-low, high) / (levels - 1)
        return step, np.full(step.shape, float(levels // 2))
    step = (high - low) / (levels - 1)
    return step, np.rint(-low / step)


@cache
def _pieces(power: float) -> tuple[Reals, NDArray[Any], int]:
    """(bounds, coefficients, pieces up to 1/2) of quadratics that stand for e**power on [0, 2**_FARTHEST], see `powered_errors`.

    Each agrees with it at the three Chebyshev nodes of its piece, the first at 0 too, where many values may lie; for power
    1 it is that function.
    """
    if power == 1.0:
        return np.array([0.0, 0.5, 2.0**_FARTHEST]), np.array([[0.0, 1.0, 0.0]] * 2), 1
    inner = np.append(0.0, 0.5 * 2.0 ** np.arange(1 - _INNER, 1))
    bounds = np.append(inner, 0.5 * 2.0 ** (np.arange(1, 2 * _FARTHEST + 3) / 2))
    middle, half = (bounds[1:] + bounds[:-1]) / 2, (bounds[1:] - bounds[:-1]) / 2
    nodes = middle[:, None] + half[:, None] * np.cos(np.pi * np.array([1, 3, 5]) / 6)
    nodes[0] = bounds[1] * np.array([0.0, 0.45, 0.95])
    # nodes in units of the upper bound, so that the little systems are well conditioned at every distance
    size = bounds[1:, None]
    scaled = np.linalg.solve((nodes / size)[:, :, None] ** np.arange(3), ((nodes / size) ** power)[:, :, None])[:, :, 0]
    return bounds, scaled * size**power / size ** np.arange(3), _INNER
