"""Entropy calibration: the threshold whose quantized distribution tells the least lie about the original one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
VALUES_PER_BIN = 4
"""With fewer values than this for each bin the bins hold chance, and the least divergence lies at a threshold that says nothing."""
MOST_ROUNDS = 8
"""Of moving one side and then the other; two or three are usual."""


@dataclass(frozen=True, slots=True)
class Kl:
    """Range with the least Kullback-Leibler divergence between the values and what their codes can tell apart.

    By default [max(-T, min), min(T, max)] with the best threshold T.

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
           what the statistics resolve, and there is no rounding to weigh against clipping. Nor with fewer than 4 values
           a bin (a few hundred logits, say): so few make no distribution to compare with.
    sides  "together": one threshold for both sides; "apart": from there each side is moved by itself, in turn, until neither
           gains, so that the divergence is never larger. Codes that span [-T, T] have one threshold in any case
    Source: S. Migacz, "8-bit Inference with TensorRT", GPU Technology Conference 2017.
    """

    bins: int = 2048
    sides: Literal["together", "apart"] = "together"

    def __post_init__(self) -> None:
        if self.bins < FEWEST_BINS:
            raise InputError(f"kl: bins is {self.bins}; with fewer than {FEWEST_BINS} there are too few thresholds to choose from, and "
                             "the result would be min-max under another name. The default is 2048")
        if self.sides not in ("together", "apart"):
            raise InputError(f"kl: sides is {self.sides!r}; known: together, apart")

    def range(self, seen: Seen, levels: int, symmetric: bool = False) -> Range:
        """Range in real units. Raises NotObserved if the tensor never occurred."""
        whole = hull(seen)
        if levels > MOST_LEVELS or seen.zeros == seen.count:
            return whole
        bins = max(self.bins, BINS_PER_LEVEL * levels)
        if seen.count - seen.zeros < VALUES_PER_BIN * bins:
            return whole
        width = whole.magnitude / bins
        counts, middle = uniform(seen, Range(-whole.magnitude, whole.magnitude) if symmetric else whole, width)
        begin, end, loss = least(counts, *candidates(counts.size, middle, bins, levels), levels)
        if self.sides == "apart" and not symmetric and 0 < middle < counts.size:
            begin, end = apart(counts, middle, levels, begin, end, loss)
        return within((begin - middle) * width, (end - middle) * width, whole)


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


def least(counts: Reals, first: Places, last: Places, levels: int) -> tuple[int, int, float]:
    """(first, last, divergence) of the candidate with the least divergence; candidates ascend in width."""
    loss = divergences(counts, first, last, levels, skip=True)
    best = int(np.argmin(loss))
    return int(first[best]), int(last[best]), float(loss[best])


def apart(counts: Reals, middle: int, levels: int, first: int, last: int, loss: float) -> tuple[int, int]:
    """Bins [first, last) after moving each end by itself, for as long as the divergence falls."""
    for _ in range(MOST_ROUNDS):
        before = loss
        begins = np.arange(min(middle, last - levels), -1, -1)
        ends = np.arange(max(middle, first + levels), counts.size + 1)
        if begins.size and (found := least(counts, begins, np.full_like(begins, last), levels))[2] < loss:
            first, _, loss = found
            ends = np.arange(max(middle, first + levels), counts.size + 1)
        if ends.size and (found := least(counts, np.full_like(ends, first), ends, levels))[2] < loss:
            _, last, loss = found
        if loss == before:
            break
    return first, last


def divergences(counts: Reals, first: Places, last: Places, levels: int, skip: bool = False) -> Reals:
    """Kullback-Leibler divergence of each candidate [first, last), float64 [candidates], from running sums over the bins.

    skip   infinity in place of those that cannot be the least, which is most of them
    """
    from qbench.calibrators import compiled

    def running(x: Reals) -> Reals:
        return np.concatenate([np.zeros(1), np.cumsum(x)])

    mass, filled, entropy = running(counts), running((counts > 0).astype(np.float64)), running(_xlogx(counts))
    left, right = mass[first], mass[-1] - mass[last]
    low, high = counts[first], counts[last - 1]
    own = entropy[last] - entropy[first] + _xlogx(low + left) - _xlogx(low) + _xlogx(high + right) - _xlogx(high)
    with np.errstate(divide="ignore"):
        own = own / mass[-1] + np.log((mass[last] - mass[first]) / mass[-1])
    least = floors(mass, filled, first, last, levels) if skip else np.full(first.size, -np.inf)
    return compiled.divergences(mass, filled, first, last, levels, own, least)      # type: ignore[no-any-return]


def floors(mass: Reals, filled: Reals, first: Places, last: Places, levels: int) -> Reals:
    """What each divergence is at least, float64 [candidates]: that of three sums, the two end bins and all bins between.

    Source: the log sum inequality, Cover and Thomas 2006, "Elements of Information Theory", theorem 2.7.1.
    """
    inside = mass[last] - mass[first]
    floor, p_rest, q_rest = np.zeros(first.size), np.full(first.size, mass[-1]), inside.copy()
    ends = ((first, first + (last - first) // levels, first, mass[first]),
            (first + (levels - 1) * (last - first) // levels, last, last - 1, mass[-1] - mass[last]))
    for begin, end, bin_, clipped in ends:
        p = mass[bin_ + 1] - mass[bin_] + clipped
        kept = mass[end] - mass[begin]
        group = np.maximum(kept, np.minimum(kept + clipped, 0.5))
        empty = (clipped > 0) & (filled[bin_ + 1] == filled[bin_])
        q = np.divide(group, filled[end] - filled[begin] + empty, out=np.zeros(first.size), where=p > 0)
        floor += _xlogxy(p, q)
        p_rest, q_rest = p_rest - p, q_rest + (group - kept) - q
    floor += _xlogxy(np.maximum(p_rest, 0.0), q_rest)
    with np.errstate(divide="ignore"):
        least: Reals = floor / mass[-1] + np.log(inside / mass[-1])
    return least


def _xlogxy(x: Reals, y: Reals) -> Reals:
    """x * log(x / y), 0 where either is 0."""
    both = (x > 0) & (y > 0)
    return x * np.log(np.divide(x, y, out=np.ones_like(x), where=both))


def _xlogx(x: Reals) -> Reals:
    return x * np.log(np.where(x > 0, x, 1.0))
