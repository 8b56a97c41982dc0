"""Exact assignment of precisions under a loss model: a mixed-integer linear programme per operating point.

    minimise    loss (or time, or energy)
    subject to  latency, energy, power and memory below their caps, conversions between neighbours counted

One binary per unit and precision. What depends on two units (conversions, coupled losses) gets one variable per pair of
precisions, tied to the binaries by sums in both directions, so that the products are exact and the relaxation tight.
Source: linearised products: Adams and Sherali 1986 (Management Science 32:10); solver: HiGHS, Huangfu and Hall 2018
(Math. Prog. Comp. 10), through scipy.optimize.milp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from qbench.protocols import Pricer
from qbench.search.budget import Budget, Kind
from qbench.search.loss import LossModel, Pair
from qbench.search.space import Codes

Floats = NDArray[np.float64]

NODES = 20_000
"""Branch-and-bound nodes per programme: a bound that, unlike a time limit, gives the same answer on every machine."""


class UnitTable(Protocol):
    """[units, precisions]: what each unit costs, conversions left out. Bytes are those of its weights."""

    @property
    def seconds(self) -> Floats: ...
    @property
    def joules(self) -> Floats: ...
    @property
    def weight_bytes(self) -> Floats: ...


class PairTable(Protocol):
    """[precision of a, precision of b]: what units `a` and `b` (indices) cost together beyond their own."""

    @property
    def a(self) -> int: ...
    @property
    def b(self) -> int: ...
    @property
    def seconds(self) -> Floats: ...
    @property
    def joules(self) -> Floats: ...


class AssignmentCosts(Pricer, Protocol):
    """A pricer whose latency and energy are sums over units and pairs of units, up to a constant.

    Peak memory is not a sum; its budget is kept by cuts (`qbench.search.planner`).
    """

    def unit_costs(self, op_point: str) -> UnitTable: ...
    def pair_costs(self, op_point: str) -> Sequence[PairTable]: ...


@dataclass(frozen=True)
class LinearCosts:
    """Costs at one operating point as the programme sees them.

    seconds, joules, size   [units, precisions]; size in bytes, of the weights
    pairs                   (a, b), a < b -> (seconds, joules), [precisions, precisions]
    fixed_s, fixed_j        per inference, whatever the plan
    """

    op_point: str
    seconds: Floats
    joules: Floats
    size: Floats
    pairs: Mapping[Pair, tuple[Floats, Floats]] = field(default_factory=dict)
    fixed_s: float = 0.0
    fixed_j: float = 0.0

    def totals(self, codes: Codes) -> tuple[Floats, Floats, Floats]:
        """Seconds, joules, bytes, each [n], for `codes` [n, units]."""
        codes = np.atleast_2d(codes)
        rows = np.arange(codes.shape[1])
        s = self.seconds[rows, codes].sum(axis=1) + self.fixed_s
        j = self.joules[rows, codes].sum(axis=1) + self.fixed_j
        for (a, b), (ps, pj) in self.pairs.items():
            s = s + ps[codes[:, a], codes[:, b]]
            j = j + pj[codes[:, a], codes[:, b]]
        return s, j, self.size[rows, codes].sum(axis=1)


def linear_costs(costs: AssignmentCosts, op_point: str, base: Codes) -> LinearCosts:
    """The pricer's tables, with the constant that makes the sums agree with its price of the plan `base` [units]."""
    units = costs.unit_costs(op_point)
    pairs: dict[Pair, tuple[Floats, Floats]] = {}
    for pair in costs.pair_costs(op_point):
        a, b, s, j = pair.a, pair.b, pair.seconds, pair.joules
        if a > b:
            a, b, s, j = b, a, s.T, j.T
        have = pairs.get((a, b), (np.zeros_like(s), np.zeros_like(j)))
        pairs[a, b] = (have[0] + s, have[1] + j)
    table = LinearCosts(op_point, units.seconds, units.joules, units.weight_bytes, pairs)
    price = costs.price(base[None], op_point)[0]
    s0, j0, _ = table.totals(base)
    return replace(table, fixed_s=price.latency_ms / 1e3 - float(s0[0]), fixed_j=price.energy_mj / 1e3 - float(j0[0]))


@dataclass(frozen=True, slots=True)
class Caps:
    """Upper limits; infinity where there is none."""

    seconds: float = np.inf
    joules: float = np.inf
    watts: float = np.inf
    size: float = np.inf


