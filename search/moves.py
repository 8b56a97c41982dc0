"""Small steps from one plan to the next: what polish tries around the best plan, and how a plan is brought within its budgets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qbench.search.loss import LossModel, Pair
from qbench.search.planner import Planner
from qbench.search.space import Codes


def around(planner: Planner, codes: Codes, pairs: Sequence[Pair]) -> Codes:
    """int64 [n, units]: every plan that differs in one unit, or in both units of one of `pairs`; none twice."""
    rows: list[Codes] = []
    for u in planner.space.free:
        rows += [_changed(codes, {u: p}) for p in planner.allowed[u] if p != codes[u]]
    for a, b in pairs:
        rows += [_changed(codes, {a: p, b: q}) for p in planner.allowed[a] if p != codes[a] for q in planner.allowed[b] if q != codes[b]]
    return np.array(rows, np.int64).reshape(len(rows), len(codes))


def ranked(planner: Planner, model: LossModel, rows: Codes, op_point: str) -> list[Codes]:
    """Those of `rows` [n, units] that meet the budgets, least predicted loss first, then the fastest."""
    if not len(rows):
        return []
    prices = planner.costs.price(rows, op_point)
    losses = model.predict(rows)
    inside = [i for i, price in enumerate(prices) if all(b.met_by(price) for b in planner.budgets)]
    return [rows[i] for i in sorted(inside, key=lambda i: (float(losses[i]), prices[i].latency_ms, prices[i].energy_mj, i))]


def repaired(planner: Planner, model: LossModel, codes: Codes, op_point: str) -> Codes | None:
    """`codes` brought within the budgets by single steps, each the one that gains most per predicted loss; None if none helps."""
    for _ in range(2 * len(codes)):
        now = _excess(planner, codes[None], op_point)[0]
        if now <= 0.0:
            return codes
        rows = around(planner, codes, ())
        if not len(rows):
            return None
        gain = now - _excess(planner, rows, op_point)
        if gain.max() <= 0.0:
            return None
        lost = np.maximum(model.predict(rows) - model.predict(codes)[0], 0.0)
        tiny = max(float(model.error.min()), 1e-12)
        codes = rows[int(np.argmax(np.where(gain > 0.0, gain / (lost + tiny), -np.inf)))]
    return None


def _excess(planner: Planner, rows: Codes, op_point: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """[n] sum of what each plan is beyond its budgets, as shares of them; 0 within all."""
    prices = planner.costs.price(rows, op_point)
    return np.array([sum(max(b.excess(p), 0.0) for b in planner.budgets) for p in prices])


def _changed(codes: Codes, steps: dict[int, int]) -> Codes:
    changed = codes.copy()
    for u, p in steps.items():
        changed[u] = p
    return changed
