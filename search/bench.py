"""One place where a search evaluates and prices: remembered, counted, and turned into objectives and constraints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from time import perf_counter, sleep
from typing import Protocol, TypeVar

import numpy as np

from qbench.errors import QbenchError
from qbench.network import Precision
from qbench.plan import Granularity, Plan
from qbench.protocols import Accuracy, Evaluator, Price
from qbench.search.assignment import AssignmentCosts
from qbench.search.ledger import WHOLE, Ledger
from qbench.search.problem import Problem
from qbench.search.shared import Seen
from qbench.search.space import Codes, Config, Costs, finest

ROUND = 4
"""Plans that are decided on together and may run side by side. The same number with and without a pool, so that none changes a result."""
POLL_S = 0.2
"""Between two looks at what another process is working on."""
Key = tuple[str, int]
T = TypeVar("T")


class Pool(Protocol):
    """Evaluates many plans at once, in other processes or on other machines."""

    def evaluate(self, tasks: Sequence[tuple[Plan, int | None]]) -> Iterator[tuple[int, Accuracy | QbenchError, float]]:
        """(index of the task, accuracy or why there is none, passes that it cost), as they finish."""
        ...


class Bench:
    """Evaluations of one problem. Equal plans are evaluated once, also across a resume.

    passes   work so far in passes of the float model over the whole set: what the evaluator counts in its attribute
             `float_pass_equivalents`, or samples where it does not count; work remembered from before a kill included
    """

    def __init__(self, problem: Problem, evaluator: Evaluator, pricer: AssignmentCosts, ledger: Ledger, pool: Pool | None = None) -> None:
        space = problem.space
        assert tuple(pricer.units) == space.units, "the pricer prices the network's units in their order"
        self.problem, self.space, self.pricer = problem, space, pricer
        self._evaluator, self._ledger, self._pool = evaluator, ledger, pool
        self._plans: dict[Config, tuple[Plan, str]] = {}
        self._counted: set[tuple[str, int]] = set()
        self._samples = 0
        self._started = perf_counter()
        self.passes = 0.0

    @property
    def together(self) -> int:
        """How many evaluations that depend on no other's result are asked for in one go."""
        return 1 if self._pool is None else 16 * ROUND

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
        return Config.of((Precision.FP32,) * len(space.units), space.plain, space.op_points[0])

    def look(self, config: Config, samples: int) -> Accuracy:
        """Accuracy on the first `samples`, or on the whole set for WHOLE. Raises QbenchError when the plan cannot be evaluated."""
        [found] = self.look_all([(config, samples)])
        if isinstance(found, QbenchError):
            raise found
        return found

    def look_all(self, asked: Sequence[tuple[Config, int]]) -> list[Accuracy | QbenchError]:
        """The same for many, in their order; a pool runs them side by side. What another process is at is waited for."""
        keys = [(self.plan_key(c), n) for c, n in asked]
        failed: dict[Key, QbenchError] = {}
        todo = {k: self.plan(c) for k, (c, _) in zip(keys, asked, strict=True) if self._ledger.recall(*k) is None}
        while todo:
            before = len(todo)
            failed |= self._work(todo)
            todo = {k: p for k, p in todo.items() if k not in failed and self._ledger.recall(*k) is None}
            if len(todo) == before:
                sleep(POLL_S)
        return [failed[k] if k in failed else self._count(k) for k in keys]

    def _work(self, todo: Mapping[Key, Plan]) -> dict[Key, QbenchError]:
        """Evaluates what no other process is at; what could not be evaluated, with the reason."""
        failed: dict[Key, QbenchError] = {}
        if self._pool is None:
            for key, plan in todo.items():
                if self._ledger.claim(*key):
                    with self._claimed([key]):
                        try:
                            self._ledger.remember(*key, self._evaluate(plan, key[1]))
                        except QbenchError as error:
                            failed[key] = error
            return failed
        mine = [k for k in todo if self._ledger.claim(*k)]
        with self._claimed(mine):
            for index, found, passes in self._pool.evaluate([(todo[k], k[1] if k[1] != WHOLE else None) for k in mine]):
                if isinstance(found, QbenchError):
                    failed[mine[index]] = found
                else:
                    self._ledger.remember(*mine[index], Seen(found, passes))
        return failed

    @contextmanager
    def _claimed(self, keys: Sequence[Key]) -> Iterator[None]:
        """Gives back, in the end, what came to no result."""
        try:
            yield
        finally:
            for key in keys:
                if self._ledger.recall(*key) is None:
                    self._ledger.release(*key)

    def _evaluate(self, plan: Plan, samples: int) -> Seen:
        before = getattr(self._evaluator, "float_pass_equivalents", None)
        accuracy = self._evaluator.evaluate(plan, samples if samples != WHOLE else None)
        share = accuracy.samples / (self._samples or accuracy.samples)
        return Seen(accuracy, share if before is None else getattr(self._evaluator, "float_pass_equivalents", before) - before)

    def _count(self, key: Key) -> Accuracy:
        """The accuracy of a plan that was seen; what it cost counts once."""
        seen = self._ledger.recall(*key)
        assert seen is not None, "evaluated or waited for"
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

    def costs(self, price: Price, accuracy: Accuracy) -> Costs:
        return Costs(accuracy.drop, price.latency_ms, price.energy_mj, self.problem.constraints(price, accuracy))

    def _made(self, config: Config) -> tuple[Plan, str]:
        if config not in self._plans:
            precision = dict(zip(self.space.units, config.precision, strict=True))
            make = self.problem.corrected[config.corrections] if config.corrections else self.problem.make_plan
            plan = make(precision, config.calibrator, Granularity(config.granularity), config.op_point)
            self._plans[config] = (plan, plan.key)
        return self._plans[config]


def rounds(items: Sequence[T], size: int = ROUND) -> Iterator[Sequence[T]]:
    """`items` in pieces of `size`, in their order."""
    return (items[i:i + size] for i in range(0, len(items), size))
