"""The whole search on planted losses, where the right answer is known."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_search import (
    FLOAT_VALUE,
    FakeCosts,
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

from qbench.errors import QbenchError, UnknownName
from qbench.network import Precision
from qbench.plan import Plan
from qbench.protocols import Accuracy
from qbench.result import SearchResult, result_from_dict
from qbench.search import strategy_names
from qbench.search.budget import Budget, MaxDrop
from qbench.search.choice import LARGEST_TIE, SURETY
from qbench.search.problem import Events, Problem
from qbench.search.run import run
from qbench.search.sensitivity import standard_error

INT8, INT16, FP16 = Precision.INT8, Precision.INT16, Precision.FP16
TWO_POINTS = {"500MHz": 0.5, "1000MHz": 1.0}


def additive(units: int = 8) -> Planted:
    return Planted({i: 0.001 * (1 + (5 * i) % 8) for i in range(units)})


def together(units: int = 8) -> Planted:
    """Units 3 and 4 lose eight points more when both are lowered."""
    return Planted({i: 0.002 for i in range(units)}, pairs={(3, 4): 0.08})


ADDITIVE, TOGETHER = additive(), together()


class Case:
    """One search that can be run again: network, costs, planted losses and the evaluator's log."""

    def __init__(self, out: Path, planted: Planted, units: int = 8, share: float = 0.4, **more: Any) -> None:
        speed, fixed = more.pop("speed", {"1000MHz": 1.0}), more.pop("fixed", ())
        self.evaluating = {k: more.pop(k) for k in ("noise", "before") if k in more}
        self.network, self.planted = chain(units, fixed=fixed), planted
        precisions = more.pop("precisions", (INT8, FP16))
        self.costs = costs(self.network, tuple(map(str, precisions)), speed=speed)
        budgets = more.pop("budgets", (middle_budget(self.costs, share),))
        self.problem: Problem = problem(out, self.network, budgets, precisions=precisions, op_points=tuple(speed), **{"trials": 10, **more})
        self.evaluator = FakeEvaluator(planted, **self.evaluating)

    def run(self, events: Events | None = None, reference: Accuracy | None = None, **changes: Any) -> SearchResult:
        self.evaluator = FakeEvaluator(self.planted, **self.evaluating)
        return run(replace(self.problem, **changes), self.evaluator, self.costs, events, reference)


def check(found: SearchResult, case: Case) -> None:
    """What holds of every result, also of a partial one: it can be written, read back, and points to plans that exist."""
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert result_from_dict(json.loads(text)).to_dict() == found.to_dict()
    names = [c.name for c in found.candidates]
    assert len(set(names)) == len(names)
    assert len({c.plan_key for c in found.candidates}) == found.evaluated
    assert all(c in found.candidates for c in found.front)
    assert found.chosen is None or found.chosen in found.candidates
    assert all(c in found.candidates for c in found.uniform.values())
    for c in found.candidates:
        plan = Plan.load(case.problem.out / c.plan)
        assert plan.key == c.plan_key and plan.layers == c.layers
        assert all(plan.precision[u.name].is_float for u in case.network.units if not u.quantizable)
        met = all(b.met_by(c.price) for b in case.problem.budgets)
        assert c.feasible == (met and (case.problem.max_drop is None or case.problem.max_drop.met_by(c.accuracy)))
    uniform = [c for c in found.uniform.values() if c.feasible]
    if found.chosen is not None and (case.problem.budgets or case.problem.max_drop is None):
        assert all(found.chosen.accuracy.value >= c.accuracy.value for c in uniform)
    assert found.feasible == (found.chosen is not None and found.chosen.feasible)


# ------------------------------------------------------------------------------------------------ the right answer


@pytest.mark.parametrize(("planted", "share"), [(ADDITIVE, 0.2), (ADDITIVE, 0.6), (TOGETHER, 0.4), (like_brain(8), 0.4), (like_brain(8), 0.8)],
                         ids=["additive-tight", "additive-wide", "together", "brain", "brain-wide"])
