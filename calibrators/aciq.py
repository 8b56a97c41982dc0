"""Analytical clipping: the threshold that is best for a Laplace or normal distribution of the tensor's width."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from qbench.affine import Range
from qbench.calibrators.hull import hull, within
from qbench.errors import InputError
from qbench.protocols import Seen

Reals = NDArray[np.float64]
Counts = NDArray[np.int64]

_GAUSS, _LAPLACE = math.sqrt(2 / math.pi), math.sqrt(0.5)       # mean absolute deviation / standard deviation


@dataclass(frozen=True, slots=True)
class Aciq:
    """Range mean +- alpha, alpha minimising the expected squared error, clipping and rounding, of a density fitted to the data.

    The step is 2 alpha / levels, as in the paper; alpha is solved for numerically, for any number of levels. Values that
    are exactly 0 are left out of the fit: every range represents them exactly. Data on one side of 0 (after a ReLU) count
    as magnitudes of a density around 0, the range holds one side, and its step is half as wide; where the codes span
    [-T, T] nevertheless it is not, and the density of any data is taken around 0.

    shape  "laplace", "gauss", or "auto": whichever has the closer ratio of mean absolute to standard deviation
    Source: Banner et al. 2019 (arXiv 1810.05723), section 2: equations for the clipping and rounding noise of both densities.
    """

    shape: Literal["auto", "laplace", "gauss"] = "auto"

    def __post_init__(self) -> None:
        if self.shape not in ("auto", "laplace", "gauss"):
            raise InputError(f"aciq: shape is {self.shape!r}; known: auto, laplace, gauss")

    def range(self, seen: Seen, levels: int, symmetric: bool = False) -> Range:
        """Range in real units. Raises NotObserved if the tensor never occurred."""
        whole = hull(seen)
        if seen.zeros == seen.count:
            return whole
        x, counts = seen.histogram()
        x, counts = x[x != 0], counts[x != 0]
        one_sided = whole.low == 0.0 or whole.high == 0.0
        around = 0.0 if one_sided or symmetric else float(np.average(x, weights=counts))
        spread = np.abs(x - around)
        absolute, deviation = float(np.average(spread, weights=counts)), _root_mean_square(spread, counts)
        if deviation == 0.0:
            return whole
        laplace = self.shape == "laplace" or (self.shape == "auto" and absolute / deviation < (_GAUSS + _LAPLACE) / 2)
        steps = levels if symmetric or not one_sided else 2 * levels
        reach = absolute * alpha_laplace(steps) if laplace else deviation * alpha_gauss(steps)
        return within(around - reach, around + reach, whole)


@cache
def alpha_laplace(steps: int) -> float:
    """Best threshold of a Laplace density of b = 1 for a step of 2 alpha / steps.

    The least of 2 exp(-alpha) + alpha**2 / (3 steps**2), where its derivative is 0.
    """
    return _root(lambda a: a / (3 * steps**2) - math.exp(-a))


@cache
def alpha_gauss(steps: int) -> float:
    """Best threshold of a normal density of sigma = 1 for a step of 2 alpha / steps.

    The least of (1 + alpha**2) erfc(alpha / sqrt 2) - sqrt(2 / pi) alpha exp(-alpha**2 / 2) + alpha**2 / (3 steps**2).
    """
    def slope(a: float) -> float:
        return a / (3 * steps**2) + a * math.erfc(a / math.sqrt(2)) - math.sqrt(2 / math.pi) * math.exp(-a * a / 2)

    return _root(slope)


def _root(rising: Callable[[float], float]) -> float:
    """Where a rising function that is negative at 0 and positive at 64 crosses 0, to the last bit."""
    low, high = 0.0, 64.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return low


def _root_mean_square(x: Reals, counts: Counts) -> float:
    """Relative to the largest, so that no square leaves the range of floats."""
    most = float(x.max())
    return most * math.sqrt(float(np.average((x / most) ** 2, weights=counts))) if most else 0.0
