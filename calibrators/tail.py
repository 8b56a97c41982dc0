"""Values beyond those that were seen: how far they will reach, from the largest value of each sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qbench.calibrators.noise import Reals

FEWEST = 8
"""Samples below which no tail is guessed."""
LARGEST_SHARE, MOST = 4, 64
"""The tail is that of the largest quarter of the samples, 64 at most."""


@dataclass(frozen=True, slots=True)
class Tail:
    """An exponential tail: a sample's largest value passes t with probability share * exp((start - t) / mean).

    mean   of what the largest samples have beyond `start`; 0 where all end at one value, as behind a Relu6
    Source: Balkema and de Haan 1974 and Pickands 1975, Annals of Statistics 3(1): what lies beyond a high threshold follows a generalised
            Pareto distribution, whose case of shape 0, the exponential one, is the tail of normal, Laplace and gamma values alike.
    """

    share: float
    start: float
    mean: float

    def excess(self, t: Reals) -> Reals:
        """Expected square of what a new sample's largest value has beyond each t, 0 where it ends before."""
        if self.mean <= 0.0:
            return np.zeros_like(t)
        return self.share * np.exp((self.start - t) / self.mean) * 2.0 * self.mean**2


def tail_of(largest: Reals) -> Tail:
    """The tail of samples with these largest values, [samples], infinite where a sample had none; of nothing where there are too few."""
    found = np.sort(largest[np.isfinite(largest)])[::-1]
    if found.size < FEWEST:
        return Tail(0.0, 0.0, 0.0)
    count = min(found.size // LARGEST_SHARE, MOST)
    start = float(found[count])
    return Tail(count / found.size, start, float((found[:count] - start).mean()))
