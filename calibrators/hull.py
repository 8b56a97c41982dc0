"""What every calibrator begins with: the range of the data, and the refusal when there are none."""

from __future__ import annotations

from qbench.affine import Range
from qbench.errors import NotObserved
from qbench.protocols import Seen


def hull(seen: Seen) -> Range:
    """Smallest range that holds all finite values and 0. Raises NotObserved when there is no value."""
    if not seen.count:
        raise NotObserved(f"tensor {seen.name!r} was never observed in the calibration data; keep it in float, "
                          "or add samples that reach it")
    return Range(seen.minimum, seen.maximum).including_zero()


def within(low: float, high: float, whole: Range) -> Range:
    """[low, high] with 0, cut to `whole`: a sketch's cell may reach a hair beyond the data."""
    return Range(min(max(low, whole.low), 0.0) + 0.0, max(min(high, whole.high), 0.0) + 0.0)     # -0.0 becomes 0.0
