"""The typical extremes of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from qbench.affine import Range
from qbench.calibrators.hull import hull, within
from qbench.errors import InputError
from qbench.protocols import Seen


@dataclass(frozen=True, slots=True)
class Extremes:
    """Range from the mean (or median) of the batches' minima to that of their maxima: one odd sample does not set it.

    Samples without a finite value are left out. The extremes of the first 16,384 samples are kept, so later ones have no say.

    of     "mean" or "median" over the batches
    batch  so many consecutive samples to a batch, 1 or more
    Source: Zmora et al. 2019 (arXiv 1910.12232), clipping by averages; OpenVINO NNCF, range estimators mean_min_max and median_min_max.
    """

    of: Literal["mean", "median"] = "mean"
    batch: int = 1

    def __post_init__(self) -> None:
        if self.of not in ("mean", "median"):
            raise InputError(f"extremes: of is {self.of!r}; known: mean, median")
        if self.batch < 1:
            raise InputError(f"extremes: batch is {self.batch}; expected 1 or more samples to a batch")

    def range(self, seen: Seen, levels: int, symmetric: bool = False) -> Range:
        """Range in real units. Raises NotObserved if the tensor never occurred."""
        whole = hull(seen)
        some = seen.sample_low <= seen.sample_high
        if not some.any():              # statistics of another make, without extremes of samples
            return whole
        first = np.flatnonzero(np.diff(np.flatnonzero(some) // self.batch, prepend=-1))
        low = np.minimum.reduceat(seen.sample_low[some], first).astype(np.float64)
        high = np.maximum.reduceat(seen.sample_high[some], first).astype(np.float64)
        middle: Callable[[NDArray[np.float64]], Any] = np.mean if self.of == "mean" else np.median
        return within(float(middle(low)), float(middle(high)), whole)
