"""All but a given share of the values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from qbench.affine import Range
from qbench.calibrators.hull import hull, within
from qbench.errors import InputError
from qbench.protocols import Seen


@dataclass(frozen=True, slots=True)
class Percentile:
    """Range that keeps `p` percent of the values: drops the outliers that a scale cannot afford.

    p      percent kept, 0 < p <= 100
    sided  "both": what is dropped is split evenly over the two tails, so that data on one side of 0 lose half of it only,
           the values next to 0 being inside every range; "one": all that is dropped comes from the longer tail, which is
           the only one of data on one side of 0; "magnitude": the values largest in magnitude are dropped, whatever
           their sign
    Source: Wu et al. 2020 (arXiv 2004.09602), section 3.
    """

    p: float = 99.99
    sided: Literal["both", "one", "magnitude"] = "both"

    def __post_init__(self) -> None:
        if not 0.0 < self.p <= 100.0:
            raise InputError(f"percentile: p is {self.p}; expected a percentage above 0 and up to 100, e.g. percentile:p=99.99")
        if self.sided not in ("both", "one", "magnitude"):
            raise InputError(f"percentile: sided is {self.sided!r}; known: both, one, magnitude")

    def range(self, seen: Seen, levels: int, symmetric: bool = False) -> Range:
        """Range in real units. Raises NotObserved if the tensor never occurred."""
        whole = hull(seen)
        if self.p == 100.0:
            return whole
        if self.sided == "magnitude":
            reach = _magnitude(seen, self.p / 100.0)
            return within(-reach, reach, whole)
        if self.sided == "one":
            share = self.p / 100.0
            up = whole.high >= -whole.low
            return within(seen.minimum if up else seen.quantile(1.0 - share), seen.quantile(share) if up else seen.maximum, whole)
        tail = (100.0 - self.p) / 200.0
        return within(seen.quantile(tail), seen.quantile(1.0 - tail), whole)


def _magnitude(seen: Seen, share: float) -> float:
    """The least magnitude that at least a `share` of the values does not exceed."""
    centres, counts = seen.histogram()
    order = np.argsort(np.abs(centres), kind="stable")
    at = int(np.searchsorted(np.cumsum(counts[order]), share * seen.count * (1.0 - 1e-12)))    # 0.9999 * 10000 is a hair above 9999
    return float(abs(centres[order[min(at, order.size - 1)]]))