def test_as_good_as_the_best_of_all_plans(tmp_path: Path, planted: Planted, share: float) -> None:
    """Some plan evaluated is the best of all 2^8 within the budget; the one chosen is within the error of it."""
    case = Case(tmp_path, planted, share=share)
    found = case.run()
    check(found, case)
    best = best_possible(case.problem, case.costs, planted)
    seen = min((c.accuracy for c in found.candidates if c.feasible), key=lambda a: a.drop)
    assert seen.drop == pytest.approx(best, rel=0.05, abs=1e-5)
    assert found.chosen is not None and found.feasible and found.binding is None
    surety = SURETY if found.chosen.sure else 0.0
    assert found.chosen.accuracy.drop <= seen.drop + surety + min(standard_error(seen), LARGEST_TIE)


@pytest.mark.parametrize("seed", range(3))
def test_at_least_as_good_as_every_uniform_plan_under_noise(tmp_path: Path, seed: int) -> None:
    case = Case(tmp_path, together(6), units=6, share=1.1, noise=0.05, seed=seed, precisions=(INT8, INT16, FP16))
    found = case.run()
    check(found, case)
    assert set(found.uniform) == {"int8", "int16", "fp16"}
    assert any(c.feasible for c in found.uniform.values())


def test_a_coupling_that_was_planted_is_reported_and_no_other(tmp_path: Path) -> None:
    case = Case(tmp_path, TOGETHER, trials=20)
    found = case.run()
    coupled = {r["unit"]: [c["unit"] for c in r["coupled"]] for r in found.sensitivity if r["coupled"]}
    assert coupled == {"conv3": ["conv4"], "conv4": ["conv3"]}
    [row] = [r for r in found.sensitivity if r["unit"] == "conv3"]
    assert row["coupled"][0]["interaction"] == pytest.approx(found.uniform["int8"].accuracy.drop * 0.08 / 0.096, rel=0.5)
    assert any("'conv3' and 'conv4' do not act alone" in w for w in found.warnings)


def test_one_hiding_the_other_is_reported_with_its_sign(tmp_path: Path) -> None:
    found = Case(tmp_path, like_brain(8)).run()
    [interaction] = [c["interaction"] for r in found.sensitivity if r["unit"] == "conv0" for c in r["coupled"] if c["unit"] == "conv1"]
    assert interaction < -0.05


def test_where_losses_add_up_no_coupling_is_reported(tmp_path: Path) -> None:
    found = Case(tmp_path, ADDITIVE).run()
    assert not any(r["coupled"] for r in found.sensitivity)
    assert not any("do not act alone" in w for w in found.warnings)


def test_sensitivity_has_a_row_for_each_unit_and_integer_precision(tmp_path: Path) -> None:
    case = Case(tmp_path, additive(5), units=5, precisions=(INT8, INT16, FP16), fixed=(1,))
    found = case.run()
    assert [(r["unit"], r["precision"]) for r in found.sensitivity] == [(f"conv{u}", p) for u in (0, 2, 3, 4) for p in ("int8", "int16")]
    assert all(r["ms_saved"] > 0.0 for r in found.sensitivity)
    order = sorted((r for r in found.sensitivity if r["precision"] == "int8"), key=lambda r: float(r["drop"]))
    assert [r["unit"] for r in order] == sorted((f"conv{u}" for u in (0, 2, 3, 4)), key=lambda n: ADDITIVE.single[int(n[4:])])


# ------------------------------------------------------------------------------------------------ evaluations


def test_equal_plans_are_evaluated_once_and_at_least_trials_of_them(tmp_path: Path) -> None:
    case = Case(tmp_path, like_brain(10), units=10, trials=16)
    found = case.run()
    assert len(set(case.evaluator.log)) == len(case.evaluator.log)
    whole = {key for key, n in case.evaluator.log if n == case.evaluator.samples}
    assert whole == {c.plan_key for c in found.candidates} | {found.reference.plan_key}
    assert found.evaluated >= 16
    assert found.float_pass_equivalents == pytest.approx(sum(n for _, n in case.evaluator.log) / case.evaluator.samples)


def test_a_space_with_fewer_plans_says_so(tmp_path: Path) -> None:
    """Two units under two calibrators: seven distinct plans, of which those beyond the budget or hopeless are left out."""
    case = Case(tmp_path, additive(2), units=2, share=1.1, trials=30)
    found = case.run()
    check(found, case)
    assert 2 <= found.evaluated <= 7
    assert any(w.startswith(f"{found.evaluated} of 30 plans evaluated") for w in found.warnings)


