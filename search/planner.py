"""Plans that keep the budgets exactly, from the programme of `qbench.search.assignment` and the pricer's last word.

Latency, energy and power are linear in the programme. Peak memory is a maximum over time, so it is kept by cuts: a plan that
does not fit yields a small set of units whose precisions alone already break the budget, and that set is forbidden.
Source: combinatorial Benders cuts: Codato and Fischetti 2006 (Operations Research 54:4).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from qbench.protocols import Price
from qbench.search.assignment import (
    Assignment,
    AssignmentCosts,
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
from qbench.search.budget import Budget, Kind
from qbench.search.loss import LossModel
from qbench.search.space import Codes, Space

ROUNDS = 40
"""Cuts or tightened caps that one question may cost before it is given up."""
FILLS = 64
"""Random completions that must all break the memory budget before a set of units is forbidden."""


class Planner:
    """Answers which plan is best at an operating point. Remembers the cuts it found; everything else is given."""

    def __init__(self, space: Space, costs: AssignmentCosts, budgets: Sequence[Budget], base: Codes) -> None:
        self.space, self.costs, self.budgets = space, costs, tuple(budgets)
        names = list(costs.precisions)
        self.allowed = [[names.index(str(p)) for p in options] for options in space.allowed]
        self._tables: dict[str, LinearCosts] = {}
        self.base = base
        self._cuts: list[dict[int, int]] = []
        self._lean: dict[str, Codes] = {}                        # operating point -> [1, units]

    @cached_property
    def sure(self) -> Planner:
        """One whose plans keep the budgets with the unfavourable ends of their intervals, too; itself where no budget has an interval."""
        strict = tuple(replace(b, worst=b.worst or b.kind not in (Kind.POWER, Kind.MEMORY)) for b in self.budgets)
        return self if strict == self.budgets else Planner(self.space, self.costs, strict, self.base)

    def table(self, op_point: str) -> LinearCosts:
        if op_point not in self._tables:
            self._tables[op_point] = linear_costs(self.costs, op_point, self.base)
        return self._tables[op_point]

    def price(self, codes: Codes, op_point: str) -> Price:
        return self.costs.price(codes[None], op_point)[0]

    def best(self, op_point: str, model: LossModel, seen: Iterable[Codes] = ()) -> Codes | None:
        """Least predicted loss within the budgets, not one of `seen`; None when there is none."""
        problem = self._problem(op_point, model, seen)
        return self._solve(problem, weights_for_loss(problem), caps(self.budgets))

    def front(self, op_point: str, model: LossModel, points: int, seen: Iterable[Codes] = ()) -> list[Codes]:
        """Predicted front within the budgets, none of `seen`, the one that loses least first."""
        return front(self._problem(op_point, model, seen), caps(self.budgets), points, self._solve)

    def knees(self, op_point: str, model: LossModel) -> list[Codes]:
        """Plans within the budgets where the predicted front bends, least loss first."""
        return knees(self._problem(op_point, model, ()), caps(self.budgets), self._solve)

    def any(self, op_point: str) -> Codes | None:
        """The fastest plan within the budgets, or None: then they cannot be met together at this point."""
        return self._solve(self._problem(op_point, None, ()), Weights(seconds=1.0), caps(self.budgets))

    def least(self, budget: Budget, op_point: str) -> Codes:
        """The plan with the least of what `budget` limits, other budgets left aside."""
        problem = self._problem(op_point, None, ())
        if budget.kind is Kind.MEMORY:
            return self._smallest(problem)
        if budget.kind is Kind.POWER:
            return self._least_power(problem)
        return self.unlimited(op_point, Weights(joules=1.0) if budget.kind is Kind.ENERGY else Weights(seconds=1.0))

    def unlimited(self, op_point: str, weights: Weights) -> Codes:
        """The plan with the least of `weights`, all budgets left aside."""
        found = solve(self._problem(op_point, None, ()), weights, Caps())
        assert found is not None, "without limits there is always a plan"
        return found

    def least_within(self, budget: Budget, op_point: str) -> Codes | None:
        """The plan with the least of what `budget` limits among those that meet the planner's budgets; None if none was found.

        Energy and time are exact. For power and memory it is the unlimited least, where that happens to meet the budgets.
        """
        if budget.kind in (Kind.POWER, Kind.MEMORY):
            found = self.least(budget, op_point)
            price = self.price(found, op_point)
            return found if all(b.met_by(price) for b in self.budgets) else None
        weights = Weights(joules=1.0) if budget.kind is Kind.ENERGY else Weights(seconds=1.0)
        return self._solve(self._problem(op_point, None, ()), weights, caps(self.budgets))

    def _problem(self, op_point: str, model: LossModel | None, seen: Iterable[Codes]) -> Assignment:
        free = self.space.free
        exclude = [{u: int(codes[u]) for u in free} for codes in seen]
        return Assignment(self.allowed, self.table(op_point), model, exclude)

    def _solve(self, problem: Assignment, weights: Weights, limits: Caps) -> Codes | None:
        for _ in range(ROUNDS):
            found = solve(replace(problem, exclude=[*problem.exclude, *self._cuts]), weights, limits)
            if found is None:
                return None
            price = self.price(found, problem.costs.op_point)
            broken = [b for b in self.budgets if not b.met_by(price)]
            if not broken:
                return found
            for b in broken:
                if b.kind is Kind.MEMORY:
                    self._cuts.append(self._cover(found, b, problem.costs.op_point))
                else:
                    limits = _worst_case(limits, b, price) if b.worst else _tightened(limits, b, price)
        return None

    def _leanest(self, op_point: str) -> Codes:
        """The plan with the least memory that was found at `op_point`: what completes a partial plan most kindly."""
        if op_point not in self._lean:
            self._lean[op_point] = self._smallest(self._problem(op_point, None, ()))[None]
        return self._lean[op_point]

    def _cover(self, codes: Codes, budget: Budget, op_point: str) -> dict[int, int]:
        """A small set of units whose codes break the memory `budget` whatever the others are (as far as FILLS tells)."""
        self._leanest(op_point)
        fills = self._fills(codes)
        held = list(self.space.free)
        for u in self.space.free:
            kept = [v for v in held if v != u]
            tried = fills.copy()
            tried[:, kept] = codes[kept]
            if all(not budget.met_by(p) for p in self.costs.price(tried, op_point)):
                held = kept
        if not held:                                # nothing tried fits: forbid no more than this very plan
            held = list(self.space.free)
        return {u: int(codes[u]) for u in held}

    def _fills(self, codes: Codes) -> Codes:
        """[n, units]: each unit at its first, at its last, or at a random allowed code."""
        rng = np.random.default_rng(0)
        random = np.array([rng.choice(options, FILLS) for options in self.allowed], np.int64).T
        uniform = {p for options in self.allowed for p in options}
        same = [[p if p in options else options[0] for options in self.allowed] for p in sorted(uniform)]
        return np.vstack([random, np.array(same, np.int64), codes[None], *self._lean.values()])

    def _smallest(self, problem: Assignment) -> Codes:
        """Least peak memory that a descent by single units reaches from the best of the FILLS."""
        op_point = problem.costs.op_point
        tried = self._fills(np.array([options[0] for options in self.allowed], np.int64))
        best: Codes = tried[int(np.argmin([p.peak_memory_bytes for p in self.costs.price(tried, op_point)]))]
        while True:
            moves = np.array([_moved(best, u, p) for u in self.space.free for p in self.allowed[u] if p != best[u]], np.int64)
            if not len(moves):
                return best
            sizes = [p.peak_memory_bytes for p in self.costs.price(moves, op_point)]
            if min(sizes) >= self.price(best, op_point).peak_memory_bytes:
                return best
            best = moves[int(np.argmin(sizes))]

    def _least_power(self, problem: Assignment) -> Codes:
        """Least energy per time, a ratio of linear forms (Dinkelbach 1967, Management Science 13:7)."""
        found = self.unlimited(problem.costs.op_point, Weights(joules=1.0))
        for _ in range(ROUNDS):
            s, j, _ = problem.costs.totals(found)
            better = solve(problem, Weights(joules=1.0, seconds=-float(j[0] / s[0])), Caps())
            assert better is not None, "without limits there is always a plan"
            s2, j2, _ = problem.costs.totals(better)
            if j2[0] / s2[0] >= j[0] / s[0] * (1.0 - 1e-9):
                return found
            found = better
        return found


def _moved(codes: Codes, unit: int, code: int) -> Codes:
    moved = codes.copy()
    moved[unit] = code
    return moved


def _worst_case(limits: Caps, budget: Budget, price: Price) -> Caps:
    """Caps on the means where the ends of the intervals count, at the spread that a plan beyond them has."""
    late = price.latency_ms_high / price.latency_ms * (1.0 + 2e-6)
    if budget.kind is Kind.ENERGY:
        return replace(limits, joules=min(limits.joules, budget.limit / 1e3 / late))
    assert budget.latency_cap_ms is not None, "only latency, rate and energy have a worst case"
    return replace(limits, seconds=min(limits.seconds, budget.latency_cap_ms / 1e3 / late))


def _tightened(limits: Caps, budget: Budget, price: Price) -> Caps:
    """Caps that leave out a plan which the solver's tolerance let through."""
    slack = 1.0 - max(2e-6, 2.0 * budget.excess(price) if budget.excess(price) < 1e-3 else 0.0)
    if budget.kind is Kind.ENERGY:
        return replace(limits, joules=limits.joules * slack)
    if budget.kind is Kind.POWER:
        return replace(limits, watts=limits.watts * slack)
    return replace(limits, seconds=limits.seconds * slack)
