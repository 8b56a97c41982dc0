"""Expected improvement of the front: against the plain hypervolume, and models drawn from the posterior against its closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qbench.search.acquisition import batch, draws, improvements
from qbench.search.loss import LossModel, Observations, refit
from qbench.search.pareto import hypervolume

REFERENCE = np.array([1.0, 1.0])
unit = st.floats(0.0, 1.2)


def points(count: st.SearchStrategy[int]) -> st.SearchStrategy[Any]:
    return count.flatmap(lambda n: hnp.arrays(np.float64, (n, 2), elements=unit))


@given(points(st.integers(0, 6)), points(st.integers(1, 5)))
def test_an_improvement_is_the_difference_of_two_hypervolumes(have: Any, new: Any) -> None:
    got = improvements(have, new[None, :, 0], new[:, 1], REFERENCE)[0]
    before = hypervolume(have, REFERENCE)
    want = [hypervolume(np.vstack([have, row]), REFERENCE) - before for row in new]
    assert got == pytest.approx(want, abs=1e-9)


def test_a_batch_spreads_out_and_leaves_out_what_adds_nothing() -> None:
    have = np.array([[0.5, 0.5]])
    losses = np.array([[0.1, 0.11, 0.5, 0.9]])
    costs = np.array([0.6, 0.6, 0.1, 0.9])                        # the second is the first's twin, the last is beaten
    assert batch(have, losses, costs, REFERENCE, 4) == [2, 0]


def test_of_two_plans_with_one_mean_the_uncertain_one_is_asked_first() -> None:
    have = np.array([[0.5, 0.5]])
    losses = np.array([[0.5, 0.2], [0.5, 0.8]])
    assert batch(have, losses, np.array([0.5, 0.5]), REFERENCE, 2) == [1]


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_drawn_models_scatter_as_the_closed_form_says(seed: int) -> None:
    """Three units with one lossy code each; the posterior of a linear model with known errors is Gaussian (Bishop 2006, 3.49-3.51)."""
    rng = np.random.default_rng(seed)
    prior = LossModel(np.array([[0.0, 2.0], [0.0, 3.0], [0.0, 4.0]]), np.full((3, 2), 0.5))
    seen = Observations(rng.integers(0, 2, (5, 3)), rng.uniform(1.0, 8.0, 5), np.full(5, 0.2))
    allowed, base = [[0, 1]] * 3, np.zeros(3, np.int64)
    noise = np.hypot(0.2, 0.1 * seen.loss)
    precision = np.eye(3) / 0.25 + (seen.codes / noise[:, None] ** 2).T @ seen.codes
    mean = np.linalg.solve(precision, np.array([2.0, 3.0, 4.0]) / 0.25 + seen.codes.T @ (seen.loss / noise**2))
    if mean.min() < 2.0:                                          # far from the bound at 0, which the closed form does not know
        return
    models = draws(prior, seen, allowed, base, 0.01, 4000, rng)
    values = np.array([m.unit[:, 1] for m in models])
    assert values.mean(axis=0) == pytest.approx(mean, abs=0.05)
    assert np.cov(values.T) == pytest.approx(np.linalg.inv(precision), abs=0.03)
    assert refit(prior, seen, allowed, base, 0.01).unit[:, 1] == pytest.approx(mean, rel=1e-6)


def test_without_observations_the_prior_is_all_there_is() -> None:
    prior = LossModel(np.array([[0.0, 2.0]]), np.full((1, 2), 0.5))
    nothing = Observations(np.zeros((0, 1), np.int64), np.zeros(0), np.zeros(0))
    assert draws(prior, nothing, [[0, 1]], np.zeros(1, np.int64), 0.01, 2, np.random.default_rng(0)) == [prior, prior]
