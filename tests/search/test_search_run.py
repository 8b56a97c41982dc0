"""The whole search on planted losses: does it find the right plan, say why not, stop and go on?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_search import (
    FakeEvaluator,
    Planted,
    answer,
    best_possible,
    chain,
    costs,
    like_brain,
    middle_budget,
    problem,
)

from qbench.errors import ToolError, UnknownName
from qbench.network import Precision
from qbench.plan import Plan
from qbench.protocols import Accuracy
from qbench.result import Candidate, SearchResult
from qbench.search.budget import MaxDrop
from qbench.search.choice import choose
from qbench.search.problem import Events
from qbench.search.run import run

NETWORK = chain(12)
COSTS = costs(NETWORK)


def search(tmp_path: Path, share: float = 0.4, evaluator: FakeEvaluator | None = None, events: Events | None = None, **more: Any) -> SearchResult:
    return run(problem(tmp_path, NETWORK, (middle_budget(COSTS, share),), **more), evaluator or FakeEvaluator(like_brain()), COSTS, events)


@pytest.mark.parametrize("noise", [0.0, 0.002])
@pytest.mark.parametrize("share", [0.15, 0.3, 0.6])
def test_finds_the_best_plan_although_single_units_have_the_wrong_sign(tmp_path: Path, share: float, noise: float) -> None:
    planted = like_brain()
    goal = problem(tmp_path, NETWORK, (middle_budget(COSTS, share),), seed=3)
    found = run(goal, FakeEvaluator(planted, noise=noise), COSTS)
    best = best_possible(goal, COSTS, planted)
    assert found.feasible
    assert min(c.accuracy.drop for c in found.candidates if c.feasible) == pytest.approx(best, rel=1e-9)
    assert found.chosen is not None
    assert found.chosen.accuracy.drop <= best + 0.002                      # the most frugal of those as accurate as the best


def test_the_coupling_is_found_shown_and_explains_itself(tmp_path: Path) -> None:
    notes: list[str] = []
    found = search(tmp_path, events=Events(note=notes.append))
    text = "units 'conv0' and 'conv1' do not act alone"
    assert any(text in w for w in found.warnings)
    assert any(text in n for n in notes)
    row = next(r for r in found.sensitivity if r["unit"] == "conv0")
    [coupled] = row["coupled"]
    assert (coupled["unit"], coupled["interaction"] < -0.1) == ("conv1", True)
    assert row["drop_low"] <= row["drop"] <= row["drop_high"]
    assert row["ms_saved"] > 0.0


def test_the_result_holds_what_it_promises(tmp_path: Path) -> None:
    told: list[Candidate] = []
    progress: list[tuple[str, int, int]] = []
    found = search(tmp_path, events=Events(candidate=told.append, progress=lambda *p: progress.append(p)))
    assert tuple(told) == found.candidates
    assert found.evaluated == len({c.plan_key for c in found.candidates}) == 40
    assert len({c.name for c in found.candidates}) == len(found.candidates)
    assert {c.origin for c in found.candidates} >= {"uniform", "milp", "nsga2"}
    assert all(c.accuracy.samples == 48 for c in found.candidates), "quick looks are no candidates"
    assert (found.reference.name, found.reference.accuracy.drop) == ("float", 0.0)
    assert set(found.uniform) == {"int8", "fp16"}
    assert found.uniform["int8"].calibrator == "percentile:p=99.9"           # the planted better one
    assert found.chosen is not None
    for u in found.uniform.values():
        assert not u.feasible or found.chosen.accuracy.value >= u.accuracy.value
    for c in found.candidates:
        plan = Plan.load(tmp_path / c.plan)
        assert (plan.key, plan.op_point, plan.layers) == (c.plan_key, c.price.op_point, dict(c.layers))
    assert progress[-1] == ("candidates", 40, 40)
    for c in found.front:
        assert not any(o.accuracy.value >= c.accuracy.value and o.price.latency_ms <= c.price.latency_ms and o.price.energy_mj <= c.price.energy_mj
                       and (o.accuracy.value, o.price.latency_ms, o.price.energy_mj) != (c.accuracy.value, c.price.latency_ms, c.price.energy_mj)
                       for o in found.candidates)
    assert [c.price.latency_ms for c in found.front] == sorted(c.price.latency_ms for c in found.front)


def test_equal_plans_are_evaluated_once_and_every_pass_is_counted(tmp_path: Path) -> None:
    evaluator = FakeEvaluator(like_brain())
    found = search(tmp_path, evaluator=evaluator)
    assert len(evaluator.log) == len(set(evaluator.log))
    assert found.float_pass_equivalents == pytest.approx(sum(n for _, n in evaluator.log) / 48)
    whole = [key for key, n in evaluator.log if n == 48]
    assert len(whole) == found.evaluated + 1                                 # and the float reference


def test_same_seed_same_search_other_seed_other_search(tmp_path: Path) -> None:
    one, two, other = (answer(search(tmp_path / str(i), seed=s)) for i, s in enumerate((0, 0, 1)))
    assert one == two
    assert one["candidates"] != other["candidates"]


@pytest.mark.parametrize("strategy", ["nsga3", "tpe", "random"])
def test_every_strategy_serves_the_search(tmp_path: Path, strategy: str) -> None:
    found = search(tmp_path, strategy=strategy, trials=24)
    assert found.feasible
    assert any(c.origin == strategy for c in found.candidates)


def test_an_unknown_strategy_is_refused_before_any_evaluation(tmp_path: Path) -> None:
    evaluator = FakeEvaluator(like_brain())
    with pytest.raises(UnknownName):
        search(tmp_path, evaluator=evaluator, strategy="genetic")
    assert evaluator.log == []


# ------------------------------------------------------------------------------------------------ refusal


def test_an_impossible_budget_is_refused_early_with_the_fastest_possible(tmp_path: Path) -> None:
    evaluator = FakeEvaluator(like_brain())
    goal = problem(tmp_path, NETWORK, ("0.01ms",))
    found = run(goal, evaluator, COSTS)
    fastest = min(p.latency_ms for p in COSTS.price(np.array([goal.space.codes(p, COSTS.precisions) for p in goal.space.every()]), "1000MHz"))
    assert not found.feasible
    assert found.binding is not None
    assert found.binding.budget == "0.01ms"
    assert f"fastest possible is {math.ceil(fastest * 1000) / 1000:g}ms at 1000MHz (every unit that has a choice at int8)" in found.binding.possible
    assert "instead of 0.01ms: a plan exists" in found.binding.relaxations[0]
    assert found.chosen is not None
    assert found.chosen.price.latency_ms == pytest.approx(fastest)
    assert Plan.load(tmp_path / found.chosen.plan).calibrator == "percentile:p=99.9"      # the best one for this plan
    assert sum(n for _, n in evaluator.log) <= 3 * 48


def test_budgets_that_only_together_are_impossible_say_so(tmp_path: Path) -> None:
    goal = problem(tmp_path, NETWORK, op_points=("500MHz", "1000MHz"))
    priced = replace(COSTS, speed={"500MHz": 0.5, "1000MHz": 1.0})
    rows = np.array([goal.space.codes(p, COSTS.precisions) for p in goal.space.every()])
    ms = min(p.latency_ms for p in priced.price(rows, "1000MHz"))
    mj = min(p.energy_mj for p in priced.price(rows, "500MHz"))
    found = run(problem(tmp_path, NETWORK, (f"{1.1 * ms:.3f}ms", f"{1.1 * mj:.3f}mJ"), op_points=("500MHz", "1000MHz")),
                FakeEvaluator(like_brain()), priced)
    assert not found.feasible
    assert found.binding is not None
    assert found.binding.budget.endswith("mJ together")
    assert len(found.binding.relaxations) == 2
    assert all("and the other budgets kept: a plan exists" in r for r in found.binding.relaxations)


def test_a_floor_that_no_plan_keeps_says_what_it_would_take(tmp_path: Path) -> None:
    found = search(tmp_path, share=0.2, max_drop=MaxDrop.parse("0.01pt"))
    assert not found.feasible
    assert found.binding is not None
    assert found.binding.budget == "max-drop 0.0001"
    assert found.chosen is not None
    best = min(c.accuracy.drop for c in found.candidates if c.price.latency_ms <= float(found.budgets[0][:-2]))
    assert found.chosen.accuracy.drop == best
    assert any("'fp16' loses 0" in r for r in found.binding.relaxations)
    assert found.budgets[-1] == "max-drop 0.0001"


def test_a_floor_without_budget_asks_for_the_fastest_plan_that_keeps_it(tmp_path: Path) -> None:
    planted = like_brain()
    goal = problem(tmp_path, NETWORK, max_drop=MaxDrop.parse("0.15pt"))
    found = run(goal, FakeEvaluator(planted), COSTS)
    assert found.chosen is not None
    assert found.chosen.accuracy.drop <= 0.0015
    assert found.chosen.price.latency_ms == min(c.price.latency_ms for c in found.candidates if c.accuracy.drop <= 0.0015)


def test_memory_and_power_budgets_are_kept_exactly(tmp_path: Path) -> None:
    uniform = COSTS.price(np.array([[0] * 12, [1] * 12]), "1000MHz")
    memory = 0.5 * (uniform[0].peak_memory_bytes + uniform[1].peak_memory_bytes)
    watts = 0.5 * (uniform[0].power_w + uniform[1].power_w)
    goal = problem(tmp_path, NETWORK, (f"{memory:.0f}B", f"{watts:.5f}W"), trials=24)
    found = run(goal, FakeEvaluator(like_brain()), COSTS)
    assert found.feasible
    assert found.chosen is not None
    assert found.chosen.price.peak_memory_bytes <= memory
    assert found.chosen.price.power_w <= watts
    assert min(c.accuracy.drop for c in found.candidates if c.feasible) == pytest.approx(best_possible(goal, COSTS, like_brain()), rel=0.05, abs=1e-5)


def test_several_operating_points_are_spread_without_new_evaluations(tmp_path: Path) -> None:
    priced = replace(COSTS, speed={"1000MHz": 1.0, "500MHz": 0.5})
    evaluator = FakeEvaluator(like_brain())
    found = run(problem(tmp_path, NETWORK, op_points=("1000MHz", "500MHz"), trials=16), evaluator, priced)
    assert {c.price.op_point for c in found.front} == {"1000MHz", "500MHz"}
    assert any(c.origin == "spread" for c in found.candidates)
    assert sum(n == 48 for _, n in evaluator.log) == found.evaluated + 1 == 17


def test_int16_is_searched_too(tmp_path: Path) -> None:
    network = chain(6)
    priced = costs(network, ("int8", "int16"))
    planted = Planted({0: 0.05, 1: 0.001, 2: 0.001, 3: 0.02, 4: 0.001, 5: 0.001})
    goal = problem(tmp_path, network, (middle_budget(priced, 0.5),), precisions=(Precision.INT8, Precision.INT16), trials=20)
    found = run(goal, FakeEvaluator(planted), priced)
    assert set(found.uniform) == {"int8", "int16"}
    assert min(c.accuracy.drop for c in found.candidates if c.feasible) == pytest.approx(best_possible(goal, priced, planted), rel=1e-9)


# ------------------------------------------------------------------------------------------------ small, broken, stopped


def test_a_space_smaller_than_the_trials_is_searched_whole_and_said(tmp_path: Path) -> None:
    network = chain(3, fixed=(1,))
    priced = costs(network)
    found = run(problem(tmp_path, network, calibrators=("minmax",)), FakeEvaluator(Planted({0: 0.01, 2: 0.02}), spread=0.0), priced)
    dropped = sum("dropped after a quick look" in w for w in found.warnings)
    assert found.evaluated + dropped == 4
    assert any(f"{found.evaluated} of 40 plans evaluated" in w for w in found.warnings)


def test_a_set_too_small_for_quick_looks_is_always_used_whole(tmp_path: Path) -> None:
    evaluator = FakeEvaluator(like_brain(), samples=10)
    found = search(tmp_path, evaluator=evaluator, trials=16)
    assert {n for _, n in evaluator.log} == {10}
    assert found.evaluated == 16


class Broken(FakeEvaluator):
    """Cannot run plans whose last unit is INT8; gives no number where unit 5 is."""

    def evaluate(self, plan: Plan, samples: int | None = None) -> Accuracy:
        found = super().evaluate(plan, samples)
        precision = list(plan.precision.values())
        if precision[-1] is Precision.INT8 and precision[0] is Precision.INT8:
            raise ToolError("the session cannot be made")
        return replace(found, value=math.nan, drop=math.nan) if precision[5] is Precision.INT8 else found


def test_plans_that_fail_are_dropped_with_the_reason_and_the_search_goes_on(tmp_path: Path) -> None:
    notes: list[str] = []
    found = search(tmp_path, 0.8, Broken(like_brain()), Events(note=notes.append), trials=16)
    assert found.feasible
    assert found.chosen is not None
    assert math.isfinite(found.chosen.accuracy.value)
    assert any("cannot be evaluated: the session cannot be made" in n for n in notes)
    assert any("could not be evaluated, the first because" in w for w in found.warnings)


def interrupt_at(goal: int, error: type[BaseException] = KeyboardInterrupt) -> Callable[[int], None]:
    def before(number: int) -> None:
        if number == goal:
            raise error

    return before


@pytest.mark.parametrize("number", [2, 9, 20, 45])
def test_interrupted_it_leaves_what_it_has_and_goes_on_later(tmp_path: Path, number: int) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    stopped = search(tmp_path, evaluator=FakeEvaluator(like_brain(), before=interrupt_at(number)), storage=storage, trials=24)
    assert stopped.partial
    assert stopped.evaluated < 24
    assert any("interrupted after" in w for w in stopped.warnings)
    assert (stopped.chosen is None) == (not stopped.candidates)
    stopped.to_dict()
    evaluator = FakeEvaluator(like_brain())
    resumed = search(tmp_path, evaluator=evaluator, storage=storage, trials=24)
    straight = search(tmp_path / "straight", trials=24)
    assert answer(resumed) == answer(straight)
    assert not resumed.partial


def test_interrupted_before_the_float_model_is_measured_there_is_nothing_to_hand_back(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path, evaluator=FakeEvaluator(like_brain(), before=interrupt_at(0)))


def test_a_time_limit_ends_the_search_with_what_there_is(tmp_path: Path) -> None:
    found = search(tmp_path, time_limit_s=0.0)
    assert any("stopped after 0 s with 0 of 40 plans" in w for w in found.warnings)
    assert not found.partial


def test_the_reference_may_be_given(tmp_path: Path) -> None:
    evaluator = FakeEvaluator(like_brain())
    known = Accuracy("dice", 0.93, 0.92, 0.94, 48, 0.0, 0.0, 0.0, math.inf, 1.0, 0.0, 0.5)
    found = run(problem(tmp_path, NETWORK, (middle_budget(COSTS, 0.4),), trials=8), evaluator, COSTS, reference=known)
    assert found.reference.accuracy == known
    assert sum(n == 48 for _, n in evaluator.log) == found.evaluated


def test_of_plans_as_accurate_as_the_best_the_most_frugal_is_chosen(tmp_path: Path) -> None:
    found = search(tmp_path, trials=8)
    one = found.candidates[0]

    def plan(name: str, drop: float, mj: float, origin: str = "milp", sure: bool = True) -> Candidate:
        accuracy = replace(one.accuracy, value=0.93 - drop, drop=drop, drop_low=drop - 0.00196, drop_high=drop + 0.00196)
        return replace(one, name=name, origin=origin, accuracy=accuracy, price=replace(one.price, energy_mj=mj), sure=sure)

    goal = problem(tmp_path, NETWORK, ("20ms",))
    best = plan("best", 0.001, 9.0)
    assert choose([best, plan("tied", 0.0019, 5.0), plan("worse", 0.0031, 1.0)], goal) == plan("tied", 0.0019, 5.0)
    assert choose([best, plan("tied", 0.0019, 5.0), plan("int8", 0.0015, 9.5, "uniform")], goal) == best
    assert choose([best, plan("doubtful", 0.001, 5.0, sure=False)], goal) == best
    assert choose([], goal) is None
