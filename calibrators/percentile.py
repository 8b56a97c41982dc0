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
    sided  "both": what is dropped is split evenly over the two tails; "magnitude": the values largest in magnitude are
           dropped, whatever their sign
    Source: Wu et al. 2020 (arXiv 2004.09602), section 3.
    """

    p: float = 99.99
    sided: Literal["both", "magnitude"] = "both"

    def __post_init__(self) -> None:
        if not 0.0 < self.p <= 100.0:
            raise InputError(f"percentile: p is {self.p}; expected a percentage above 0 and up to 100, e.g. percentile:p=99.99")
        if self.sided not in ("both", "magnitude"):
            raise InputError(f"percentile: sided is {self.sided!r}; known: both, magnitude")

    def range(self, seen: Seen, levels: int, symmetric: bool = False) -> Range:
        """Range in real units. Raises NotObserved if the tensor never occurred."""
        whole = hull(seen)
        if self.p == 100.0:
            return whole
        if self.sided == "magnitude":
            reach = _magnitude(seen, self.p / 100.0)
            return within(-reach, reach, whole)
        tail = (100.0 - self.p) / 200.0
        return within(seen.quantile(tail), seen.quantile(1.0 - tail), whole)


def _magnitude(seen: Seen, share: float) -> float:
    """The magnitude that a `share` of the values does not exceed."""
    centres, counts = seen.histogram()
    order = np.argsort(np.abs(centres), kind="stable")
    at = int(np.searchsorted(np.cumsum(counts[order]), share * (seen.count - 1), side="right"))
    return float(abs(centres[order[min(at, order.size - 1)]]))
