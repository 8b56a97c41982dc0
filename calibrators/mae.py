"""The range with the least mean absolute quantization error."""

from __future__ import annotations

from dataclasses import dataclass

from qbench.affine import Range
from qbench.calibrators.lp import Lp
from qbench.protocols import Seen


@dataclass(frozen=True, slots=True)
class Mae:
    """Range that minimises the mean absolute error (MAE) of quantization: the same as lp:p=1.

    A clipped value weighs in proportion to how far it is cut, not to the square of it, so this clips more than mse.

    Source: Nahshan et al. 2019 (arXiv 1911.07190), its layer-wise step, with p = 1.
    """

    def range(self, seen: Seen, levels: int, symmetric: bool = False) -> Range:
        """Range in real units. Raises NotObserved if the tensor never occurred."""
        return Lp(1.0).range(seen, levels, symmetric)
