"""Everything that was seen, without clipping."""

from __future__ import annotations

from dataclasses import dataclass

from qbench.affine import Range
from qbench.calibrators.hull import hull
from qbench.protocols import Seen


@dataclass(frozen=True, slots=True)
class MinMax:
    """Range from the smallest to the largest value seen: nothing clips, one outlier sets the step for all.

    Source: Jacob et al. 2018 (arXiv 1712.05877), section 3.1.
    """

    def range(self, seen: Seen, levels: int, symmetric: bool = False) -> Range:
        """Range in real units. Raises NotObserved if the tensor never occurred."""
        return hull(seen)
