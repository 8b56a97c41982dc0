"""What the result folder's check takes for the same score."""

from __future__ import annotations

import pytest

from qbench.protocols import Accuracy
from qbench.workbench.folder import SAME, _slack


def scored(metric: str, value: float) -> Accuracy:
    return Accuracy(metric, value, value, value, 32, 0.0, 0.0, 0.0, value, 1.0, 0.0, 0.0)


@pytest.mark.parametrize(("value", "apart", "same"), [(88.34, 0.065, True), (88.34, 1.0, False), (60.0, 0.05, False), (30.0, 0.001, False), (30.0, 0.0, True)])
def test_decibels_near_the_end_of_float32_may_differ_by_its_rounding(value: float, apart: float, same: bool) -> None:
    assert (apart <= _slack(scored("sqnr:output=logits", value))) is same


def test_other_metrics_are_exact() -> None:
    assert _slack(scored("top1", 0.98)) == SAME
