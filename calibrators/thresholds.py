"""The search for the range of least error: one threshold for both sides first, then each side by itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qbench.affine import Range
from qbench.calibrators.hull import within
from qbench.calibrators.noise import Noise, Reals

NARROWEST = 2.0**-12
"""Share of the hull's magnitude at which the search begins."""
STEPS = 64
FEW_LEVELS = 32
"""Up to here the error has several minima, a level here or there, and the rows are four times as dense."""


def least_error(noise: Noise, whole: Range, symmetric: bool, steps: int = STEPS) -> Range:
    """The range inside `whole`, which is not [0, 0], whose codes have the least error.

    symmetric  the codes span [-T, T]: there is one threshold only
    steps      candidates compared at a time
    """
    if noise.levels <= FEW_LEVELS:
        steps *= 4
    t = _least(lambda t: noise(np.maximum(-t, whole.low), np.minimum(t, whole.high)), whole.magnitude, steps)
    low, high = max(-t, whole.low), min(t, whole.high)
    if whole.low < 0.0 < whole.high and not symmetric:
        low = -_least(lambda t: noise(-t, np.full_like(t, high)), -whole.low, steps)
        high = _least(lambda t: noise(np.full_like(t, low), t), whole.high, steps)
    return within(low, high, whole)


def _least(loss: Callable[[Reals], Reals], most: float, steps: int) -> float:
    """The t in (0, most] of least loss: the best of a geometric row, then of an even row around it."""
    row = most * np.geomspace(NARROWEST, 1.0, steps)
    best = int(np.argmin(loss(row)))
    near = np.linspace(row[max(best - 1, 0)], row[min(best + 1, row.size - 1)], steps // 2 + 1)
    return float(near[int(np.argmin(loss(near)))])
