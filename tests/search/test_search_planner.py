"""The planner against trying every plan: budgets of every kind, also memory, which no linear programme holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from fake_search import FakeCosts, chain, costs, problem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from qbench.network import Precision
from qbench.protocols import Price
from qbench.search.budget import Budget, Kind
from qbench.search.loss import LossModel
from qbench.search.moves import around, ranked, repaired
from qbench.search.planner import Planner
from qbench.search.sensitivity import least_lossy
from qbench.search.space import Space

Codes = NDArray[np.int64]
FEW = settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
POINTS = {"500MHz": 0.5, "1GHz": 1.0}
KINDS = (Kind.LATENCY, Kind.ENERGY, Kind.POWER, Kind.MEMORY, Kind.RATE)


@dataclass(frozen=True)
class Instance:
    """A small space with every plan of it [n, units] and their prices at each operating point."""

    space: Space
    costs: FakeCosts
    model: LossModel
    plans: Codes
    prices: dict[str, list[Price]]

    def planner(self, budgets: Sequence[Budget] = ()) -> Planner:
        return Planner(self.space, self.costs, budgets, least_lossy(self.space, self.costs.precisions))

    def values(self, kind: Kind, op_point: str) -> NDArray[np.float64]:
        return np.array([Budget(kind, 1.0).value(p) for p in self.prices[op_point]])

    def within(self, budgets: Sequence[Budget], op_point: str) -> NDArray[np.bool_]:
        return np.array([all(b.met_by(p) for b in budgets) for p in self.prices[op_point]])

    def budget(self, kind: Kind, op_point: str, share: float) -> Budget:
        """A limit well between two plans, so that no tolerance decides, with about `share` of the plans below it."""
        ordered = np.unique(self.values(kind, op_point))
        gaps = [float(a + b) / 2.0 for a, b in pairwise(ordered) if b - a > 1e-4 * b]
        return Budget(kind, [0.9 * float(ordered[0]), *gaps, 1.1 * float(ordered[-1])][round(share * (len(gaps) + 1))])


def random_instance(seed: int, units: int, names: tuple[Precision, ...], fixed: bool = False) -> Instance:
    """Peak memory is least at the narrowest precision of each unit, as on a chip. A float-only unit when `fixed`."""
    rng = np.random.default_rng(seed)
    network = chain(units, fixed=(units - 1,) if fixed else ())
    priced = costs(network, tuple(map(str, names)), seed % 1000, POINTS)
    space = problem(Path(), network, precisions=names, op_points=tuple(POINTS)).space
    shape = (units, len(names))
    pairs = {(a, a + 1): rng.normal(0.0, 0.01, (len(names),) * 2) for a in range(units - 1) if rng.random() < 0.7}
    model = LossModel(0.02 * rng.random(shape), np.full(shape, 1e-3), pairs)
    every = np.array([space.codes(p, priced.precisions) for p in space.every()], np.int64)
    return Instance(space, priced, model, every, {o: priced.price(every, o) for o in POINTS})


TWO, THREE = (Precision.INT8, Precision.FP16), (Precision.INT8, Precision.INT16, Precision.FP16)
instances = st.builds(random_instance, st.integers(0, 2**32), st.integers(1, 5), st.sampled_from([TWO, THREE]), st.booleans())
op_points = st.sampled_from(sorted(POINTS))
shares = st.floats(0.0, 1.0)
wide = st.floats(0.3, 1.0)


def close(instance: Instance) -> float:
    """Among losses this near, the planner takes the fast and frugal plan."""
    return 1e-5 * float(instance.model.unit.sum() + sum(np.abs(t).max() for t in instance.model.pairs.values()))


@pytest.mark.parametrize("kind", KINDS)
@FEW
@given(instance=instances, op_point=op_points, share=shares)
def test_best_is_the_least_loss_within_one_budget(kind: Kind, instance: Instance, op_point: str, share: float) -> None:
    budget = instance.budget(kind, op_point, share)
    check_best(instance, [budget], op_point)


@FEW
@given(instance=instances, op_point=op_points, which=st.tuples(wide, wide, wide, wide))
def test_best_is_the_least_loss_within_four_budgets(instance: Instance, op_point: str, which: tuple[float, ...]) -> None:
    check_best(instance, [instance.budget(k, op_point, s) for k, s in zip(KINDS, which, strict=False)], op_point)


def check_best(instance: Instance, budgets: Sequence[Budget], op_point: str) -> None:
    fits = instance.within(budgets, op_point)
    planner = instance.planner(budgets)
    found = planner.best(op_point, instance.model)
    assert (found is not None) == bool(fits.any())
    assert (planner.any(op_point) is not None) == bool(fits.any())
    if found is None:
        return
    assert all(b.met_by(planner.price(found, op_point)) for b in budgets)
    losses = instance.model.raw(instance.plans)[fits]
    assert float(instance.model.raw(found)[0]) == pytest.approx(float(losses.min()), abs=close(instance))


@FEW
@given(instance=instances, op_point=op_points, share=wide)
def test_best_without_those_seen(instance: Instance, op_point: str, share: float) -> None:
    """Asked again and again, with everything seen left out, it lists the plans within the memory by loss, then says None."""
    budget = instance.budget(Kind.MEMORY, op_point, share)
    planner, seen = instance.planner([budget]), list[Codes]()
    losses = sorted(instance.model.raw(instance.plans)[instance.within([budget], op_point)].tolist())
    for expected in losses[:6]:
        found = planner.best(op_point, instance.model, seen)
        assert found is not None
        assert float(instance.model.raw(found)[0]) == pytest.approx(expected, abs=close(instance))
        assert not any(np.array_equal(found, s) for s in seen)
        seen.append(found)
    if len(losses) == len(seen):
        assert planner.best(op_point, instance.model, seen) is None


@pytest.mark.parametrize("kind", KINDS)
@FEW
@given(instance=instances, op_point=op_points)
def test_least_is_the_least_of_all_plans(kind: Kind, instance: Instance, op_point: str) -> None:
    planner, values = instance.planner(), instance.values(kind, op_point)
    found = Budget(kind, 1.0).value(planner.price(planner.least(Budget(kind, 1.0), op_point), op_point))
    assert found == pytest.approx(float(values.max() if kind is Kind.RATE else values.min()), rel=1e-6)


@pytest.mark.parametrize("kind", [Kind.LATENCY, Kind.ENERGY, Kind.RATE])
@FEW
@given(instance=instances, op_point=op_points, which=st.tuples(wide, wide))
def test_least_within_keeps_the_other_budgets(kind: Kind, instance: Instance, op_point: str, which: tuple[float, float]) -> None:
    budgets = [instance.budget(k, op_point, s) for k, s in zip((Kind.MEMORY, Kind.POWER), which, strict=True)]
    fits, planner = instance.within(budgets, op_point), instance.planner(budgets)
    found = planner.least_within(Budget(kind, 1.0), op_point)
    assert (found is not None) == bool(fits.any())
    if found is not None:
        values = instance.values(kind, op_point)[fits]
        best = float(values.max() if kind is Kind.RATE else values.min())
        assert Budget(kind, 1.0).value(planner.price(found, op_point)) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("kind", [Kind.POWER, Kind.MEMORY])
@FEW
@given(instance=instances, op_point=op_points, share=wide)
def test_least_within_power_and_memory_never_breaks_a_budget(kind: Kind, instance: Instance, op_point: str, share: float) -> None:
    budgets = [instance.budget(Kind.LATENCY, op_point, share)]
    planner = instance.planner(budgets)
    found = planner.least_within(Budget(kind, 1.0), op_point)
    assert found is None or budgets[0].met_by(planner.price(found, op_point))


@FEW
@given(instance=instances, op_point=op_points, which=st.tuples(wide, wide))
def test_front_and_knees_keep_the_budgets_and_the_choices(instance: Instance, op_point: str, which: tuple[float, float]) -> None:
    budgets = [instance.budget(k, op_point, s) for k, s in zip((Kind.MEMORY, Kind.ENERGY), which, strict=True)]
    planner = instance.planner(budgets)
    plans = [*planner.front(op_point, instance.model, 5), *planner.knees(op_point, instance.model)]
    assert bool(plans) == bool(instance.within(budgets, op_point).any())
    assert all(b.met_by(planner.price(codes, op_point)) for codes in plans for b in budgets)
    assert all(codes[u] in options for codes in plans for u, options in enumerate(planner.allowed))


def test_a_budget_at_the_price_of_a_plan_is_met_by_it() -> None:
    """Limits that no tolerance separates from the fastest, the most frugal, the smallest plan: it is still found."""
    instance = random_instance(3, 5, THREE)
    for kind in KINDS:
        values = instance.values(kind, "1GHz")
        limit = float(values.max() if kind is Kind.RATE else values.min()) * (1.0 - 1e-7 if kind is Kind.RATE else 1.0 + 1e-7)
        found = instance.planner([Budget(kind, limit)]).any("1GHz")
        assert found is not None, kind


def test_each_point_of_operation_has_its_own_answer() -> None:
    instance = random_instance(4, 4, TWO)
    at_half = float(instance.values(Kind.LATENCY, "500MHz").min())
    planner = instance.planner([Budget(Kind.LATENCY, at_half * 0.9)])
    assert planner.any("500MHz") is None
    assert planner.any("1GHz") is not None


# ------------------------------------------------------------------------------------------------ moves


@FEW
@given(instance=instances, row=st.integers(0, 10**6))
def test_around_lists_every_step_once(instance: Instance, row: int) -> None:
    planner, codes = instance.planner(), instance.plans[row % len(instance.plans)]
    pairs = [(a, b) for a, b in product(instance.space.free, repeat=2) if b == a + 1]
    found = {tuple(r) for r in around(planner, codes, pairs)}
    expected = {tuple(p) for p in instance.plans for changed in [tuple(np.flatnonzero(p != codes).tolist())] if len(changed) == 1 or changed in pairs}
    assert found == expected
    assert len(found) == len(around(planner, codes, pairs))


@FEW
@given(instance=instances, share=shares)
def test_ranked_is_sorted_by_loss_and_within_the_budgets(instance: Instance, share: float) -> None:
    budget = instance.budget(Kind.LATENCY, "1GHz", share)
    found = ranked(instance.planner([budget]), instance.model, instance.plans, "1GHz")
    losses = [float(instance.model.predict(c)[0]) for c in found]
    assert losses == sorted(losses)
    assert len(found) == int(instance.within([budget], "1GHz").sum())
    assert all(budget.met_by(instance.planner().price(c, "1GHz")) for c in found)


@FEW
@given(instance=instances, row=st.integers(0, 10**6), kind=st.sampled_from(KINDS), share=shares)
def test_repaired_keeps_the_budget_and_what_kept_it_already(instance: Instance, row: int, kind: Kind, share: float) -> None:
    budget, codes = instance.budget(kind, "1GHz", share), instance.plans[row % len(instance.plans)]
    planner = instance.planner([budget])
    found = repaired(planner, instance.model, codes, "1GHz")
    if budget.met_by(planner.price(codes, "1GHz")):
        assert found is not None and found.tolist() == codes.tolist()
    elif found is not None:
        assert budget.met_by(planner.price(found, "1GHz"))
        assert all(p in planner.allowed[u] for u, p in enumerate(found))


def test_repaired_always_reaches_a_latency_that_the_fastest_plan_meets() -> None:
    """Without conversions every step to INT8 gains time, so single steps lead there from any plan."""
    instance = random_instance(7, 5, THREE)
    plain = replace(instance, costs=replace(instance.costs, pairs=()))
    fastest = float(min(p.latency_ms for p in plain.costs.price(plain.plans, "1GHz")))
    planner = plain.planner([Budget(Kind.LATENCY, fastest * (1.0 + 1e-9))])
    for codes in plain.plans[::7]:
        assert repaired(planner, plain.model, codes, "1GHz") is not None
