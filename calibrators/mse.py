"""The range with the least mean squared quantization error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qbench.affine import Range
from qbench.calibrators.hull import hull
from qbench.calibrators.noise import Noise
from qbench.calibrators.tail import tail_of
from qbench.calibrators.thresholds import STEPS, least_error
from qbench.errors import InputError
from qbench.protocols import Seen

FARTHEST = 2.0
"""Times the data: how far a range may go beyond them."""
TAILS = ("seen", "exponential")


@dataclass(frozen=True, slots=True)
class Mse:
    """Range that minimises the mean of (x - dequantize(quantize(x)))**2 over the histogram, clipping and rounding together.

    First one threshold for both sides, then each side by itself, each time all candidates at once and then again around
    the best one. The error of a candidate is exact on the histogram: from running sums of counts, values and squares
    at the boundaries between its levels.

    steps  candidates compared at a time, 8 or more
    tail   "seen": the data are all there is; "exponential": a new sample is expected to go beyond them as `qbench.calibrators.tail` tells
           from the largest value of each sample, and the range may end there. It does where a sample has few values (logits, pooled
           features) or few samples were seen; where a sample has thousands, what one of them lacks weighs nothing, and the answer is the same
    Source: Banner et al. 2019 (arXiv 1810.05723), section 3, for the trade of clipping against rounding.
    """

    steps: int = STEPS
    tail: str = "seen"

    def __post_init__(self) -> None:
        if self.tail not in TAILS:
            raise InputError(f"mse: tail is {self.tail}; expected {' or '.join(TAILS)}")
        if self.steps < 8:
            raise InputError(f"mse: steps is {self.steps}; expected 8 or more, e.g. mse:steps=64")

    def range(self, seen: Seen, levels: int, symmetric: bool = False) -> Range:
        """Range in real units. Raises NotObserved if the tensor never occurred."""
        whole = hull(seen)
        if whole.magnitude == 0.0 or levels < 2:
            return whole
        noise = Noise(seen, levels, symmetric)
        found = least_error(noise, whole, symmetric, self.steps)
        return found if self.tail == "seen" else self._beyond(found, whole, seen, noise, symmetric)

    def _beyond(self, found: Range, whole: Range, seen: Seen, noise: Noise, symmetric: bool) -> Range:
        """`found`, or the wider range that has less noise once expected clipping beyond the data is added: first below, then above."""
        samples = int((seen.sample_low <= seen.sample_high).sum())
        tails = tail_of(-seen.sample_low.astype(np.float64)), tail_of(seen.sample_high.astype(np.float64))
        ends = -whole.low, whole.high

        def expected(*reach: float) -> float:
            """Noise of one sample when codes reach so far below and above 0."""
            low, high = np.array([-reach[0]]), np.array([reach[1]])
            beyond = sum(float(t.excess(np.maximum(r, end))) for t, r, end in zip(tails, reach, ends, strict=True) if end > 0.0)
            return float(noise(low, high)[0]) * noise.unit**2 / samples + beyond

        reach = [-found.low, found.high]
        for sides in [(0, 1)] if symmetric else [(0,), (1,)]:
            some = [s for s in sides if ends[s] > 0.0 and tails[s].mean > 0.0]
            largest = max((ends[s] for s in some), default=0.0)
            wider = [[max(r, min(t * largest, FARTHEST * ends[s])) if s in some else r for s, r in enumerate(reach)]
                     for t in np.linspace(1.0, FARTHEST, self.steps).tolist()]
            reach = min([reach, *wider], key=lambda r: expected(*r)) if some else reach
        return Range(0.0 - reach[0], reach[1])
