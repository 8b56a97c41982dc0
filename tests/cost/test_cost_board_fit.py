"""What measurements teach: a scale from one, classes from many, and an interval that covers what was left out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qbench.cost.board_fit import CLASS_SD, BoardFit, learn

CLASSES = ("conv int8", "conv fp16", "pool int8")


def plans(rng: np.random.Generator, n: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Predicted seconds per class of plans that split the convolutions differently."""
    share = rng.uniform(0.05, 0.95, n)
    return np.stack([share * 4e-3, (1.0 - share) * 9e-3, np.full(n, 1e-3)], axis=1)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.2, 5.0), st.integers(1, 6))
def test_a_board_that_is_off_by_one_factor_is_learnt_as_a_scale(factor: float, n: int) -> None:
    by_class = plans(np.random.default_rng(n), n)
    found = learn(CLASSES, by_class, factor * by_class.sum(axis=1))
    assert found.seconds(by_class) == pytest.approx(factor * by_class.sum(axis=1), rel=0.02)
    assert found.factors == pytest.approx(np.full(3, factor), rel=0.15)


def test_classes_part_where_the_plans_tell_them_apart() -> None:
    rng = np.random.default_rng(0)
    by_class, truth = plans(rng, 30), np.array([1.0, 1.8, 1.2])
    measured = by_class @ truth * np.exp(rng.normal(0.0, 0.01, 30))
    found = learn(CLASSES, by_class, measured)
    assert found.factors[:2] == pytest.approx(truth[:2], rel=0.1)
    fresh = plans(rng, 20)
    assert found.seconds(fresh) == pytest.approx(fresh @ truth, rel=0.04)
    naive = learn(("all",), by_class.sum(axis=1, keepdims=True), measured)
    assert found.residual_sd < 0.5 * naive.residual_sd


def test_few_measurements_keep_a_wide_interval_and_many_narrow_it() -> None:
    rng = np.random.default_rng(1)
    by_class = plans(rng, 40)
    measured = 1.3 * by_class.sum(axis=1) * np.exp(rng.normal(0.0, 0.03, 40))
    widths = [learn(CLASSES, by_class[:n], measured[:n]).residual_sd for n in (1, 3, 40)]
    assert widths[0] == CLASS_SD and widths[0] > widths[1] > widths[2]
    low, high = learn(CLASSES, by_class, measured).interval
    assert low < 1.0 < high and low * high == pytest.approx(1.0)


def test_the_interval_covers_what_was_not_seen() -> None:
    """80 % nominal; between 65 and 97 % over many draws of eight measurements."""
    rng, inside = np.random.default_rng(2), []
    for _ in range(120):
        by_class, truth = plans(rng, 9), np.exp(rng.normal(0.3, 0.3, 3))
        measured = by_class @ truth * np.exp(rng.normal(0.0, 0.06, 9))
        found = learn(CLASSES, by_class[:8], measured[:8])
        low, high = found.interval
        inside.append(low <= measured[8] / found.seconds(by_class[8:])[0] <= high)
    assert 0.65 <= np.mean(inside) <= 0.97


def test_noisy_measurements_pull_less() -> None:
    by_class = plans(np.random.default_rng(3), 2)
    measured = by_class.sum(axis=1) * np.array([1.0, 2.0])
    even = learn(("all",), by_class.sum(axis=1, keepdims=True), measured)
    trusting = learn(("all",), by_class.sum(axis=1, keepdims=True), measured, measured * np.array([0.001, 0.5]))
    assert abs(np.log(trusting.factors[0])) < 0.2 * abs(np.log(even.factors[0]))


def test_time_of_no_class_moves_with_the_scale() -> None:
    found = BoardFit(("a",), np.array([2.0]), 3.0, 0.1, 1)
    assert found.seconds(np.array([[1.0]]), 0.5)[0] == pytest.approx(2.0 + 1.5)
