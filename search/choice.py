"""Which candidate is chosen, which are on the front, and what binds when none is good enough."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from qbench.network import Precision
from qbench.protocols import Accuracy, ClassAccuracy, Price
from qbench.result import Binding, Candidate
from qbench.search.assignment import AssignmentCosts
from qbench.search.budget import Budget, Kind, MaxDrop, worst_class
from qbench.search.pareto import front
from qbench.search.planner import Planner
from qbench.search.problem import Goal, Problem
from qbench.search.sensitivity import standard_error
from qbench.search.space import Codes

SMALLEST_TIE = 5e-5
"""Drops closer than this are the same: half of what two decimals of a percentage show."""
EQUAL = 1e-6
"""Accuracies closer than this are equal: a uniform plan is not better by the seventh digit."""
SURETY = 5e-4
"""What meeting the budgets with the whole interval is worth, in the metric's unit: 0.05 points."""
LARGEST_TIE = 0.002
"""Most of the metric's unit that one standard error may give away: small evaluation sets have large errors."""


def choose(candidates: Sequence[Candidate], problem: Problem) -> Candidate | None:
    """The most frugal plan among those that are as accurate as the best one.

    As accurate: it loses no more than the best plan plus one standard error of that plan's paired drop, where beating float counts
    as no loss (on other samples it would not), and it is not worse than any uniform plan among the candidates. Where plans that
    meet the budgets with the upper end of their interval come within SURETY of the best one, only they are looked at. Among those
    that are left, such plans come first, then less energy, then less latency.
    Under the goal of least energy accuracy is a floor too: then such plans come first, then the most frugal one.
    With an allowed drop and no budget, accuracy is a floor and not the goal: then the fastest, the most frugal, the most accurate.
    Source: one-standard-error rule, Breiman, Friedman, Olshen, Stone 1984, Classification and Regression Trees, section 3.4.3.
    """
    known = [c for c in candidates if math.isfinite(c.accuracy.value) and math.isfinite(c.accuracy.drop)]
    if problem.goal is Goal.ENERGY:
        return min(known, key=lambda c: (not c.sure, c.price.energy_mj, c.price.latency_ms, -c.accuracy.value), default=None)
    if (problem.max_drop is not None or problem.max_class_drop is not None) and not problem.budgets:
        return min(known, key=lambda c: (c.price.latency_ms, c.price.energy_mj, -c.accuracy.value), default=None)
    best = max(known, key=lambda c: c.accuracy.value, default=None)
    if best is None:
        return None
    least = max((c.accuracy.value for c in known if c.origin == "uniform"), default=-math.inf)
    sure = [c for c in known if c.sure]
    surest = max(sure, key=lambda c: c.accuracy.value, default=None)
    if surest is not None and surest.accuracy.drop <= max(best.accuracy.drop, 0.0) + SURETY and surest.accuracy.value >= least - EQUAL:
        known, best = sure, surest
    most = max(best.accuracy.drop, 0.0) + min(max(standard_error(best.accuracy), SMALLEST_TIE), LARGEST_TIE)
    tied = [c for c in known if c is best or (c.accuracy.drop <= most and c.accuracy.value >= least - EQUAL)]
    return min(tied, key=lambda c: (not c.sure, c.price.energy_mj, c.price.latency_ms, -c.accuracy.value))


def nearest(candidates: Sequence[Candidate], problem: Problem) -> Candidate | None:
    """When none is feasible: the one that misses the budgets least; among those that meet them the most accurate."""
    known = [c for c in candidates if math.isfinite(c.accuracy.value)]
    return min(known, key=lambda c: (_missed(c.price, problem.budgets), -c.accuracy.value, c.price.energy_mj), default=None)


def pareto(candidates: Sequence[Candidate], problem: Problem) -> tuple[Candidate, ...]:
    """Non-dominated in accuracy, latency and energy, and in memory where that has a budget; the fastest first."""
    known = [c for c in candidates if math.isfinite(c.accuracy.value)]
    memory = any(b.kind is Kind.MEMORY for b in problem.budgets)
    points = [(c.price.latency_ms, -c.accuracy.value, c.price.energy_mj, *([float(c.price.peak_memory_bytes)] if memory else []))
              for c in known]
    return tuple(known[i] for i in front(points)) if points else ()


def _missed(price: Price, budgets: Sequence[Budget]) -> float:
    return sum(max(b.excess(price), 0.0) for b in budgets)


def show(budget: Budget, value: float) -> str:
    """`value` in the words of the budget, four figures, rounded to the side that is safe to ask for."""
    if value == 0.0 or not math.isfinite(value):
        return str(value)
    step = 10.0 ** (math.floor(math.log10(abs(value))) - 3)
    rounded = math.floor(value / step) if budget.kind is Kind.RATE else math.ceil(value / step - 1e-9)
    return budget.show(float(f"{rounded * step:.4g}"))


def spaced(quantity: str) -> str:
    """"92.8 KB" of "92.8KB": a budget's word as a figure in a sentence."""
    return re.sub(r"(?<=\d)(?=[^\d.])", " ", quantity, count=1)