def caps(budgets: Iterable[Budget]) -> Caps:
    """The budgets as caps of the programme."""
    found = Caps()
    for b in budgets:
        if b.latency_cap_ms is not None:
            found = replace(found, seconds=min(found.seconds, b.latency_cap_ms / 1e3))
        elif b.kind is Kind.ENERGY:
            found = replace(found, joules=b.limit / 1e3)
        elif b.kind is Kind.POWER:
            found = replace(found, watts=b.limit)
        else:
            found = replace(found, size=b.limit)
    return found


@dataclass(frozen=True, slots=True)
class Weights:
    """What is minimised: a weighted sum of predicted loss, seconds, joules and bytes."""

    loss: float = 0.0
    seconds: float = 0.0
    joules: float = 0.0
    size: float = 0.0


@dataclass(frozen=True)
class Assignment:
    """allowed   codes that each unit may take
    exclude     plans [units] that must not come out again (already evaluated)
    """

    allowed: Sequence[Sequence[int]]
    costs: LinearCosts
    loss: LossModel | None = None
    exclude: Sequence[Mapping[int, int]] = ()


def solve(problem: Assignment, weights: Weights, limits: Caps) -> Codes | None:
    """The best assignment, int64 [units], or None when none keeps within `limits`."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    rows = _Programme(problem)
    objective = rows.objective(weights)
    scale = float(np.abs(objective).max())
    matrix, low, high = rows.constraints(limits)
    if matrix is None:
        return None
    result = milp(
        objective / scale if scale > 0.0 else objective,
        integrality=(np.arange(rows.size) < rows.binaries).astype(int), bounds=Bounds(0.0, 1.0),
        constraints=LinearConstraint(csr_array(matrix), low, high),
        options={"mip_rel_gap": 1e-9, "node_limit": NODES, "presolve": True})
    return None if result.x is None else rows.codes(result.x)


class _Programme:
    """Numbering of the variables: x[u, p] for every unit and allowed code, then z[a, p, b, q] for every pair that matters."""

    def __init__(self, problem: Assignment) -> None:
        self.problem = problem
        self.x = {(u, p): i for i, (u, p) in enumerate((u, p) for u, options in enumerate(problem.allowed) for p in options)}
        self.binaries = len(self.x)
        losses = problem.loss.pairs if problem.loss else {}
        self.z: dict[tuple[int, int, int, int], int] = {}
        for a, b in dict.fromkeys([*problem.costs.pairs, *losses]):
            terms = [*problem.costs.pairs.get((a, b), ()), *([losses[a, b]] if (a, b) in losses else [])]
            if any(np.any(t[np.ix_(problem.allowed[a], problem.allowed[b])]) for t in terms):
                for p in problem.allowed[a]:
                    for q in problem.allowed[b]:
                        self.z[a, p, b, q] = self.binaries + len(self.z)
        self.size = self.binaries + len(self.z)

    def _row(self, unit: Floats | None, pair: Mapping[Pair, Floats]) -> Floats:
        row = np.zeros(self.size)
        if unit is not None:
            for (u, p), i in self.x.items():
                row[i] = unit[u, p]
        for (a, p, b, q), i in self.z.items():
            if (a, b) in pair:
                row[i] = pair[a, b][p, q]
        return row

    def _costs(self) -> tuple[Floats, Floats, Floats]:
        c = self.problem.costs
        return (self._row(c.seconds, {k: v[0] for k, v in c.pairs.items()}),
                self._row(c.joules, {k: v[1] for k, v in c.pairs.items()}), self._row(c.size, {}))

    def objective(self, w: Weights) -> Floats:
        seconds, joules, size = self._costs()
        loss = self.problem.loss
        lost = self._row(loss.unit, loss.pairs) if loss else np.zeros(self.size)
        total: Floats = w.loss * lost + w.seconds * seconds + w.joules * joules + w.size * size
        return total

    def constraints(self, limits: Caps) -> tuple[Floats | None, Floats, Floats]:
        """Matrix [constraints, variables] with lower and upper bounds; None when a constant alone breaks a cap."""
        matrix: list[Floats] = []
        low: list[float] = []
        high: list[float] = []

        def add(row: Floats, least: float, most: float) -> None:
            size = float(np.abs(row).max())
            size = size if size > 0.0 else 1.0
            matrix.append(row / size)
            low.append(least / size)
            high.append(most / size)

        for u, options in enumerate(self.problem.allowed):
            add(self._ones(self.x[u, p] for p in options), 1.0, 1.0)
        for a, b in dict.fromkeys((a, b) for a, _, b, _ in self.z):
            for p in self.problem.allowed[a]:
                row = self._ones(self.z[a, p, b, q] for q in self.problem.allowed[b])
                row[self.x[a, p]] = -1.0
                add(row, 0.0, 0.0)
            for q in self.problem.allowed[b]:
                row = self._ones(self.z[a, p, b, q] for p in self.problem.allowed[a])
                row[self.x[b, q]] = -1.0
                add(row, 0.0, 0.0)
        c = self.problem.costs
        seconds, joules, size = self._costs()
        rows = [(seconds, limits.seconds - c.fixed_s), (joules, limits.joules - c.fixed_j), (size, limits.size)]
        if np.isfinite(limits.watts):
            rows.append((joules - limits.watts * seconds, limits.watts * c.fixed_s - c.fixed_j))
        for row, most in rows:
            if np.isfinite(most):
                if not row.any() and most < 0.0:
                    return None, np.array(low), np.array(high)
                add(row, -np.inf, most)
        for held in self.problem.exclude:
            inside = [self.x[u, p] for u, p in held.items() if (u, p) in self.x]
            if len(inside) == len(held):
                add(self._ones(inside), -np.inf, len(held) - 1.0)
        return np.array(matrix), np.array(low), np.array(high)

    def _ones(self, columns: Iterable[int]) -> Floats:
        row = np.zeros(self.size)
        row[list(columns)] = 1.0
        return row

    def codes(self, x: Floats) -> Codes:
        chosen = np.zeros(len(self.problem.allowed), np.int64)
        for u, options in enumerate(self.problem.allowed):
            chosen[u] = max(options, key=lambda p: x[self.x[u, p]])
        return chosen


Solver = Callable[[Assignment, Weights, Caps], Codes | None]


def front(problem: Assignment, limits: Caps, points: int, solver: Solver = solve) -> list[Codes]:
    """Predicted front of loss over latency within `limits`: at most `points` distinct plans, the one that loses least first.

    The cap on latency sweeps from the fastest plan to the one that loses least; among plans of equal loss the faster wins.
    """
    best = solver(problem, weights_for_loss(problem), limits)
    if best is None:
        return []
    fastest = solver(problem, Weights(seconds=1.0), limits)
    found = [best] if fastest is None else [best, fastest]
    low, high = (float(problem.costs.totals(c)[0][0]) for c in (found[-1], best))
    for cap in np.linspace(high, low, max(points, 2))[1:-1]:
        at = solver(problem, weights_for_loss(problem), replace(limits, seconds=min(limits.seconds, cap * (1.0 + 1e-9))))
        if at is not None:
            found.append(at)
    unique = {tuple(int(c) for c in codes): codes for codes in found}
    return list(unique.values())[:points]


def weights_for_loss(problem: Assignment) -> Weights:
    """Least loss; among plans whose loss differs by less than a millionth of the worst, the fast and frugal one."""
    if problem.loss is None:
        return Weights(seconds=1.0)
    worst = float(np.abs(problem.loss.unit).max(axis=1).sum()) + sum(float(np.abs(t).max()) for t in problem.loss.pairs.values())
    seconds, joules = float(problem.costs.seconds.max(axis=1).sum()), float(problem.costs.joules.max(axis=1).sum())
    tiny = 1e-6 * (worst if worst > 0.0 else 1.0)
    return Weights(loss=1.0, seconds=tiny / seconds if seconds > 0.0 else 0.0, joules=tiny / joules if joules > 0.0 else 0.0)


KNEES = (0.003, 0.01, 0.03, 0.1, 0.3)
"""Worth of the whole span of latency, as shares of the worst predicted loss, at which the front is asked for its knees."""


def knees(problem: Assignment, limits: Caps, solver: Solver = solve) -> list[Codes]:
    """Plans where the predicted front bends: each minimises loss plus a price per second. None twice, least loss first.

    A sweep of caps finds any plan on the front, these are the ones where little time buys much accuracy.
    """
    if problem.loss is None:
        return []
    worst = float(problem.loss.unit.max(axis=1).sum())
    seconds, joules = problem.costs.seconds, problem.costs.joules
    span_s, span_j = (float((x.max(axis=1) - x.min(axis=1)).sum()) for x in (seconds, joules))
    if worst <= 0.0 or span_s <= 0.0:
        return []
    found: dict[tuple[int, ...], Codes] = {}
    for share in KNEES:
        tiny = 1e-3 * share * worst / span_j if span_j > 0.0 else 0.0
        at = solver(problem, Weights(loss=1.0, seconds=share * worst / span_s, joules=tiny), limits)
        if at is not None:
            found.setdefault(tuple(int(c) for c in at), at)
    return list(found.values())
