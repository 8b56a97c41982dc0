"""The range with the least mean squared quantization error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbench.affine import Range
from qbench.calibrators.hull import hull, within
from qbench.errors import InputError
from qbench.protocols import Seen

Reals = NDArray[np.float64]
Places = NDArray[np.integer[Any]]

EXACT_LEVELS = 1024
"""Up to here the error is summed level by level; above, rounding errors are even inside a step and steps**2 / 12 holds."""
_NARROWEST = 2.0**-12       # share of the hull's magnitude at which the search begins


@dataclass(frozen=True, slots=True)
class Mse:
    """Range that minimises the mean of (x - dequantize(quantize(x)))**2 over the histogram, clipping and rounding together.

    First one threshold for both sides, then each side by itself, each time all candidates at once and then again around
    the best one. The error of a candidate is exact on the histogram: from running sums of counts, values and squares
    at the boundaries between its levels.

    steps  candidates compared at a time, 8 or more
    Source: Banner et al. 2019 (arXiv 1810.05723), section 3, for the trade of clipping against rounding.
    """

    steps: int = 64

    def __post_init__(self) -> None:
        if self.steps < 8:
            raise InputError(f"mse: steps is {self.steps}; expected 8 or more, e.g. mse:steps=64")

    def range(self, seen: Seen, levels: int, symmetric: bool = False) -> Range:
        """Range in real units. Raises NotObserved if the tensor never occurred."""
        whole = hull(seen)
        if whole.magnitude == 0.0 or levels < 2:
            return whole
        error = SquaredError(seen, levels)

        def threshold(t: Reals) -> tuple[Reals, Reals]:
            return np.maximum(-t, whole.low), np.minimum(t, whole.high)

        low, high = (float(end) for end in threshold(self._least(lambda t: error(*threshold(t)), whole.magnitude)))
        if whole.low < 0.0 < whole.high:
            low = -float(self._least(lambda t: error(-t, np.full_like(t, high)), -whole.low))
            high = float(self._least(lambda t: error(np.full_like(t, low), t), whole.high))
        return within(low, high, whole)

    def _least(self, loss: Callable[[Reals], Reals], most: float) -> Reals:
        """The t in (0, most] of least loss: the best of a geometric row, then of an even row around it. A 0-d array."""
        row = most * np.geomspace(_NARROWEST, 1.0, 2 * self.steps)
        best = int(np.argmin(loss(row)))
        near = np.linspace(row[max(best - 1, 0)], row[min(best + 1, row.size - 1)], self.steps)
        near[-1] = min(near[-1], most)
        return near[int(np.argmin(loss(near)))]     # type: ignore[no-any-return]


class SquaredError:
    """Sum of squared quantization errors of a tensor for candidate ranges, from running sums over its histogram."""

    def __init__(self, seen: Seen, levels: int) -> None:
        from qbench.calibrators import compiled

        self._x, counts = seen.histogram()
        self._levels = levels
        self._sums: Reals = compiled.moments(self._x, counts)
        self._starts: Places = compiled.buckets(self._x)

    def __call__(self, low: Reals, high: Reals) -> Reals:
        """float64 [candidates], from narrow to wide; low <= 0 <= high, low < high. Infinity: a wider one is surely better."""
        if self._levels <= EXACT_LEVELS:
            return self._by_level(low, high)
        step = (high - low) / (self._levels - 1)
        zero = np.rint(-low / step)
        bottom, top = -zero * step, (self._levels - 1 - zero) * step
        first, last, size = np.searchsorted(self._x, bottom), np.searchsorted(self._x, top), np.full(step.size, self._x.size)
        clipped = self._moment(np.zeros_like(first), first, bottom) + self._moment(last, size, top)
        return clipped + self._between(first, last, 0) * step**2 / 12

    def _by_level(self, low: Reals, high: Reals) -> Reals:
        """Every value goes to its nearest level (k - zero) * step, k from 0 to levels - 1."""
        from qbench.calibrators.compiled import squared_errors

        return squared_errors(self._x, self._sums, self._starts, low, high, self._levels)   # type: ignore[no-any-return]

    def _moment(self, first: Places, last: Places, about: Reals) -> Reals:
        """Sum of (x - about)**2 over the cells from `first` up to `last`."""
        return (self._between(first, last, 2) - 2 * about * self._between(first, last, 1)
                + about**2 * self._between(first, last, 0))

    def _between(self, first: Places, last: Places, power: int) -> Reals:
        return self._sums[last, power] - self._sums[first, power]  # type: ignore[no-any-return]
