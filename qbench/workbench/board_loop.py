"""Boards in the loop of a search: a few plans teach the latency model, then the plans that may be chosen are measured, and measured ones decide.

Predicted and measured times stay apart: `Candidate.price` is the (corrected) prediction, `Candidate.measured` what a board said.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from qbench import qdq
from qbench.board import Board, Measurement, Request
from qbench.cost import CostTable
from qbench.cost.board_fit import BoardFit
from qbench.cost.board_table import taught
from qbench.graph import PreparedModel
from qbench.network import Network, Precision
from qbench.plan import Plan
from qbench.protocols import Array, Price, Progress, silent
from qbench.result import Binding, Candidate, SearchResult
from qbench.search.choice import choose, nearest, pareto, show, unmet_floor
from qbench.search.problem import Problem
from qbench.search.run import unsure
from qbench.workbench.measuring import TRIES, measured

MIXTURES = 3
"""Plans that mix precisions, beside the uniform ones, from which the classes of kernels are told apart."""
MOST = 12
"""Candidates that are measured after the search."""
SURE = 2.0
"""Standard errors of a median within which a budget is not surely met."""


@dataclass
class Rig:
    """Boards, the inputs they get, and what they have measured: plan key -> measurement."""

    boards: Sequence[Board]
    prepared: PreparedModel
    feeds: Sequence[Mapping[str, Array]]
    request: Request = field(default_factory=Request)
    tries: int = TRIES
    progress: Progress = silent
    known: dict[str, Measurement] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return ", ".join(b.url for b in self.boards)

    def measure(self, plans: Sequence[Plan]) -> list[Measurement]:
        """Of each plan, each board working on one at a time. Raises ToolError when one fails."""
        new = list({p.key: p for p in plans if p.key not in self.known}.values())
        free: SimpleQueue[Board] = SimpleQueue()
        for board in self.boards:
            free.put(board)

        def work(plan: Plan) -> Measurement:
            board = free.get()
            try:
                with tempfile.TemporaryDirectory(prefix="qbench-") as folder:
                    path = Path(folder) / f"{plan.key}.onnx"
                    qdq.save(qdq.write(self.prepared, plan).model, path)
                    return measured(board, path, self.feeds, self.request, self.tries)
            finally:
                free.put(board)

        with ThreadPoolExecutor(len(self.boards)) as pool:
            for done, (plan, found) in enumerate(zip(new, pool.map(work, new), strict=True)):
                self.known[plan.key] = found
                self.progress("measuring", done + 1, len(new))
        return [self.known[p.key] for p in plans]


def teach(rig: Rig, table: CostTable, plans: Sequence[Plan]) -> tuple[CostTable, BoardFit]:
    """The table corrected by measuring `plans`."""
    found = rig.measure(plans)
    return taught(table, plans, np.array([m.latency_ms for m in found]) / 1e3, np.array([m.error_ms for m in found]) / 1e3, rig.where)


def lessons(network: Network, allowed: Mapping[str, tuple[Precision, ...]], make: Callable[[Mapping[str, Precision]], Plan], seed: int = 0) -> list[Plan]:
    """Plans to learn from: one precision throughout, for each there is, and MIXTURES that split the work between them at random."""
    have = [p for p in (Precision.INT8, Precision.INT16, Precision.FP16, Precision.FP32) if any(p in a for a in allowed.values())]

    def narrowed(wanted: Mapping[str, Precision]) -> dict[str, Precision]:
        return {u.name: wanted[u.name] if wanted[u.name] in allowed[u.name] else allowed[u.name][-1] for u in network.units}

    rng = np.random.default_rng(seed)
    asked = [{u.name: p for u in network.units} for p in have]
    if len(have) > 1:
        asked += [{u.name: have[int(rng.integers(len(have)))] for u in network.units} for _ in range(MIXTURES)]
    plans = {plan.key: plan for plan in (make(narrowed(a)) for a in asked)}
    return list(plans.values())


def decide(rig: Rig, table: CostTable, result: SearchResult, problem: Problem, plan_of: Callable[[Candidate], Plan]) -> tuple[SearchResult, CostTable]:
    """The result with measured candidates, chosen among them; and the table that all measurements have taught.

    The chosen plan and the front are measured; then the model is taught by everything measured, the candidates are priced again, and as
    long as an unmeasured one would be chosen, it is measured too.
    """
    if result.chosen is None:
        return result, table
    # the likely choices first: measuring stops at MOST
    order = list(dict.fromkeys(c.plan_key for c in (result.chosen, *result.uniform.values(), *_spread(result.front))))[:MOST]
    by_key = {c.plan_key: c for c in result.candidates}
    plans = {k: plan_of(by_key[k]) for k in order if k in by_key}
    rig.measure(list(plans.values()))
    for _ in range(MOST):
        have = [p for p in {c.plan_key: plan_of(c) for c in result.candidates if c.plan_key in rig.known}.values()]
        corrected, _found = teach(rig, table, have)
        result = _decided(rig, corrected, result, problem, plan_of)
        assert result.chosen is not None
        if result.chosen.plan_key in rig.known:
            break
        rig.measure([plan_of(result.chosen)])
    return result, corrected


def _spread(front: Sequence[Candidate]) -> list[Candidate]:
    """The front from its ends inwards, so that a cut leaves its whole width."""
    ordered = sorted(front, key=lambda c: c.price.latency_ms)
    steps = np.unique(np.linspace(0, len(ordered) - 1, min(MOST, len(ordered))).round().astype(int)) if ordered else np.zeros(0, int)
    return [ordered[i] for i in steps]


def _decided(rig: Rig, table: CostTable, result: SearchResult, problem: Problem, plan_of: Callable[[Candidate], Plan]) -> SearchResult:
    candidates = tuple(_priced(rig, table, c, problem, plan_of(c)) for c in result.candidates)
    by_name = {c.name: c for c in candidates}
    judged = [replace(c, price=judged_price(c)) for c in candidates]
    chosen = choose([c for c in judged if c.feasible], problem) or nearest(judged, problem)
    feasible = chosen is not None and chosen.feasible
    return replace(result, feasible=feasible, candidates=candidates, front=tuple(by_name[c.name] for c in pareto(judged, problem)),
                   binding=None if chosen is None or feasible else result.binding or _binding(chosen, judged, problem),
                   unsure=unsure(chosen, problem) if chosen is not None and feasible else (),
                   uniform={k: by_name.get(c.name, c) for k, c in result.uniform.items()}, chosen=by_name[chosen.name] if chosen else None)


def _binding(near: Candidate, judged: Sequence[Candidate], problem: Problem) -> Binding:
    """Why no candidate is left, where predictions alone had left some: `near` is the one that misses least."""
    broken = [b for b in problem.budgets if not b.met_by(near.price)]
    if not broken:
        return unmet_floor(problem, judged)
    found = ", ".join(show(b, b.value(near.price)) for b in broken)
    return Binding(", ".join(b.text for b in broken), f"on the boards the nearest plan has {found} ({near.name})")


def _priced(rig: Rig, table: CostTable, c: Candidate, problem: Problem, plan: Plan) -> Candidate:
    """The candidate with its corrected prediction and what was measured; feasible and sure by the measurement where there is one."""
    price = table.price(table.codes(plan)[None], plan.op_point)[0]
    c = replace(c, price=price, measured=rig.known.get(c.plan_key))
    judged = judged_price(c)
    return replace(c, feasible=problem.met(judged, c.accuracy), sure=problem.sure(judged, c.accuracy))


def judged_price(c: Candidate) -> Price:
    """By what a candidate is judged: measured latency, energy and power where a board gave them, predictions elsewhere."""
    m = c.measured
    if m is None:
        return c.price
    spread = SURE * m.error_ms
    energy = c.price.energy_mj if m.energy_mj is None else m.energy_mj
    return replace(c.price, latency_ms=m.latency_ms, latency_ms_low=m.latency_ms - spread, latency_ms_high=m.latency_ms + spread,
                   energy_mj=energy, power_w=c.price.power_w if m.power_w is None else m.power_w)
