"""Limits by the worst case, floors for single classes, and the goal of least energy, on planted losses."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_search import FLOAT_VALUE, FakeEvaluator, Planted, chain, costs, problem
from hypothesis import given
from hypothesis import strategies as st

from qbench.errors import BudgetError
from qbench.network import Precision
from qbench.plan import Plan
from qbench.protocols import Accuracy, ClassAccuracy, Price
from qbench.result import SearchResult
from qbench.search.budget import Budget, Kind, MaxDrop, parse_budgets, worst_class
from qbench.search.choice import unmet_floor
from qbench.search.planner import Planner
from qbench.search.problem import Goal
from qbench.search.run import run
from qbench.search.sensitivity import least_lossy

NETWORK = chain(8)
COSTS = costs(NETWORK)
PRICE = Price(20.0, 16.0, 24.0, 8.0, 0.4, 64_000_000, "1GHz")


def accuracy(drop: float, wide: float = 0.0, **classes: float) -> Accuracy:
    each = tuple(ClassAccuracy(name, 0.9 - d, 0.0, 1.0, d, d - wide, d + wide, 16) for name, d in classes.items())
    return Accuracy("dice", 0.9 - drop, 0.0, 1.0, 48, drop, drop - wide, drop + wide, 20.0, 1.0, math.nan, 1.0, classes=each)


class Uneven(FakeEvaluator):
    """Class "rare" loses ten times what unit 2 loses; class "common" loses what the whole loses."""

    def evaluate(self, plan: Plan, samples: int | None = None) -> Accuracy:
        found = super().evaluate(plan, samples)
        if found.samples < self.samples:
            return found
        rare = 10.0 * self.planted.single[2] if tuple(plan.precision.values())[2] is Precision.INT8 else 0.0
        return replace(found, classes=tuple(ClassAccuracy(n, FLOAT_VALUE - d, 0.0, 1.0, d, d - 1e-4, d + 1e-4, 24)
                                            for n, d in (("common", found.drop), ("rare", rare))))


# ------------------------------------------------------------------------------------------------ worst case


@pytest.mark.parametrize(("text", "kind", "value"), [
    ("20ms worst-case", Kind.LATENCY, 24.0), ("50fps worst-case", Kind.RATE, 1000 / 24.0), ("8mJ worst-case", Kind.ENERGY, 8.0 * 1.2),
])
def test_a_worst_case_budget_is_about_the_unfavourable_end(text: str, kind: Kind, value: float) -> None:
    worst, mean = Budget.parse(text), Budget.parse(text.removesuffix(" worst-case"))
    assert (worst.kind, worst.worst, worst.text) == (kind, True, text) and Budget.parse(worst.text) == worst
    assert worst.value(PRICE) == pytest.approx(value)
    assert mean.met_by(PRICE) and not worst.met_by(PRICE) and worst.excess(PRICE) == pytest.approx(0.2)


@given(st.floats(1, 50), st.sampled_from(["ms", "mJ", "fps"]))
def test_met_in_the_worst_case_is_what_sure_meant(limit: float, unit: str) -> None:
    mean, worst = Budget.parse(f"{limit:.4f}{unit}"), Budget.parse(f"{limit:.4f}{unit} worst-case")
    assert worst.met_by(PRICE) == worst.sure_by(PRICE) == mean.sure_by(PRICE)
    assert mean.met_by(PRICE) or not worst.met_by(PRICE)


def test_power_and_memory_have_no_worst_case() -> None:
    for text in ("1.5W worst-case", "64MB worst-case"):
        with pytest.raises(BudgetError, match="no interval, so no worst case; leave worst-case out"):
            Budget.parse(text)
    with pytest.raises(BudgetError, match="two budgets for latency"):
        parse_budgets(["20ms", "30ms worst-case"])


def test_a_floor_by_the_upper_end() -> None:
    floor = MaxDrop.parse("0.5% worst-case")
    assert floor == MaxDrop(0.005, worst=True) and MaxDrop.parse(floor.text) == floor
    assert floor.met_by(accuracy(0.003, 0.002)) and not floor.met_by(accuracy(0.003, 0.0021))
    assert MaxDrop.parse("0.5%").met_by(accuracy(0.003, 0.0021))
    assert not floor.met_by(accuracy(0.001, math.nan)), "an interval that is not known proves nothing"
    assert MaxDrop.parse("0 worst-case") == MaxDrop(0.0, worst=True)


@pytest.mark.parametrize("kind", ["ms", "mJ"])
def test_the_planner_finds_the_best_plan_that_keeps_the_worst_case(kind: str, tmp_path: Path) -> None:
    """Against all 256 plans: the fastest one, and whether there is one at all, at limits in between."""
    space = problem(tmp_path, NETWORK).space
    every = np.array([space.codes(p, COSTS.precisions) for p in space.every()])
    prices = COSTS.price(every, "1000MHz")
    values = sorted(p.latency_ms_high if kind == "ms" else p.energy_mj * p.latency_ms_high / p.latency_ms for p in prices)
    for limit in (values[0] * 0.999, values[3], values[60], values[-1]):
        budget = Budget.parse(f"{limit * (1 + 1e-5):.6f}{kind} worst-case")
        planner = Planner(space, COSTS, (budget,), least_lossy(space, COSTS.precisions))
        found = planner.any("1000MHz")
        within = [p.latency_ms for p in prices if budget.met_by(p)]
        assert (found is None) == (not within)
        if found is not None:
            assert planner.price(found, "1000MHz").latency_ms == pytest.approx(min(within))
            assert budget.met_by(planner.price(found, "1000MHz"))


# ------------------------------------------------------------------------------------------------ classes


PLANTED = Planted({i: 0.0004 for i in range(8)} | {2: 0.0009})


def searched(out: Path, **more: object) -> SearchResult:
    asked = problem(out, NETWORK, trials=20, **more)  # type: ignore[arg-type]
    return run(asked, Uneven(PLANTED), COSTS)


def test_the_worst_class_decides_where_the_mean_hides_it(tmp_path: Path) -> None:
    """INT8 throughout loses 0.0037, within the floor; class "rare" loses 0.009 unless unit 2 stays in float."""
    plain = searched(tmp_path / "a", max_drop=MaxDrop(0.005), goal=Goal.ENERGY)
    assert plain.chosen is not None and plain.chosen.layers == {"int8": 8}
    kept = searched(tmp_path / "b", max_drop=MaxDrop(0.005), max_class_drop=MaxDrop(0.005), goal=Goal.ENERGY)
    assert kept.feasible and kept.chosen is not None and kept.chosen.layers["fp16"] >= 1
    worst = worst_class(MaxDrop(0.005), kept.chosen.accuracy)
    assert worst is not None and worst.drop <= 0.005 and worst.name == "common"
    assert "max-class-drop 0.005" in kept.budgets
    assert kept.chosen.price.energy_mj == min(c.price.energy_mj for c in kept.candidates if c.feasible)
    plan = Plan.load(tmp_path / "b" / kept.chosen.plan)
    assert plan.precision["conv2"] is Precision.FP16
    for c in kept.candidates:
        assert c.feasible == all(k.drop <= 0.005 for k in c.accuracy.classes)


def test_an_unmet_class_floor_is_what_binds(tmp_path: Path) -> None:
    """With INT8 alone nothing saves the rare class: it is named with what it loses."""
    found = searched(tmp_path, precisions=(Precision.INT8,), max_drop=MaxDrop(0.005), max_class_drop=MaxDrop(0.005))
    assert not found.feasible and found.binding is not None
    assert found.binding.budget == "max-class-drop 0.005"
    assert found.binding.possible == "the best plan within the budgets loses 0.009 of rare (int8)"
    assert found.binding.relaxations == ("max-class-drop 0.009 instead of 0.005: 'int8' meets it",)


def test_both_floors_unmet_are_both_named(tmp_path: Path) -> None:
    found = searched(tmp_path, precisions=(Precision.INT8,), max_drop=MaxDrop(0.0001), max_class_drop=MaxDrop(0.001, worst=True))
    assert found.binding is not None and found.binding.budget == "max-drop 0.0001, max-class-drop 0.001 worst-case"
    assert "loses" in found.binding.possible and "may lose up to" in found.binding.possible and "of rare" in found.binding.possible


def test_a_class_floor_that_the_samples_cannot_prove_is_unsure(tmp_path: Path) -> None:
    """FP16 throughout loses nothing, and its interval ends at 0.0001."""
    found = searched(tmp_path, max_class_drop=MaxDrop(0.00005))
    assert found.feasible and found.chosen is not None and not found.chosen.sure
    assert found.unsure == ("max-class-drop 0.00005 (24 samples of common, 24 samples of rare cannot prove it)",)


def test_relaxations_name_no_floor_that_is_kept(tmp_path: Path) -> None:
    """Each floor is kept by some plan, both by none: what one plan loses is not offered as a relaxation of a floor it keeps."""
    asked = problem(tmp_path, NETWORK, max_drop=MaxDrop(0.01), max_class_drop=MaxDrop(0.01))
    base = searched(tmp_path / "x").candidates[0]
    one = replace(base, name="one", accuracy=accuracy(0.02, rare=0.0))
    two = replace(base, name="two", accuracy=accuracy(0.0, rare=0.02))
    said = unmet_floor(asked, [one, two])
    assert said.budget == "max-drop 0.01, max-class-drop 0.01" and said.relaxations == ()


# ------------------------------------------------------------------------------------------------ goal, identity


def test_least_energy_takes_the_frugal_operating_point(tmp_path: Path) -> None:
    """At half the clock the fake chip takes half the energy: under the goal of energy it is chosen, and with a tight latency it cannot be."""
    priced = costs(NETWORK, speed={"500MHz": 0.5, "1000MHz": 1.0})
    for limit, point in ((100.0, "500MHz"), (1e-3 + 1.2 * min(p.latency_ms for p in priced.price(np.zeros((1, 8), np.int64), "1000MHz")), "1000MHz")):
        asked = problem(tmp_path / point, NETWORK, (f"{limit:.4f}ms",), op_points=("500MHz", "1000MHz"), trials=16, max_drop=MaxDrop(0.01), goal=Goal.ENERGY)
        found = run(asked, FakeEvaluator(PLANTED), priced)
        assert found.feasible and found.chosen is not None and found.chosen.price.op_point == point


def test_goal_preset_and_class_floor_are_part_of_the_study(tmp_path: Path) -> None:
    base = problem(tmp_path, NETWORK)
    others = [replace(base, goal=Goal.ENERGY), replace(base, preset="abc"), replace(base, preset="abd"), replace(base, max_class_drop=MaxDrop(0.01)),
              replace(base, max_class_drop=MaxDrop(0.01, worst=True)), replace(base, max_drop=MaxDrop(0.01)),
              replace(base, budgets=(Budget.parse("5ms"),)), replace(base, budgets=(Budget.parse("5ms worst-case"),))]
    assert len({base.study_name, *(o.study_name for o in others)}) == 1 + len(others)
