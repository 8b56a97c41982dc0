"""The extremes of the samples, smoothed over their order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qbench.affine import Range
from qbench.calibrators.hull import hull, within
from qbench.errors import InputError
from qbench.protocols import Seen


@dataclass(frozen=True, slots=True)
class MovingAverage:
    """Range between the exponential moving averages of each sample's extremes, in the order of the samples.

    Starts at the first sample; each further one moves the average by 1 - momentum of the way. Samples without a finite value
    are left out. The extremes of the first 16,384 samples are kept, so later ones have no say.

    momentum  share of the average so far that stays when a sample comes, 0 to below 1; 0.99 is torch's averaging constant
              of 0.01 and needs several hundred samples to forget the first
    Source: Jacob et al. 2018 (arXiv 1712.05877), section 3.1; Krishnamoorthi 2018 (arXiv 1806.08342), section 3.
    """

    momentum: float = 0.9

    def __post_init__(self) -> None:
        if not 0.0 <= self.momentum < 1.0:
            raise InputError(f"moving-average: momentum is {self.momentum}; expected 0 to below 1, e.g. moving-average:momentum=0.9")

    def range(self, seen: Seen, levels: int, symmetric: bool = False) -> Range:
        """Range in real units. Raises NotObserved if the tensor never occurred."""
        whole = hull(seen)
        low, high = seen.sample_low.astype(np.float64), seen.sample_high.astype(np.float64)
        some = low <= high
        if not some.any():              # statistics of another make, without extremes of samples
            return whole
        return within(self._smoothed(low[some]), self._smoothed(high[some]), whole)

    def _smoothed(self, extremes: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
        """The average after the last one: the first weighs momentum**(n-1), any other (1 - momentum) * momentum**(n-1-i)."""
        weights = self.momentum ** np.arange(extremes.size - 1, -1, -1.0)
        weights[1:] *= 1.0 - self.momentum
        return float(weights @ extremes)
