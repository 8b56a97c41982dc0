"""One place where a search evaluates and prices: remembered, counted, and turned into objectives and constraints."""

from __future__ import annotations

import math
from dataclasses import asdict
from time import perf_counter

import numpy as np

from qbench.network import Precision
from qbench.plan import Granularity, Plan
from qbench.protocols import Accuracy, Evaluator, Price
from qbench.search.assignment import AssignmentCosts
from qbench.search.ledger import WHOLE, Ledger, Seen
from qbench.search.problem import Problem
from qbench.search.space import Codes, Config, Costs, finest


class Bench:
    """Evaluations of one problem. Equal plans are evaluated once, also across a resume.

    passes   work so far in passes of the float model over the whole set: what the evaluator counts in its attribute
             `float_pass_equivalents`, or samples where it does not count; work remembered from before a kill included
    """

    def __init__(self, problem: Problem, evaluator: Evaluator, pricer: AssignmentCosts, ledger: Ledger) -> None:
        space = problem.space
        assert tuple(pricer.units) == space.units, "the pricer prices the network's units in their order"
        self.problem, self.space, self.pricer = problem, space, pricer
        self._evaluator, self._ledger = evaluator, ledger
        self._plans: dict[Config, tuple[Plan, str]] = {}
        self._counted: set[tuple[str, int]] = set()
        self._samples = 0
        self._started = perf_counter()
        self.passes = 0.0

    @property
    def wall_s(self) -> float:
        return perf_counter() - self._started

    def plan(self, config: Config) -> Plan:
        return self._made(config)[0]

    def plan_key(self, config: Config) -> str:
        return self._made(config)[1]

    def reference(self, known: Accuracy | None) -> Accuracy:
        """Accuracy of the float model; `known` when the evaluator has it already. Comes before any other evaluation."""
        if known is None:
            known = self.look(self.float_config(), WHOLE)
        else:
            self.passes += 1.0
        self._samples = known.samples
        return known

    def float_config(self) -> Config:
        space = self.space
        return Config((Precision.FP32,) * len(space.units), space.calibrators[0], space.granularities[0], space.op_points[0])

    def look(self, config: Config, samples: int) -> Accuracy:
        """Accuracy on the first `samples`, or on the whole set for WHOLE."""
        key = (self.plan_key(config), samples)
        seen = self._ledger.recall(*key)
        if seen is None:
            before = getattr(self._evaluator, "float_pass_equivalents", None)
            accuracy = self._evaluator.evaluate(self.plan(config), samples if samples != WHOLE else None)
            share = accuracy.samples / (self._samples or accuracy.samples)
            seen = Seen(accuracy, share if before is None else getattr(self._evaluator, "float_pass_equivalents", before) - before)
            self._ledger.remember(*key, seen)
        if key not in self._counted:
            self._counted.add(key)
            self.passes += seen.passes
        return seen.accuracy

    def finish(self, config: Config, costs: Costs, accuracy: Accuracy, origin: str, name: str) -> None:
        """Writes the candidate into the ledger."""
        self._ledger.finish(config, costs, {"plan_key": self.plan_key(config), "accuracy": asdict(accuracy), "origin": origin, "name": name})

    def codes(self, config: Config) -> Codes:
        return self.space.codes(config.precision, self.pricer.precisions)

    def price(self, config: Config) -> Price:
        return self.pricer.price(self.codes(config)[None], config.op_point)[0]

    def reference_price(self) -> Price:
        """Of the finest arithmetic that the target offers throughout."""
        best = finest([Precision(p) for p in self.pricer.precisions])
        code = list(self.pricer.precisions).index(str(best))
        return self.pricer.price(np.full((1, len(self.space.units)), code, np.int64), self.problem.op_points[0])[0]

    def constraints(self, price: Price, accuracy: Accuracy | None = None) -> dict[str, float]:
        """Excess over each budget and, with an accuracy, over the allowed drop; met when at most 0."""
        found: dict[str, float] = {}
        for b in self.problem.budgets:
            found[str(b.kind)] = max(found.get(str(b.kind), -math.inf), b.excess(price))
        if accuracy is not None and self.problem.max_drop is not None:
            found["drop"] = self.problem.max_drop.excess(accuracy)
        return found

    def costs(self, price: Price, accuracy: Accuracy) -> Costs:
        return Costs(accuracy.drop, price.latency_ms, price.energy_mj, self.constraints(price, accuracy))

    def _made(self, config: Config) -> tuple[Plan, str]:
        if config not in self._plans:
            precision = dict(zip(self.space.units, config.precision, strict=True))
            plan = self.problem.make_plan(precision, config.calibrator, Granularity(config.granularity), config.op_point)
            self._plans[config] = (plan, plan.key)
        return self._plans[config]
