"""The linear programme against trying every plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np
import pytest
from fake_search import FakeCosts
from fake_search import Pair as PairCosts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from qbench.search.assignment import (
    KNEES,
    Assignment,
    Caps,
    LinearCosts,
    Weights,
    caps,
    front,
    knees,
    linear_costs,
    solve,
    weights_for_loss,
)
from qbench.search.budget import Budget
from qbench.search.loss import LossModel

Codes = NDArray[np.int64]
NEAR = 1e-6
"""HiGHS keeps rows of unit size to 1e-7 and the gap to 1e-9; both relative to the worst plan."""
FEW = settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Instance:
    """One small programme and all its plans [n, units]."""

    problem: Assignment
    plans: Codes

    @property
    def loss(self) -> NDArray[np.float64]:
        assert self.problem.loss is not None
        return self.problem.loss.raw(self.plans)

    def within(self, limits: Caps) -> NDArray[np.bool_]:
        s, j, size = self.problem.costs.totals(self.plans)
        held = np.array([all(codes[u] == p for u, p in no.items()) for codes in self.plans for no in self.problem.exclude])
        fits: NDArray[np.bool_] = (s <= limits.seconds) & (j <= limits.joules) & (j <= limits.watts * s) & (size <= limits.size)
        return fits & ~held.reshape(len(self.plans), -1).any(axis=1)


def random_instance(seed: int, units: int, precisions: int = 3, exclude: int = 0) -> Instance:
    """Unit terms of 0 for the first precision allowed, pair terms of either sign between some units, near and far."""
    rng = np.random.default_rng(seed)
    shape = (units, precisions)
    some = [(a, b) for a in range(units) for b in range(a + 1, units) if b == a + 1 or rng.random() < 0.3]
    converted = {k: (1e-4 * rng.random((precisions,) * 2), 1e-4 * rng.random((precisions,) * 2)) for k in some if rng.random() < 0.8}
    coupled = {k: rng.normal(0.0, 0.02, (precisions,) * 2) for k in some if rng.random() < 0.6}
    allowed = [sorted(rng.choice(precisions, rng.integers(1, precisions + 1), replace=False).tolist()) for _ in range(units)]
    costs = LinearCosts("1GHz", 1e-3 * rng.random(shape), 1e-3 * rng.random(shape), 1e5 * rng.random(shape), converted, 1e-4, 2e-4)
    plans = np.array(list(product(*allowed)), np.int64)
    held = [dict(enumerate(map(int, p))) for p in plans[rng.choice(len(plans), min(exclude, len(plans) - 1), replace=False)]]
    return Instance(Assignment(allowed, costs, LossModel(0.02 * rng.random(shape), np.full(shape, 1e-3), coupled), held), plans)


instances = st.builds(random_instance, st.integers(0, 2**32), st.integers(1, 5), st.integers(2, 3), st.integers(0, 5))
shares = st.floats(0.0, 1.0)


def between(values: NDArray[np.float64], share: float) -> float:
    """A cap well between two of `values`, above the share of them: no plan sits on it."""
    ordered = np.unique(values)
    gaps = [(a + b) / 2.0 for a, b in pairwise(ordered) if b - a > 1e-4 * abs(b)]
    return float(([ordered[0] * 0.9, *gaps, ordered[-1] * 1.1])[round(share * (len(gaps) + 1))])


def least(instance: Instance, values: NDArray[np.float64], limits: Caps) -> float | None:
    fits = instance.within(limits)
    return float(values[fits].min()) if fits.any() else None


def check(instance: Instance, weights: Weights, limits: Caps, values: NDArray[np.float64]) -> None:
    """`solve` finds a plan within the limits, as good as the best by brute force, or none where there is none."""
    found, best = solve(instance.problem, weights, limits), least(instance, values, limits)
    assert (found is None) == (best is None)
    if found is not None and best is not None:
        [row] = np.flatnonzero((instance.plans == found).all(axis=1))
        assert instance.within(limits)[row]
        assert values[row] == pytest.approx(best, abs=NEAR * float(np.abs(values).max()))


@FEW
@given(instance=instances, share=shares)
def test_least_loss_within_a_latency(instance: Instance, share: float) -> None:
    seconds = instance.problem.costs.totals(instance.plans)[0]
    check(instance, Weights(loss=1.0), Caps(seconds=between(seconds, share)), instance.loss)


@FEW
@given(instance=instances, which=st.tuples(*[st.floats(0.4, 1.0)] * 4))
def test_least_loss_within_four_budgets_at_once(instance: Instance, which: tuple[float, float, float, float]) -> None:
    s, j, size = instance.problem.costs.totals(instance.plans)
    limits = Caps(between(s, which[0]), between(j, which[1]), between(j / s, which[2]), between(size, which[3]))
    check(instance, Weights(loss=1.0), limits, instance.loss)


@FEW
@given(instance=instances, w=st.tuples(shares, shares, shares, shares), share=shares)
def test_a_weighted_sum_within_a_power(instance: Instance, w: tuple[float, float, float, float], share: float) -> None:
    s, j, size = instance.problem.costs.totals(instance.plans)
    weights = Weights(w[0] / 0.02, w[1] / 1e-3, w[2] / 1e-3, w[3] / 1e5)
    values = weights.loss * instance.loss + weights.seconds * s + weights.joules * j + weights.size * size
    check(instance, weights, Caps(watts=between(j / s, share)), values)


def test_excluding_one_after_the_other_lists_every_plan_by_loss() -> None:
    instance = random_instance(seed=5, units=4)
    listed: list[Codes] = []
    while (found := solve(replace(instance.problem, exclude=[dict(enumerate(map(int, c))) for c in listed]), Weights(loss=1.0), Caps())) is not None:
        listed.append(found)
    assert len({tuple(c) for c in listed}) == len(listed) == len(instance.plans) > 10
    losses = [float(instance.problem.loss.raw(c)[0]) for c in listed] if instance.problem.loss else []
    assert losses == pytest.approx(sorted(instance.loss.tolist()), abs=NEAR)


def test_a_cut_of_some_units_forbids_every_plan_that_holds_it() -> None:
    instance = random_instance(seed=3, units=4)
    options = instance.problem.allowed
    u = max(range(4), key=lambda i: len(options[i]))
    kept, lost = options[u][0], options[u][1:]
    cut = replace(instance.problem, exclude=[{u: p} for p in lost])
    found = solve(cut, Weights(loss=-1.0), Caps())
    assert found is not None and found[u] == kept
    assert solve(replace(cut, exclude=[*cut.exclude, {u: kept}]), Weights(loss=1.0), Caps()) is None


def test_a_cut_with_a_code_that_is_not_allowed_changes_nothing() -> None:
    instance = random_instance(seed=3, units=4)
    u, missing = next((u, p) for u, options in enumerate(instance.problem.allowed) for p in range(3) if p not in options)
    plain = solve(instance.problem, Weights(loss=1.0), Caps())
    cut = solve(replace(instance.problem, exclude=[{u: missing}]), Weights(loss=1.0), Caps())
    assert plain is not None and cut is not None and plain.tolist() == cut.tolist()


def test_the_constant_alone_may_break_a_cap() -> None:
    """One free unit that costs no time, and 0.1 ms whatever the plan."""
    zero = np.zeros((1, 2))
    problem = Assignment([[0, 1]], LinearCosts("1GHz", zero, zero + 1.0, zero, fixed_s=1e-4))
    assert solve(problem, Weights(joules=1.0), Caps(seconds=0.9e-4)) is None
    assert solve(problem, Weights(joules=1.0), Caps(seconds=1.1e-4)) is not None


def test_the_same_question_has_the_same_answer() -> None:
    instance = random_instance(seed=11, units=5)
    answers = [solve(instance.problem, Weights(loss=1.0, seconds=1.0), Caps()) for _ in range(2)]
    assert answers[0] is not None and answers[1] is not None
    assert answers[0].tolist() == answers[1].tolist()


# ------------------------------------------------------------------------------------------------ tables


@FEW
@given(seed=st.integers(0, 2**32), f=st.sampled_from([0.5, 1.0]))
def test_linear_costs_agree_with_the_pricer(seed: int, f: float) -> None:
    """Also where a pair is named the other way round, or twice."""
    rng = np.random.default_rng(seed)
    order = [(0, 1), (2, 1), (2, 3), (1, 2)]
    pairs = tuple(PairCosts(a, b, rng.random((2, 2)), rng.random((2, 2))) for a, b in order)
    costs = FakeCosts(tuple("abcd"), ("int8", "fp16"), rng.random((4, 2)), rng.random((4, 2)), np.ones((4, 2)), pairs, {"x": f})
    plans = np.array(list(product(range(2), repeat=4)), np.int64)
    table = linear_costs(costs, "x", plans[3])
    s, j, _ = table.totals(plans)
    prices = costs.price(plans, "x")
    assert all(a < b for a, b in table.pairs)
    assert (s * 1e3).tolist() == pytest.approx([p.latency_ms for p in prices], rel=1e-12)
    assert (j * 1e3).tolist() == pytest.approx([p.energy_mj for p in prices], rel=1e-12)
    assert table.fixed_s == pytest.approx(costs.fixed_s, rel=1e-9)


def test_budgets_as_caps() -> None:
    texts = ["20ms", "100fps", "8mJ", "1.5W", "64MB"]
    assert caps(Budget.parse(t) for t in texts) == Caps(seconds=0.010, joules=0.008, watts=1.5, size=64e6)
    assert caps([Budget.parse("10fps"), Budget.parse("20ms")]) == Caps(seconds=0.020)
    assert caps([]) == Caps(np.inf, np.inf, np.inf, np.inf)


# ------------------------------------------------------------------------------------------------ front


def points(instance: Instance, plans: Sequence[Codes]) -> NDArray[np.float64]:
    assert instance.problem.loss is not None
    rows = np.array(plans, np.int64)
    return np.column_stack([instance.problem.loss.raw(rows), instance.problem.costs.totals(rows)[0]])


@FEW
@given(instance=instances, share=shares, most=st.integers(2, 6))
def test_front_runs_from_the_least_loss_to_the_fastest(instance: Instance, share: float, most: int) -> None:
    """No plan within the limits beats one of them in loss and latency by more than the tolerances."""
    limits = Caps(joules=between(instance.problem.costs.totals(instance.plans)[1], share))
    fits = instance.within(limits)
    found = front(instance.problem, limits, most)
    assert bool(found) == bool(fits.any())
    if not found:
        return
    inside, mine = points(instance, list(instance.plans[fits])), points(instance, found)
    assert len({tuple(c) for c in found}) == len(found) <= most
    span = np.abs(inside).max(axis=0)
    for p in mine:
        assert not (inside < p - 1e-4 * span).all(axis=1).any()
    assert mine[0, 0] == pytest.approx(inside[:, 0].min(), abs=1e-4 * span[0])
    assert mine[:, 1].min() == pytest.approx(inside[:, 1].min(), abs=1e-4 * span[1])


def test_among_plans_of_equal_loss_the_fast_and_frugal_one() -> None:
    instance = random_instance(seed=1, units=4)
    flat = replace(instance.problem, allowed=[[0, 1, 2]] * 4, loss=LossModel(np.zeros((4, 3)), np.ones((4, 3))))
    found = solve(flat, weights_for_loss(flat), Caps())
    plans = np.array(list(product(range(3), repeat=4)), np.int64)
    s, j, _ = flat.costs.totals(plans)
    worth = s / flat.costs.seconds.max(axis=1).sum() + j / flat.costs.joules.max(axis=1).sum()
    assert found is not None and found.tolist() == plans[int(np.argmin(worth))].tolist()


@FEW
@given(instance=instances)
def test_knees_are_on_the_lower_hull(instance: Instance) -> None:
    """Each minimises the loss plus a price of time: brute force over the same prices finds nothing better."""
    problem = instance.problem
    assert problem.loss is not None
    found = knees(problem, Caps())
    allowed = instance.within(Caps())
    inside = points(instance, list(instance.plans[allowed]))
    seconds = problem.costs.seconds
    worst = float(problem.loss.unit.max(axis=1).sum())
    span = float((seconds.max(axis=1) - seconds.min(axis=1)).sum())
    mine = points(instance, found)
    assert len({tuple(c) for c in found}) == len(found) >= 1
    for share in KNEES:
        price = np.array([1.0, share * worst / span])
        assert (mine @ price).min() == pytest.approx((inside @ price).min(), abs=2e-3 * share * worst + 1e-9)
    assert np.all(np.diff(mine[:, 0]) >= -2e-3 * worst)


def test_without_a_loss_model_there_are_no_knees() -> None:
    assert knees(replace(random_instance(seed=1, units=3).problem, loss=None), Caps()) == []
