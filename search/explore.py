"""The stage that asks for the plans with the largest expected improvement of the front."""

from __future__ import annotations

import math

import numpy as np

from qbench.search.acquisition import batch
from qbench.search.bench import ROUND
from qbench.search.loss import Floats
from qbench.search.moves import around
from qbench.search.pareto import front
from qbench.search.probing import probe_surprises
from qbench.search.space import Config
from qbench.search.state import State

DRAWS = 32
"""Loss models over which an expectation is taken."""
KNEED = 4
"""Of them, those whose knees are proposed: each costs a dozen programmes."""


def explore(state: State, until: int) -> None:
    """Rounds of plans with the largest expected improvement of the front, until the book holds `until` or none is expected to improve it."""
    book = state.book
    state.dropped = 0
    while book.count < until and state.patient:
        found = _expected(state, min(ROUND, until - book.count))
        if not found:
            return
        state.consider(found, "explore")
        probe_surprises(state)


def _expected(state: State, size: int) -> list[Config]:
    """Knees of drawn models and the neighbours of the front's plans, the ones that are expected to add most."""
    book, planner, o = state.book, state.planner, state.op_points[0]
    known = [e for e in book.evaluated.values() if e.costs.feasible and math.isfinite(e.costs.loss)]
    if not known:
        return []
    points = np.array([(max(e.costs.loss, 0.0), state.cost(e.candidate.price)) for e in known])
    models = state.drawn(DRAWS)
    best = [known[i] for i in front(points) if known[i].config.variant == state.main]
    rows = [codes for model in models[:KNEED] for codes in planner.knees(o, model)]
    for e in best:
        rows += list(around(planner, book.bench.codes(e.config), state.pairs))
    fresh = {c: None for row in rows if not book.known(c := book.bench.space.canonical(state.config(row, o)))}
    if not fresh:
        return []
    codes = np.array([book.bench.codes(c) for c in fresh], np.int64)
    prices = planner.costs.price(codes, o)
    inside = [i for i, p in enumerate(prices) if all(b.met_by(p) for b in planner.budgets)]
    if not inside:
        return []
    losses = np.array([m.predict(codes[inside]) for m in models])
    costs = np.array([state.cost(prices[i]) for i in inside])
    configs = list(fresh)
    return [configs[inside[i]] for i in batch(points, losses, costs, _worst(points), size)]


def _worst(points: Floats) -> Floats:
    """A little beyond the worst loss and cost on the front, so that its ends count."""
    ends = points[front(points)]
    return np.asarray(ends.max(axis=0) + 0.05 * (np.ptp(ends, axis=0) + 1e-9), np.float64)
