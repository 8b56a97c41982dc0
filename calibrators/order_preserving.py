"""The range that keeps the winning class of as many samples as possible."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qbench.affine import Range
from qbench.calibrators.hull import hull, within
from qbench.calibrators.mse import Mse
from qbench.calibrators.noise import Noise, Reals, grids
from qbench.protocols import Seen

ROW = 32
"""Thresholds compared on each side where both are free; the square of it where there is one threshold only."""
NARROWEST = 2.0**-8

Ends = tuple[Reals, Reals]


@dataclass(frozen=True, slots=True)
class OrderPreserving:
    """Range that lets the largest value of as many samples as possible keep a code above all others: for classifier heads.

    Of the ranges that keep as many, the one with the least squared error. It looks at the largest and the second largest value
    of each sample, which the statistics hold for tensors of shape [samples, classes] with two classes or more; samples whose
    two largest are equal have no winner to keep. For every other tensor the answer is that of mse. Candidates are the pairs
    of two geometric rows of thresholds, then of two even rows around the best pair, and the answers of minmax and mse.

    Source: OpenPPL PPQ, isotone (order-preserving) calibration, which also tells the largest from the second largest value; the
            count over the samples instead of a bound from the closest pair is our own.
    """

    def range(self, seen: Seen, levels: int, symmetric: bool = False) -> Range:
        """Range in real units. Raises NotObserved if the tensor never occurred."""
        whole = hull(seen)
        usual = Mse().range(seen, levels, symmetric)
        high, second = seen.sample_high.astype(np.float64), seen.sample_second.astype(np.float64)
        if not second.size or levels < 2:
            return usual
        decided = np.isfinite(second) & (second < high)
        if not decided.any():
            return usual
        heads = Heads(high[decided], second[decided], levels, symmetric)
        low, top = ends(whole, symmetric)
        best = int(np.argmax(heads.kept(low, top)))
        near = ends(whole, symmetric, (-float(low[best]), float(top[best])))
        lows, highs = np.concatenate([low, near[0], [usual.low, whole.low]]), np.concatenate([top, near[1], [usual.high, whole.high]])
        return within(*heads.best(lows, highs, Noise(seen, levels, symmetric)), whole)


@dataclass(frozen=True, slots=True)
class Heads:
    """high, second  the two largest values of each sample, different, float64 [samples]"""

    high: Reals
    second: Reals
    levels: int
    symmetric: bool

    def kept(self, low: Reals, high: Reals) -> NDArray[np.int64]:
        """Of how many samples the codes of each range [low, high] tell the winner, int64 [candidates]."""
        from qbench.calibrators.compiled_noise import kept

        found: NDArray[np.int64] = kept(self.high, self.second, *grids(low, high, self.levels, self.symmetric), self.levels)
        return found

    def best(self, low: Reals, high: Reals, noise: Noise) -> tuple[float, float]:
        """The range that keeps most, of these the one with the least error."""
        count = self.kept(low, high)
        most = np.flatnonzero(count == count.max())
        most = most[np.argsort((high - low)[most], kind="stable")]
        at = most[int(np.argmin(noise(low[most], high[most])))]
        return float(low[at]), float(high[at])


def ends(whole: Range, symmetric: bool, around: tuple[float, float] | None = None) -> Ends:
    """Lower and upper ends of the candidates, float64 [candidates] each.

    around  magnitudes of the ends of a candidate of the geometric rows: even rows between its neighbours instead
    """
    if whole.low < 0.0 < whole.high and not symmetric:
        low, high = (_row(most, ROW, at) for most, at in zip((-whole.low, whole.high), around or (None, None), strict=True))
        low, high = (a.ravel() for a in np.meshgrid(np.append(0.0, low), np.append(0.0, high)))
        some = low + high > 0.0
        return -low[some], high[some]
    threshold = _row(whole.magnitude, ROW * ROW, max(around) if around else None)
    return np.maximum(-threshold, whole.low), np.minimum(threshold, whole.high)


def _row(most: float, size: int, around: float | None) -> Reals:
    """Thresholds up to `most`, ascending."""
    if around is None:
        return most * np.geomspace(NARROWEST, 1.0, size)
    pace = NARROWEST ** (-1.0 / (size - 1))
    return np.linspace(around / pace, min(around * pace, most), size)
