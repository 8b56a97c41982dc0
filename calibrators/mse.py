"""The range with the least mean squared quantization error."""

from __future__ import annotations

from dataclasses import dataclass

from qbench.affine import Range
from qbench.calibrators.hull import hull
from qbench.calibrators.noise import Noise
from qbench.calibrators.thresholds import STEPS, least_error
from qbench.errors import InputError
from qbench.protocols import Seen


@dataclass(frozen=True, slots=True)
class Mse:
    """Range that minimises the mean of (x - dequantize(quantize(x)))**2 over the histogram, clipping and rounding together.

    First one threshold for both sides, then each side by itself, each time all candidates at once and then again around
    the best one. The error of a candidate is exact on the histogram: from running sums of counts, values and squares
    at the boundaries between its levels.

    steps  candidates compared at a time, 8 or more
    Source: Banner et al. 2019 (arXiv 1810.05723), section 3, for the trade of clipping against rounding.
    """

    steps: int = STEPS

    def __post_init__(self) -> None:
        if self.steps < 8:
            raise InputError(f"mse: steps is {self.steps}; expected 8 or more, e.g. mse:steps=64")

    def range(self, seen: Seen, levels: int, symmetric: bool = False) -> Range:
        """Range in real units. Raises NotObserved if the tensor never occurred."""
        whole = hull(seen)
        if whole.magnitude == 0.0 or levels < 2:
            return whole
        return least_error(Noise(seen, levels, symmetric), whole, symmetric, self.steps)