def test_a_reference_that_is_known_is_not_evaluated_again(tmp_path: Path) -> None:
    case = Case(tmp_path, ADDITIVE)
    plain = case.run()
    whole, log = (plain.reference.plan_key, case.evaluator.samples), case.evaluator.log
    known = case.run(reference=plain.reference.accuracy)
    assert log == [whole, *case.evaluator.log]
    assert answer(known)["candidates"] == answer(plain)["candidates"]
    assert known.float_pass_equivalents == pytest.approx(plain.float_pass_equivalents)


def test_the_evaluator_may_count_its_own_work(tmp_path: Path) -> None:
    class Counting(FakeEvaluator):
        float_pass_equivalents = 3.0

        def evaluate(self, plan: Plan, samples: int | None = None) -> Accuracy:
            self.float_pass_equivalents += 0.25
            return super().evaluate(plan, samples)

    case = Case(tmp_path, ADDITIVE)
    evaluator = Counting(ADDITIVE)
    found = run(case.problem, evaluator, case.costs)
    assert found.float_pass_equivalents == pytest.approx(0.25 * len(evaluator.log))


def test_events_hear_of_every_candidate_and_of_every_plan_dropped(tmp_path: Path) -> None:
    case, heard, notes = Case(tmp_path, like_brain(8)), list[str](), list[str]()
    found = case.run(Events(candidate=lambda c: heard.append(c.name), note=notes.append))
    assert heard == [c.name for c in found.candidates]
    dropped = [n for n in notes if " dropped: " in n]
    [told] = [w for w in found.warnings if "dropped after a quick look" in w]
    assert told.startswith(f"{len(dropped)} more plan")


@pytest.mark.parametrize("strategy", strategy_names())
def test_every_strategy_finishes_and_repeats_itself(tmp_path: Path, strategy: str) -> None:
    case = Case(tmp_path, like_brain(6), units=6, share=1.1, trials=8, strategy=strategy)
    first = case.run()
    check(first, case)
    assert strategy in {c.origin for c in first.candidates}
    if strategy != "gp":                                         # its contract test repeats it; here it would take seconds
        assert answer(case.run()) == answer(first)


def test_the_seed_decides(tmp_path: Path) -> None:
    """Another seed proposes other plans in the strategy's share; the search may still choose the same."""
    case = Case(tmp_path, like_brain(10), units=10)
    keys = [[c.plan_key for c in case.run(seed=seed).candidates] for seed in (0, 0, 1)]
    assert keys[0] == keys[1] != keys[2]


def test_an_unknown_strategy_is_refused_before_anything_is_evaluated(tmp_path: Path) -> None:
    case = Case(tmp_path, ADDITIVE, strategy="annealing")
    with pytest.raises(UnknownName, match="no search strategy 'annealing'"):
        case.run()
    assert case.evaluator.log == []


# ------------------------------------------------------------------------------------------------ no solution


@pytest.mark.parametrize("budget", ["0.01ms", "1uJ", "1uW", "1B", "1000000fps"])
def test_an_impossible_budget_is_refused_with_the_nearest_plan(tmp_path: Path, budget: str) -> None:
    """Few evaluations: the float model, and the nearest plan under each calibrator."""
    case = Case(tmp_path, ADDITIVE, budgets=(budget,))
    found = case.run()
    check(found, case)
    assert not found.feasible and found.binding is not None and not found.partial
    assert found.binding.budget == case.problem.budgets[0].text
    assert len(case.evaluator.log) <= 1 + 2 * len(case.problem.calibrators)
    assert found.chosen is not None and found.chosen.plan
    [limit] = case.problem.budgets
    values = [limit.excess(p) for p in case.costs.price(every_code(case), "1000MHz")]
    assert limit.excess(found.chosen.price) == pytest.approx(min(values), rel=1e-9)
    [relaxed] = found.binding.relaxations
    assert Budget.parse(relaxed.split()[0]).met_by(found.chosen.price)


def every_code(case: Case) -> Any:
    import numpy as np

    return np.array([case.problem.space.codes(p, case.costs.precisions) for p in case.problem.space.every()])


def test_the_fastest_possible_is_named(tmp_path: Path) -> None:
    case = Case(tmp_path, ADDITIVE, budgets=("0.01ms",), speed=TWO_POINTS)
    found = case.run()
    assert found.binding is not None and found.chosen is not None
    fastest = min(p.latency_ms for p in case.costs.price(every_code(case), "1000MHz"))
    assert found.chosen.price.latency_ms == pytest.approx(fastest)
    assert found.chosen.price.op_point == "1000MHz"
    assert found.binding.possible.startswith("fastest possible is ") and "1000MHz" in found.binding.possible
    assert found.chosen is found.uniform["int8"]


