"""One place where a search evaluates and prices: remembered, counted, and turned into objectives and constraints."""

from __future__ import annotations

from dataclasses import asdict
from time import perf_counter

import numpy as np

from qbench.network import Precision
from qbench.plan import Granularity, Plan
from qbench.protocols import Accuracy, Evaluator, Price
from qbench.search.assignment import AssignmentCosts
from qbench.search.ledger import WHOLE, Ledger
from qbench.search.problem import Problem
from qbench.search.space import Codes, Config, Costs, finest


class Bench:
    """Evaluations of one problem. Equal plans are evaluated once, also across a resume."""

    def __init__(self, problem: Problem, evaluator: Evaluator, pricer: AssignmentCosts, ledger: Ledger) -> None:
        space = problem.space
        assert tuple(pricer.units) == space.units, "the pricer prices the network's units in their order"
        self.problem, self.space, self.pricer = problem, space, pricer
        self._evaluator, self._ledger = evaluator, ledger
        self._plans: dict[Config, Plan] = {}
        self._counted: set[tuple[str, int]] = set()
        self._started = perf_counter()
        self.evaluation_s = 0.0

    @property
    def wall_s(self) -> float:
        return perf_counter() - self._started

    def plan(self, config: Config) -> Plan:
        if config not in self._plans:
            precision = dict(zip(self.space.units, config.precision, strict=True))
            self._plans[config] = self.problem.make_plan(precision, config.calibrator, Granularity(config.granularity), config.op_point)
        return self._plans[config]

    def look(self, config: Config, samples: int) -> Accuracy:
        """Accuracy on the first `samples`, or on the whole set for WHOLE."""
        plan = self.plan(config)
        key = (plan.key, samples)
        known = self._ledger.recall(*key)
        if known is None:
            known = self._evaluator.evaluate(plan, samples if samples != WHOLE else None)
            self._ledger.remember(*key, known)
        if key not in self._counted:
            self._counted.add(key)
            self.evaluation_s += known.seconds
        return known

    def known(self, config: Config, samples: int) -> bool:
        return self._ledger.recall(self.plan(config).key, samples) is not None

    def finish(self, config: Config, costs: Costs, origin: str, name: str) -> None:
        """Writes the candidate into the ledger."""
        plan = self.plan(config)
        accuracy = self._ledger.recall(plan.key, WHOLE)
        assert accuracy is not None, "only evaluated plans are finished"
        self._ledger.finish(config, costs, {"plan_key": plan.key, "accuracy": asdict(accuracy), "origin": origin, "name": name})

    def codes(self, config: Config) -> Codes:
        return self.space.codes(config.precision, self.pricer.precisions)

    def price(self, config: Config) -> Price:
        return self.pricer.price(self.codes(config)[None], config.op_point)[0]

    def reference_price(self) -> Price:
        """Of the finest arithmetic that the target offers throughout."""
        best = finest([Precision(p) for p in self.pricer.precisions])
        code = self.pricer.precisions.index(str(best))
        return self.pricer.price(np.full((1, len(self.space.units)), code, np.int64), self.problem.op_points[0])[0]

    def constraints(self, price: Price, accuracy: Accuracy | None = None) -> dict[str, float]:
        """Excess over each budget and, with an accuracy, over the allowed drop; met when at most 0."""
        found = {str(b.kind): b.excess(price) for b in self.problem.budgets}
        if accuracy is not None and self.problem.max_drop is not None:
            found["drop"] = self.problem.max_drop.excess(accuracy)
        return found

    def costs(self, price: Price, accuracy: Accuracy) -> Costs:
        return Costs(accuracy.drop, price.latency_ms, price.energy_mj, self.constraints(price, accuracy))
