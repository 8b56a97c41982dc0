"""When the uniform plans have answered the question already: then no plan that a search could still find would be chosen."""

from __future__ import annotations

import math

from qbench.protocols import Price
from qbench.search.assignment import Weights
from qbench.search.problem import Goal
from qbench.search.state import State

CLOSE = 1e-6
"""Relative; beyond the programme's own tolerance."""


def settled(state: State) -> str:
    """Why the plan that would be chosen now stays the choice, whatever else were evaluated; "" where that cannot be said.

    Nothing costs less than it in what decides (`qbench.search.choice.choose`): neither time nor energy, the budgets left aside. And its accuracy
    either is a floor that it keeps, or cannot be told from the best there may be: it loses nothing, and no uniform plan is better. A search
    without limits is asked for a front and goes on, and so does one whose candidates boards will measure.
    """
    problem, book = state.book.problem, state.book
    best = book.best()
    if best is None or not problem.limits or problem.measured:
        return ""
    found = best.candidate
    floor = not problem.budgets or problem.goal is Goal.ENERGY
    lossless = found.accuracy.drop <= 0.0 and all(found.accuracy.value >= e.candidate.accuracy.value for e in book.evaluated.values())
    surest = found.sure or (floor and problem.goal is not Goal.ENERGY)          # with a floor alone, a plan that is surer is not preferred
    if not ((floor or lossless) and surest and _cheapest(state, found.price)):
        return ""
    return f"no plan is faster or takes less energy than {found.name!r}, which keeps {', '.join(problem.limits)}{'' if floor else ' and loses nothing'}"


def _cheapest(state: State, price: Price) -> bool:
    least = [state.planner.price(state.planner.unlimited(o, w), o) for o in state.book.problem.op_points for w in (Weights(seconds=1.0), Weights(joules=1.0))]
    return (math.isfinite(price.energy_mj) and price.latency_ms <= min(p.latency_ms for p in least) * (1.0 + CLOSE)
            and price.energy_mj <= min(p.energy_mj for p in least) * (1.0 + CLOSE))
