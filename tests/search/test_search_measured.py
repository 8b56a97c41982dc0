"""When boards have measured: every limit is kept by what they said, and what is told of the choice is about that too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qbench.board import Measurement
from qbench.cost import CostTable
from qbench.network import Precision
from qbench.plan import Granularity, Plan
from qbench.protocols import Accuracy, ClassAccuracy
from qbench.result import Candidate, SearchResult
from qbench.search.budget import Budget, MaxDrop
from qbench.search.problem import Problem
from qbench.targets import load
from qbench.workbench.board_loop import Rig, decide
from qbench.workbench.case import Case, open_case
from qbench.workbench.plans import Plans, schemes_of, statistics_of

INT8, FP16 = Precision.INT8, Precision.FP16


class Board:
    """Everything has been measured already."""

    url = "planted:"

    def facts(self) -> Mapping[str, str]:
        return {}

    def measure(self, *_: Any) -> Measurement:
        raise AssertionError("known")


class Loop:
    """Two candidates, all INT8 and all FP16, that a board has measured."""

    def __init__(self, case: Case) -> None:
        target = load("rk3588")
        plans = Plans(case.network, statistics_of(case.prepared, case.calibration), schemes_of(target, "2.5.0"), target.name, "2.5.0")
        self.allowed = {u.name: (INT8, FP16) if u.quantizable else (FP16,) for u in case.network.units}
        self.case, self.table, self.make = case, CostTable.build(case.network, target, "2.5.0"), plans
        self.plans = {str(p): plans({u: p if p in a else a[-1] for u, a in self.allowed.items()}, "minmax", Granularity.PER_CHANNEL, "1000MHz")
                      for p in (INT8, FP16)}

    def decided(self, ms: Mapping[str, float], tmp: Any, class_drop: Mapping[str, float], **limits: Any) -> SearchResult:
        problem = Problem(self.case.network, self.allowed, self.make, "data", ("minmax",), (Granularity.PER_CHANNEL,), ("1000MHz",),
                          limits.pop("budgets", ()), tmp, measured=True, **limits)
        found = tuple(self.candidate(name, plan, class_drop[name], problem) for name, plan in self.plans.items())
        rig = Rig([Board()], self.case.prepared, [])
        rig.known.update({plan.key: Measurement("planted:", name, "planted", {}, 1.0, 1.0, tuple(ms[name] * (1.0 + 1e-4 * (i % 5)) for i in range(40)))
                          for name, plan in self.plans.items()})
        result = SearchResult(
            feasible=True, binding=None, budgets=problem.limits, sample=True, evaluated=2, float_pass_equivalents=2.0, wall_s=0.0, reference=found[0],
            uniform={}, chosen=found[0], front=found[:1], candidates=found, unsure=("stale",), sensitivity=(), target="rk3588", toolkit="2.5.0",
            model="fashion", provenance={}, warnings=(), partial=False)
        return decide(rig, self.table, result, problem, lambda c: self.plans[c.name])[0]

    def candidate(self, name: str, plan: Plan, class_drop: float, problem: Problem) -> Candidate:
        worst = ClassAccuracy("7", 0.9, 0.8, 1.0, class_drop, class_drop, class_drop, 10)
        accuracy = Accuracy("top1", 0.95, 0.9, 1.0, 100, 0.001, 0.001, 0.001, 30.0, 1.0, math.nan, 1.0, classes=(worst,))
        price = self.table.price(np.asarray(self.table.codes(plan))[None], "1000MHz")[0]
        return Candidate(name, "uniform", "", plan.key, "minmax", "per-channel", plan.layers, accuracy, price, problem.met(price, accuracy), False)


@pytest.fixture(scope="module")
def loop() -> Loop:
    return Loop(open_case(sample="fashion", limit=8))


def test_a_class_floor_is_kept_by_what_is_chosen(loop: Loop, tmp_path: Any) -> None:
    """INT8 is faster, and one class loses more than is allowed."""
    found = loop.decided({"int8": 1.0, "fp16": 2.0}, tmp_path, {"int8": 0.05, "fp16": 0.0}, max_class_drop=MaxDrop.parse("1%"))
    assert found.feasible and found.chosen is not None and found.chosen.name == "fp16"
    assert [c.feasible for c in found.candidates] == [False, True]


def test_a_budget_surely_kept_when_measured_is_sure(loop: Loop, tmp_path: Any) -> None:
    """The search was unsure by its predictions."""
    found = loop.decided({"int8": 1.0, "fp16": 2.0}, tmp_path, {"int8": 0.0, "fp16": 0.0}, budgets=(Budget.parse("1.5ms"),))
    assert found.feasible and found.chosen is not None and found.chosen.name == "int8" and found.chosen.sure and found.unsure == ()


def test_a_budget_that_no_measured_plan_keeps_is_what_binds(loop: Loop, tmp_path: Any) -> None:
    found = loop.decided({"int8": 4.0, "fp16": 8.0}, tmp_path, {"int8": 0.0, "fp16": 0.0}, budgets=(Budget.parse("1.5ms"),))
    assert not found.feasible and found.binding is not None and found.binding.budget == "1.5ms" and found.unsure == ()
    assert found.binding.possible == "on the boards the nearest plan has 4.001ms (int8)"


def test_the_front_is_that_of_the_measurements(loop: Loop, tmp_path: Any) -> None:
    """Predicted, INT8 alone was on it; measured, FP16 takes half the time and is as accurate."""
    found = loop.decided({"int8": 2.0, "fp16": 1.0}, tmp_path, {"int8": 0.0, "fp16": 0.0})
    assert "fp16" in [c.name for c in found.front]


def test_accuracy_that_is_no_number_is_never_feasible(loop: Loop, tmp_path: Any) -> None:
    problem = Problem(loop.case.network, loop.allowed, loop.make, "data", ("minmax",), (Granularity.PER_CHANNEL,), ("1000MHz",), (), tmp_path)
    candidate = loop.candidate("int8", loop.plans["int8"], 0.0, problem)
    assert not problem.met(candidate.price, replace(candidate.accuracy, drop=math.nan))