def test_what_the_refusal_offers_is_true(tmp_path: Path) -> None:
    """Asked again with the limit that it names, the same problem has a solution."""
    case = Case(tmp_path, ADDITIVE, budgets=("0.01ms",))
    refused = case.run()
    assert refused.binding is not None
    offered = Budget.parse(refused.binding.relaxations[0].split()[0])
    again = case.run(budgets=(offered,))
    assert again.feasible and again.binding is None


def test_a_floor_that_no_plan_keeps(tmp_path: Path) -> None:
    case = Case(tmp_path, ADDITIVE, max_drop=MaxDrop(1e-4), share=0.1)
    found = case.run()
    check(found, case)
    assert not found.feasible and found.binding is not None
    assert found.binding.budget == "max-drop 0.0001"
    inside = [c for c in found.candidates if all(b.met_by(c.price) for b in case.problem.budgets)]
    best = min(inside, key=lambda c: c.accuracy.drop)
    assert found.chosen is not None and found.chosen.accuracy.value == best.accuracy.value
    assert f"loses {best.accuracy.drop:.4g}" in found.binding.possible
    assert any("meets it" in r for r in found.binding.relaxations)


def test_a_floor_without_a_budget_finds_a_fast_plan_above_it(tmp_path: Path) -> None:
    """None of those evaluated that keep the floor is faster than the chosen one, and uniform FP16 is slower."""
    case = Case(tmp_path, ADDITIVE, budgets=(), max_drop=MaxDrop(0.01), trials=20)
    found = case.run()
    check(found, case)
    assert found.feasible and found.chosen is not None
    assert found.chosen.accuracy.drop <= 0.01
    assert found.chosen.price.latency_ms == min(c.price.latency_ms for c in found.candidates if c.accuracy.drop <= 0.01)
    assert found.chosen.price.latency_ms < found.uniform["fp16"].price.latency_ms
    assert found.budgets == ("max-drop 0.01",)


# ------------------------------------------------------------------------------------------------ budgets and points


def test_four_budgets_hold_together(tmp_path: Path) -> None:
    probe = Case(tmp_path, ADDITIVE)
    middle = [sorted(values)[len(values) // 2] for values in zip(*(
        (p.latency_ms, p.energy_mj, p.power_w, p.peak_memory_bytes) for p in probe.costs.price(every_code(probe), "1000MHz")), strict=True)]
    budgets = (f"{middle[0]:.6f}ms", f"{middle[1]:.6f}mJ", f"{middle[2]:.6f}W", f"{middle[3]}B")
    case = Case(tmp_path, ADDITIVE, budgets=budgets)
    found = case.run()
    check(found, case)
    assert found.chosen is not None and all(b.met_by(found.chosen.price) for b in case.problem.budgets)
    seen = min(c.accuracy.drop for c in found.candidates if c.feasible)
    assert seen == pytest.approx(best_possible(case.problem, case.costs, ADDITIVE), rel=0.05)


def test_the_frugal_operating_point_where_the_budget_allows_it(tmp_path: Path) -> None:
    """At half the clock a plan takes half the energy in twice the time: with time to spare it is chosen, and both are on the front."""
    case = Case(tmp_path, ADDITIVE, budgets=("1s",), speed=TWO_POINTS)
    found = case.run()
    check(found, case)
    assert found.chosen is not None and found.chosen.price.op_point == "500MHz"
    assert {c.price.op_point for c in found.front} == set(TWO_POINTS)
    assert found.evaluated < len(found.candidates)                # the same plan at another point is no evaluation
    assert len(set(case.evaluator.log)) == len(case.evaluator.log)


def test_an_operating_point_too_slow_for_the_budget_is_not_proposed(tmp_path: Path) -> None:
    case = Case(tmp_path, ADDITIVE, share=0.3, speed={"1000MHz": 1.0, "500MHz": 0.5})
    found = case.run()
    assert found.chosen is not None and found.chosen.price.op_point == "1000MHz"
    assert found.feasible


# ------------------------------------------------------------------------------------------------ what goes wrong


