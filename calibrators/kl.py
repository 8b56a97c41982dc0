"""Entropy calibration: the threshold whose quantized distribution tells the least lie about the original one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qbench.affine import Range
from qbench.calibrators.hull import hull, within
from qbench.errors import InputError
from qbench.protocols import Seen

Reals = NDArray[np.float64]
Places = NDArray[np.int64]

FEWEST_BINS = 512
MOST_LEVELS = 1024
"""From here on a step is finer than the cells of the sketch."""
BINS_PER_LEVEL = 4


@dataclass(frozen=True, slots=True)
class Kl:
    """Range [max(-T, min), min(T, max)] with the threshold T of least Kullback-Leibler divergence.

    For each T the values beyond it are moved to the outermost bins of the reference distribution P; Q is P's inside merged to
    `levels` groups and spread again over the bins that were not empty. Differences from the published procedure, each for
    a fault seen in use:
    * the groups span the range as it will be quantized: one side after a ReLU, both sides unevenly after a SiLU;
    * values that are exactly 0 are left out: every range represents 0 exactly, and the many zeros behind a ReLU would
      otherwise weigh so much that T collapses;
    * groups are evenly cut (boundaries at whole parts of k * span / levels), so that no last group takes the rest;
    * a bin of P that Q leaves empty counts as half a value, so that the divergence stays finite.

    bins   bins on the longer side, 512 or more; raised to 4 a level where `levels` asks for it, so that several hundred
           thresholds are always compared. For more than 1024 levels nothing is clipped: a step is then finer than
           what the statistics resolve, and there is no rounding to weigh against clipping.
    Source: S. Migacz, "8-bit Inference with TensorRT", GPU Technology Conference 2017.
    """

    bins: int = 2048

    def __post_init__(self) -> None:
        if self.bins < FEWEST_BINS:
            raise InputError(f"kl: bins is {self.bins}; with fewer than {FEWEST_BINS} there are too few thresholds to choose from, and "
                             "the result would be min-max under another name. The default is 2048")

    def range(self, seen: Seen, levels: int) -> Range:
        """Range in real units. Raises NotObserved if the tensor never occurred."""
        whole = hull(seen)
        if levels > MOST_LEVELS or whole.magnitude == 0.0:
            return whole
        bins = max(self.bins, BINS_PER_LEVEL * levels)
        width = whole.magnitude / bins
        counts, middle = uniform(seen, whole, width)
        first, last = candidates(counts.size, middle, bins, levels)
        loss = divergences(counts, first, last, levels)
        best = int(np.argmin(loss))
        return within((int(first[best]) - middle) * width, (int(last[best]) - middle) * width, whole)


def uniform(seen: Seen, whole: Range, width: float) -> tuple[Reals, int]:
    """Counts in bins of equal `width` over `whole`, zeros left out, and the index of the bin that begins at 0."""
    middle, above = (int(np.ceil(round(side / width, 6))) for side in (-whole.low, whole.high))
    reached = seen.below(np.arange(-middle, above + 1, dtype=np.float64) * width)
    reached[0], reached[-1] = 0.0, seen.count
    counts = np.diff(reached)
    if above:
        counts[middle] -= seen.zeros
    else:
        counts[-1] -= seen.zeros
    return np.maximum(counts, 0.0), middle


def candidates(size: int, middle: int, bins: int, levels: int) -> tuple[Places, Places]:
    """Bins [first, last) that each threshold keeps, int64 [thresholds]; at least one bin for each level."""
    reach = np.arange(1, bins + 1)
    first, last = np.maximum(middle - reach, 0), np.minimum(middle + reach, size)
    wide = last - first >= levels
    return first[wide], last[wide]


def divergences(counts: Reals, first: Places, last: Places, levels: int) -> Reals:
    """Kullback-Leibler divergence of each candidate [first, last), float64 [candidates], from running sums over the bins."""
    from qbench.calibrators.compiled import cross_entropy

    def running(x: Reals) -> Reals:
        return np.concatenate([np.zeros(1), np.cumsum(x)])

    mass, filled, entropy = running(counts), running((counts > 0).astype(np.float64)), running(_xlogx(counts))
    left, right = mass[first], mass[-1] - mass[last]
    inside = mass[last] - mass[first]
    low, high = counts[first], counts[last - 1]
    own = entropy[last] - entropy[first] + _xlogx(low + left) - _xlogx(low) + _xlogx(high + right) - _xlogx(high)
    cross = cross_entropy(mass, filled, first, last, levels, left, right)
    total = mass[-1]
    with np.errstate(divide="ignore"):
        loss = (own - cross) / total + np.log(inside) - np.log(total)
    return np.where(inside > 0, loss, np.inf)       # a threshold below every value says nothing about them


def _xlogx(x: Reals) -> Reals:
    return x * np.log(np.where(x > 0, x, 1.0))