def describe(codes: Codes, problem: Problem, names: Sequence[str]) -> str:
    """"every unit at int8", or how many units have which precision."""
    parts = [str(Precision(names[c])) for c in codes]
    free = {parts[u] for u in problem.space.free}
    if len(free) == 1:
        return f"every unit that has a choice at {free.pop()}"
    return ", ".join(f"{parts.count(p)} units {p}" for p in sorted(set(parts)))


def refusal(problem: Problem, planner: Planner) -> tuple[Binding, Codes, str]:
    """Why no plan meets the budgets, and the plan that misses them least, with its operating point."""
    tried = [(planner.least(b, o), o) for b in problem.budgets for o in problem.op_points]
    prices = [planner.price(codes, o) for codes, o in tried]
    broken: list[tuple[Budget, int]] = []
    for b in problem.budgets:
        best = min(range(len(tried)), key=lambda i: b.excess(prices[i]))
        if not b.met_by(prices[best]):
            broken.append((b, best))
    close = min(range(len(tried)), key=lambda i: _missed(prices[i], problem.budgets))
    names = planner.costs.precisions

    def said(b: Budget, i: int) -> str:
        words = {Kind.LATENCY: "fastest possible", Kind.RATE: "fastest possible", Kind.MEMORY: "smallest found"}.get(b.kind, f"least {b.kind} possible")
        return f"{words} is {spaced(show(b, b.value(prices[i])))} at {tried[i][1]} ({describe(tried[i][0], problem, names)})"

    if broken:
        text = ", ".join(b.text for b, _ in broken)
        possible = "; ".join(said(b, i) for b, i in broken)
    else:
        text = " and ".join(b.text for b in problem.budgets) + " together"
        possible = "the nearest plan has " + ", ".join(spaced(show(b, b.value(prices[close]))) for b in problem.budgets)
    return Binding(text, possible, relaxations(problem, planner.costs, planner)), *tried[close]


def relaxations(problem: Problem, costs: AssignmentCosts, planner: Planner) -> tuple[str, ...]:
    """For each budget alone: the limit at which a plan exists while the others stay as they are."""
    found: list[str] = []
    for b in problem.budgets:
        others = Planner(problem.space, costs, [o for o in problem.budgets if o is not b], planner.base)
        plans = [(codes, o) for o in problem.op_points if (codes := others.least_within(b, o)) is not None]
        values = [b.value(others.price(codes, o)) for codes, o in plans]
        if values:
            best = max(values) if b.kind is Kind.RATE else min(values)
            rest = " and the other budgets kept" if len(problem.budgets) > 1 else ""
            if not _within(best, b):
                found.append(f"{show(b, best)} instead of {b.text}{rest}: a plan exists")
    return tuple(found)


def _within(value: float, b: Budget) -> bool:
    return value >= b.limit if b.kind is Kind.RATE else value <= b.limit


def unmet_floor(problem: Problem, candidates: Sequence[Candidate]) -> Binding:
    """When plans meet the budgets but none keeps the accuracy floors, among the `candidates` evaluated."""
    floors = {name: f for name, f in (("max-drop", problem.max_drop), ("max-class-drop", problem.max_class_drop)) if f is not None}
    inside = [c for c in candidates if _missed(c.price, problem.budgets) == 0.0]
    broken = {name: f for name, f in floors.items() if not any(_kept(name, f, c) for c in inside)} or floors
    possible: list[str] = []
    found: list[str] = []
    for name, floor in broken.items():
        best = min(inside, key=lambda c: _excess(name, floor, c), default=None)
        if best is None:
            possible.append("no plan within the budgets was evaluated")
        elif (loses := _loss(name, floor, best)) is not None:
            of = "" if name == "max-drop" else f" of {loses.name}" if isinstance(loses, ClassAccuracy) else ""
            drop = loses.drop_high if floor.worst else loses.drop
            least = "may lose up to" if floor.worst else "loses"
            possible.append(f"the best plan within the budgets {least} {drop:.4g}{of} ({best.name})")
            if not _kept(name, floor, best):
                found.append(f"{name} {drop:.4g} instead of {floor.text}: {best.name!r} meets it")
    keeping = [c for c in candidates if all(_kept(name, f, c) for name, f in floors.items())]
    if keeping:
        c = min(keeping, key=lambda c: _missed(c.price, problem.budgets))
        needs = ", ".join(show(b, b.value(c.price)) for b in problem.budgets if not b.met_by(c.price))
        found.append(f"{needs}: {c.name!r} loses {c.accuracy.drop:.4g}")
    return Binding(", ".join(f"{name} {f.text}" for name, f in broken.items()), "; ".join(dict.fromkeys(possible)), tuple(found))


def _loss(name: str, floor: MaxDrop, c: Candidate) -> Accuracy | ClassAccuracy | None:
    """What `floor` is about: the accuracy as a whole, or that of the worst class."""
    return c.accuracy if name == "max-drop" else worst_class(floor, c.accuracy)


def _excess(name: str, floor: MaxDrop, c: Candidate) -> float:
    loss = _loss(name, floor, c)
    return -math.inf if loss is None else floor.excess(loss)


def _kept(name: str, floor: MaxDrop, c: Candidate) -> bool:
    return _excess(name, floor, c) <= 0.0