def failing(case: Case, broken: Callable[[Plan], bool], answer_with: Accuracy | QbenchError) -> Any:
    class Failing(FakeEvaluator):
        def evaluate(self, plan: Plan, samples: int | None = None) -> Accuracy:
            found = super().evaluate(plan, samples)
            if not broken(plan):
                return found
            if isinstance(answer_with, QbenchError):
                raise answer_with
            return replace(answer_with, samples=found.samples)

    return Failing(case.planted)


def mixed(plan: Plan) -> bool:
    """A plan of both kinds with an integer in its second unit, three in all or more: never one of the sensitivities."""
    low = [p is INT8 for p in plan.precision.values()]
    return low[1] and 3 <= sum(low) < len(low)


NOT_A_NUMBER = Accuracy("dice", math.nan, math.nan, math.nan, 48, math.nan, math.nan, math.nan, math.nan, math.nan, math.nan, 0.0)


@pytest.mark.parametrize("answer_with", [QbenchError("node 'x' has no kernel"), NOT_A_NUMBER], ids=["refused", "not a number"])
def test_plans_that_cannot_be_evaluated_are_left_out_and_told(tmp_path: Path, answer_with: Accuracy | QbenchError) -> None:
    case = Case(tmp_path, ADDITIVE)
    evaluator = failing(case, mixed, answer_with)
    found = run(case.problem, evaluator, case.costs)
    check(found, case)
    tried = {key for key, _ in evaluator.log}
    assert tried - {c.plan_key for c in found.candidates}
    assert not any(mixed(Plan.load(tmp_path / c.plan)) for c in found.candidates)
    said = "node 'x' has no kernel" if isinstance(answer_with, QbenchError) else "is not a number"
    assert any(said in w for w in found.warnings)
    assert found.feasible


@pytest.fixture(scope="module")
def whole_search(tmp_path_factory: pytest.TempPathFactory) -> tuple[SearchResult, int]:
    """A search that nobody interrupts, and how often it evaluates."""
    case = Case(tmp_path_factory.mktemp("whole"), like_brain(10), units=10)
    found = case.run()
    return found, len(case.evaluator.log)


@pytest.mark.parametrize("share", [0.01, 0.25, 0.6, 1.0])
def test_ctrl_c_leaves_a_valid_partial_result(tmp_path: Path, whole_search: tuple[SearchResult, int], share: float) -> None:
    """After the float model, among sensitivities, among plans, at the last evaluation. What was found until then is what the
    whole search finds first."""
    whole, evaluations = whole_search
    number = max(round(share * (evaluations - 1)), 1)

    def before(n: int) -> None:
        if n == number:
            raise KeyboardInterrupt

    stopped = Case(tmp_path, like_brain(10), units=10, before=before)
    found = stopped.run()
    check(found, stopped)
    assert found.partial and not whole.partial
    assert found.evaluated < whole.evaluated
    assert answer(found)["candidates"] == answer(whole)["candidates"][:len(found.candidates)]
    assert found.warnings[0] == f"interrupted after {found.evaluated} of 10 plans"
    assert (found.chosen is None) == (not found.candidates)


def test_ctrl_c_before_the_float_model_goes_to_the_caller(tmp_path: Path) -> None:
    def before(n: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Case(tmp_path, ADDITIVE, before=before).run()


def test_ctrl_c_in_a_listener_stops_too(tmp_path: Path) -> None:
    def third(candidate: object) -> None:
        heard.append(candidate)
        if len(heard) == 3:
            raise KeyboardInterrupt

    heard: list[object] = []
    case = Case(tmp_path, ADDITIVE)
    found = case.run(Events(candidate=third))
    check(found, case)
    assert found.partial and found.evaluated == 3


def test_no_time_leaves_the_reference(tmp_path: Path) -> None:
    case = Case(tmp_path, ADDITIVE, time_limit_s=0.0)
    found = case.run()
    check(found, case)
    assert not found.feasible and not found.partial and found.chosen is None
    assert found.warnings[0] == "stopped after 0 s with 0 of 10 plans evaluated"
    assert found.reference.accuracy.value == FLOAT_VALUE


def test_costs_of_another_network_are_a_mistake_of_ours(tmp_path: Path) -> None:
    case = Case(tmp_path, ADDITIVE)
    other: FakeCosts = costs(chain(9))
    with pytest.raises(AssertionError, match="the network's units in their order"):
        run(case.problem, case.evaluator, other)
