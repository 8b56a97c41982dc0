"""The whole search: refuse early, measure, assign, explore, sample, polish, choose.

Stopping by Ctrl-C leaves a valid partial result; a killed search continues from its database (`Problem.storage`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from qbench.network import Precision
from qbench.protocols import Accuracy, Evaluator
from qbench.result import Binding, Candidate, SearchResult
from qbench.search import make_strategy, stages
from qbench.search.assignment import AssignmentCosts
from qbench.search.bench import Bench, Pool
from qbench.search.book import Book, TimeUp, float_candidate
from qbench.search.choice import choose, nearest, pareto, refusal, unmet_floor
from qbench.search.explore import explore
from qbench.search.ledger import open_ledger
from qbench.search.planner import Planner
from qbench.search.probing import coupling_text
from qbench.search.problem import Events, Problem
from qbench.search.sensitivity import least_lossy
from qbench.search.settled import settled
from qbench.search.space import Config, Strategy
from qbench.search.state import State

EXACT_SHARE, EXPLORE_SHARE, POLISH_SHARE = {True: 0.5, False: 0.12}, {True: 0.65, False: 0.92}, {True: 0.15, False: 0.0}
"""Of the evaluations left after the uniform plans: what is used up when exact and explore end, and what polish may use. The strategy gets what they
leave. With limits there is one plan to find; without there is a front, and no one plan to polish."""


def run(problem: Problem, evaluator: Evaluator, pricer: AssignmentCosts, events: Events | None = None,
        reference: Accuracy | None = None, pool: Pool | None = None) -> SearchResult:
    """Searches until `problem.trials` plans are evaluated on the whole set, or the problem is found to have no solution.

    reference   the float model's accuracy on the whole set, where the evaluator has it already
    pool        evaluates plans side by side; without one, `evaluator` does one after the other, with the same result
    Raises UnknownName for a strategy that does not exist and InputError for a database that cannot be opened.
    Interrupted before the float model was measured, KeyboardInterrupt goes on to the caller.
    """
    events = events or Events()
    space = problem.space
    strategy = make_strategy(problem.strategy, space, problem.seed)
    ledger = open_ledger(problem.storage, problem.study_name, space)
    try:
        return _run(problem, Bench(problem, evaluator, pricer, ledger, pool), strategy, events, reference)
    finally:
        ledger.close()


def _run(problem: Problem, bench: Bench, strategy: Strategy, events: Events, reference: Accuracy | None) -> SearchResult:
    space, pricer = bench.space, bench.pricer
    planner = Planner(space, pricer, problem.budgets, least_lossy(space, pricer.precisions))
    book = Book(problem, bench, events, bench.reference(reference))
    floats = float_candidate(bench.plan(bench.float_config()), book.reference, bench.reference_price())
    state = State(book, planner, (), space.plain)
    binding: Binding | None = None
    partial, warnings = False, []
    try:
        state.op_points = tuple(o for o in problem.op_points if planner.any(o) is not None)
        if not state.op_points:
            binding = _refuse(state)
        else:
            reason = _search(state, strategy, problem)
            if reason:
                warnings.append(f"ended after {book.count} plans: {reason}")
            elif book.count < problem.trials:
                warnings.append(f"{book.count} of {problem.trials} plans evaluated: the search found no others within the budgets")
    except TimeUp:
        warnings.append(f"stopped after {problem.time_limit_s:g} s with {book.count} of {problem.trials} plans evaluated")
    except KeyboardInterrupt:
        partial = True
        warnings.append(f"interrupted after {book.count} of {problem.trials} plans")
    return _result(state, floats, binding, partial, warnings)


def _search(state: State, strategy: Strategy, problem: Problem) -> str:
    """Why it ended early, or ""."""
    book = state.book
    stages.uniform(state)
    if settled(state):
        stages.alike(state, problem.trials)
        return settled(state)
    stages.sensitivity(state)
    left = max(problem.trials - book.count, 0)
    start, limited = book.count, bool(problem.limits)
    stages.exact(state, start + round(EXACT_SHARE[limited] * left))
    explore(state, start + round(EXPLORE_SHARE[limited] * left))
    stages.tell_all(state, strategy)
    stages.sample(state, strategy, problem.strategy, problem.trials - round(POLISH_SHARE[limited] * left))
    stages.polish(state, problem.trials)
    stages.sample(state, strategy, problem.strategy, problem.trials)
    explore(state, problem.trials)
    stages.exact(state, problem.trials)
    stages.scatter(state, problem.trials)
    stages.revisit(state, problem.trials)
    stages.spread(state)
    return ""


def _refuse(state: State) -> Binding:
    """No plan meets the budgets: says why, and evaluates the nearest one under the calibrator that suits it best."""
    book, space = state.book, state.book.bench.space
    binding, codes, op_point = refusal(book.problem, state.planner)
    precision = tuple(Precision(state.names[c]) for c in codes)
    if not all(p.is_float for p in precision):
        looks = stages.quick_variants(book, precision)
        state.main = min(looks, key=lambda v: looks[v].drop if np.isfinite(looks[v].drop) else np.inf)
    even = {str(p): space.uniform(p) for p in (Precision.INT8, Precision.INT16, Precision.FP16, Precision.FP32)}
    name = next((n for n, u in even.items() if u == precision), None)
    found = book.consider(Config.of(precision, state.main, op_point), "nearest", name, always=True)
    if found is not None and name is not None:
        state.uniform[name] = found
    return binding


def _result(state: State, floats: Candidate, binding: Binding | None, partial: bool, warnings: list[str]) -> SearchResult:
    book, problem = state.book, state.book.problem
    candidates = tuple(e.candidate for e in book.evaluated.values())
    chosen = choose([c for c in candidates if c.feasible], problem)
    feasible = chosen is not None
    if chosen is None:
        chosen = nearest(candidates, problem)
        if binding is None and (problem.max_drop is not None or problem.max_class_drop is not None) and candidates:
            binding = unmet_floor(problem, candidates)
    return SearchResult(
        feasible=feasible, binding=binding, budgets=problem.limits, sample=problem.sample, evaluated=book.count,
        float_pass_equivalents=book.bench.passes, wall_s=book.bench.wall_s, reference=floats,
        uniform={name: e.candidate for name, e in state.uniform.items()}, chosen=chosen, front=pareto(candidates, problem),
        candidates=candidates, unsure=unsure(chosen, problem) if feasible and chosen else (),
        sensitivity=_rows(state), target=problem.target, toolkit=problem.toolkit, model=problem.model,
        provenance=problem.provenance, warnings=(*warnings, *_told(state)), partial=partial)


def unsure(chosen: Candidate, problem: Problem) -> tuple[str, ...]:
    """The limits that the unfavourable end of an interval does not keep."""
    limits = [b.text for b in problem.budgets if not b.sure_by(chosen.price)]
    if problem.max_drop is not None and not problem.max_drop.sure_by(chosen.accuracy):
        limits.append(f"max-drop {problem.max_drop.text} ({chosen.accuracy.samples} samples cannot prove it)")
    floor = problem.max_class_drop
    unproved = [c for c in chosen.accuracy.classes if floor is not None and not floor.sure_by(c)]
    if floor is not None and unproved:
        said = ", ".join(f"{c.samples} samples of {c.name}" for c in unproved)
        limits.append(f"max-class-drop {floor.text} ({said} cannot prove it)")
    return tuple(limits)


def _told(state: State) -> list[str]:
    """Couplings one by one, dropped plans in sum; each dropped plan had its own note."""
    units = state.book.bench.space.units
    told = [coupling_text(c, units) for c in state.couplings if c.significant]
    kinds = Counter("could not be evaluated" if d.quick is None else "dropped after a quick look" for d in state.book.dropped.values())
    for kind, count in sorted(kinds.items()):
        reason = next(d.reason for d in state.book.dropped.values() if (d.quick is None) == (kind == "could not be evaluated"))
        told.append(f"{count} more plan{'s' if count > 1 else ''} {kind}, {'the first ' if count > 1 else ''}because {reason}")
    return told


def _rows(state: State) -> tuple[Mapping[str, Any], ...]:
    """Sensitivity as the result wants it; `coupled` lists neighbours with which the unit does not act alone."""
    space, pricer, first = state.book.bench.space, state.planner.costs, state.book.problem.op_points[0]
    if not state.sensitivity:
        return ()
    base = state.planner.base
    lowered = np.repeat(base[None], len(state.sensitivity), axis=0)
    for row, s in zip(lowered, state.sensitivity, strict=True):
        row[s.unit] = state.names.index(str(s.precision))
    start = pricer.price(base[None], first)[0].latency_ms
    saved = [start - p.latency_ms for p in pricer.price(lowered, first)]
    return tuple(
        {"unit": space.units[s.unit], "precision": str(s.precision), "drop": s.accuracy.drop, "drop_low": s.accuracy.drop_low,
         "drop_high": s.accuracy.drop_high, "ms_saved": ms, "samples": s.accuracy.samples, "sqnr_db": s.accuracy.sqnr_db,
         "coupled": [{"unit": space.units[b if a == s.unit else a], "interaction": c.interaction}
                     for c in state.couplings for a, b in [c.units] if c.significant and s.unit in (a, b)]}
        for s, ms in zip(state.sensitivity, saved, strict=True))


