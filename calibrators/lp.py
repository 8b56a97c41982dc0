"""The range with the least quantization error in another norm than the squared one."""

from __future__ import annotations

from dataclasses import dataclass

from qbench.affine import Range
from qbench.calibrators.hull import hull
from qbench.calibrators.noise import Noise
from qbench.calibrators.thresholds import least_error
from qbench.errors import InputError
from qbench.protocols import Seen

MOST_POWER = 4.0


@dataclass(frozen=True, slots=True)
class Lp:
    """Range that minimises the sum of |x - dequantize(quantize(x))|**p over the histogram, clipping and rounding together.

    A larger p clips less, since the few large errors of clipped values weigh more; p=1 is the mean absolute error (MAE, also
    by the name mae), p=2 the mean squared error of mse. Searched as mse does. |e|**p is a quadratic on each of several pieces of
    e, which is exact for p=1 and 2 and within one percent of the sum elsewhere.

    p  power, 1 to 4
    Source: Nahshan et al. 2019 (arXiv 1911.07190), its layer-wise step; p = 2.4 as in the code of Li et al. 2021 (arXiv 2102.05426).
    """

    p: float = 2.4

    def __post_init__(self) -> None:
        if not 1.0 <= self.p <= MOST_POWER:
            raise InputError(f"lp: p is {self.p}; expected 1 to {MOST_POWER:g}, e.g. lp:p=2.4")

    def range(self, seen: Seen, levels: int, symmetric: bool = False) -> Range:
        """Range in real units. Raises NotObserved if the tensor never occurred."""
        whole = hull(seen)
        if whole.magnitude == 0.0 or levels < 2:
            return whole
        return least_error(Noise(seen, levels, symmetric, power=self.p), whole, symmetric)
