"""The stages of a search, in their order. Each proposes plans to the book until its share of the evaluations is used.

    uniform       one precision throughout, under every calibrator: the yardsticks, and the calibrator to go on with
    sensitivity   one unit lowered at a time, on the first samples
    exact         the programme's front under the loss model; real losses teach the model, surprises are probed pair by pair
    explore       plans that are expected to push the front out most, under what the loss model does not know
    sample        the strategy (Optuna), which has been told everything so far
    polish        single steps and steps of two neighbours around the best plan, and its other calibrators
    scatter       random plans within the budgets, where the others have run dry
    revisit       the whole set for plans that a quick look had dropped, where even that is not enough
    spread        evaluated plans at the other operating points: no evaluation needed
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qbench.network import Precision
from qbench.protocols import Accuracy
from qbench.search.bench import ROUND, rounds
from qbench.search.book import Book, Evaluated
from qbench.search.ledger import WHOLE
from qbench.search.loss import LossModel
from qbench.search.moves import around, ranked, repaired
from qbench.search.pareto import front
from qbench.search.probing import probe_surprises
from qbench.search.second_order import Curvature, foreseen, prior
from qbench.search.sensitivity import loss_model, measure, neighbours
from qbench.search.space import Config, Costs, Strategy, Variant
from qbench.search.state import State, sound

POINTS = 6
"""Caps on latency along which a predicted front is drawn."""
HARMLESS = 0.001
"""A uniform plan whose loss is certainly below this needs no look at its units, in the metric's own unit."""
REPEATS = 25
"""Known plans in a row after which a strategy has nothing new to say."""
ASKS = 20
"""Questions to a strategy per plan that it may have evaluated."""


# ------------------------------------------------------------------------------------------------ uniform


def uniform(state: State) -> None:
    """Fills `uniform` and `main`."""
    space = state.book.bench.space
    present = [p for p in (Precision.INT8, Precision.INT16, Precision.FP16, Precision.FP32) if space.uniform(p) is not None]
    state.main = space.plain
    narrowest = next((p for p in present if not p.is_float), None)
    if narrowest is not None:
        state.main = _best_variant(state, narrowest)
    _consider(state, [(p, state.main) for p in present if p is not narrowest])


def _best_variant(state: State, p: Precision) -> Variant:
    """That of the most accurate uniform plan: every one gets a quick look, the first two the whole set."""
    looks = quick_variants(state.book, uniform_precision(state.book, p))
    order = sorted(looks, key=lambda v: _loss(looks[v]))
    again = [v for v in order[1:2] if looks[v].drop_low <= looks[order[0]].drop_high]
    again = again if state.book.subset != WHOLE else order[1:]       # the quick look was the whole set: nothing is saved by leaving some out
    _consider(state, [(p, v) for v in (order[0], *again)])
    best = state.uniform.get(str(p))
    return best.config.variant if best is not None else order[0]


def uniform_precision(book: Book, p: Precision) -> tuple[Precision, ...]:
    precision = book.bench.space.uniform(p)
    assert precision is not None, "asked only for precisions that some unit may take"
    return precision


def quick_variants(book: Book, precision: tuple[Precision, ...]) -> dict[Variant, Accuracy]:
    """A quick look at one assignment under every calibrator and granularity, and at the best of them under every correction."""
    space = book.bench.space
    found: dict[Variant, Accuracy] = {}

    def look(goals: Sequence[Variant]) -> None:
        for some in rounds(goals):
            book.events.progress("calibrators", len(found), count)
            found.update(zip(some, sound(book.look_all([Config.of(precision, v, space.op_points[0]) for v in some])), strict=True))

    plain = [v for v in space.variants if v.corrections == space.corrections[0]]
    count = len(plain) + len(space.corrections) - 1
    look(plain)
    best = min(found, key=lambda v: _loss(found[v]))
    look([best._replace(corrections=k) for k in space.corrections[1:]])
    book.events.progress("calibrators", count, count)
    return found


def _loss(accuracy: Accuracy) -> float:
    return accuracy.drop if math.isfinite(accuracy.drop) else math.inf


def _consider(state: State, asked: Sequence[tuple[Precision, Variant]]) -> None:
    """Evaluates uniform plans side by side, and keeps the best of each precision."""
    taken, names = set(state.uniform), []
    for p, variant in asked:
        names.append(str(p) if str(p) not in taken else f"{p}-{variant.calibrator.split(':')[0]}")
        taken.add(str(p))
    configs = [Config.of(uniform_precision(state.book, p), v, state.book.problem.op_points[0]) for p, v in asked]
    for (p, _), found in zip(asked, state.book.consider_all(configs, "uniform", names, always=True), strict=True):
        have = state.uniform.get(str(p))
        if found is not None and (have is None or found.candidate.accuracy.value > have.candidate.accuracy.value):
            state.uniform[str(p)] = found


# ------------------------------------------------------------------------------------------------ sensitivity


def sensitivity(state: State) -> None:
    """Fills `sensitivity`, `pairs` and `prior`: from curvature where the problem has it, otherwise one measurement at a time."""
    space = state.book.bench.space
    state.pairs = neighbours(state.book.problem.network, space)
    if state.book.problem.second_order is not None:
        _foresee(state, state.book.problem.second_order)
        return
    for found in measure(space, state.look_all, state.book.events.progress, _harmless(state), state.book.bench.together):
        state.sensitivity.append(found)
    uniform = {Precision(n): e.candidate.accuracy for n, e in state.uniform.items()}
    state.prior = loss_model(space, state.names, state.sensitivity, uniform).with_pairs(state.pairs)
    probe_surprises(state)


def _foresee(state: State, curvature: Curvature) -> None:
    """The sensitivities as the curvature of the loss at the uniform plans foresees them, scaled to what these really lose."""
    space, bench = state.book.bench.space, state.book.bench
    integers = {p: e for n, e in state.uniform.items() if not (p := Precision(n)).is_float}
    plain = state.main._replace(corrections=space.corrections[0])
    plans = {p: bench.plan(Config.of(e.config.precision, plain, state.book.problem.op_points[0])) for p, e in integers.items()}
    found = curvature(plans) if plans else []
    bench.passes += curvature.passes
    state.sensitivity = foreseen(space, found, {p: e.candidate.accuracy for p, e in integers.items()})
    state.prior = prior(space, state.names, state.sensitivity).with_pairs(state.pairs)


def _harmless(state: State) -> set[Precision]:
    """Integer precisions whose uniform plan cannot be told from float."""
    found = {Precision(n) for n, e in state.uniform.items()
             if not Precision(n).is_float and e.candidate.accuracy.drop_low <= 0.0 and e.candidate.accuracy.drop_high <= HARMLESS}
    for p in sorted(found):
        state.book.events.note(f"{p} throughout loses {state.uniform[str(p)].candidate.accuracy.drop:.4g}: its units are not measured one by one")
    return found


# ------------------------------------------------------------------------------------------------ exact


def exact(state: State, until: int) -> None:
    """Plans of the exact front until the book holds `until`, learning after every round of them."""
    book = state.book
    state.dropped = 0
    while book.count < until and state.patient:
        model = state.model()
        proposals = [c for c in _proposals(state, model) if not book.known(c)]
        if not proposals:
            return
        state.consider(proposals[:min(ROUND, until - book.count)], "milp")
        probe_surprises(state)


def _proposals(state: State, model: LossModel) -> list[Config]:
    """The best plan not yet seen at each operating point, also of those surely within the limits; the knees of the predicted front; the front by latency.

    Knees and front are asked for without regard to what was seen: a plan that comes up again needs no second look, and its
    nearest neighbours have nothing new to say.
    """
    limited = bool(state.book.problem.limits)                    # without limits the best plan is the slowest, and so are its neighbours
    seen = state.book.observations(state.main)[0] if limited else []
    planners = dict.fromkeys((state.planner.sure, state.planner))
    best = [(codes, o) for p in planners for o in state.op_points if (codes := p.best(o, model, seen)) is not None]
    o = state.op_points[0]
    bends = [(codes, o) for codes in state.planner.knees(o, model)]
    rows = [*best, *bends[1::2], *bends[::2], *((codes, o) for codes in state.planner.front(o, model, POINTS))]
    return list(dict.fromkeys(state.book.bench.space.canonical(state.config(codes, o)) for codes, o in rows))


# ------------------------------------------------------------------------------------------------ sample


def tell_all(state: State, strategy: Strategy) -> None:
    """Everything seen so far, in the order in which it was seen."""
    book = state.book
    for config in [*book.evaluated, *book.dropped]:
        costs = book.costs_of(config)
        if costs is not None:
            strategy.tell([(config, costs)])


def sample(state: State, strategy: Strategy, origin: str, until: int) -> None:
    """Asks `strategy` until the book holds `until` plans, or nothing new comes."""
    book, model = state.book, state.model()
    state.dropped = 0
    repeats, limit = 0, state.asked + ASKS * max(until - book.count, 0)
    while book.count < until and repeats < REPEATS and state.asked < limit and state.patient:
        wanted: list[tuple[Config, Config]] = []                    # what was asked for, and what stands for it
        for asked in strategy.ask(min(ROUND, until - book.count)):
            state.asked += 1
            config = book.bench.space.canonical(asked)
            if any(v > 0.0 for v in book.problem.constraints(book.bench.price(config)).values()):
                strategy.tell([(asked, _foreseen(state, model, config))])
                inside = _within(state, model, config)
                if inside is None or book.known(inside):
                    repeats += 1
                    continue
                asked = config = inside
            repeats = repeats + 1 if book.known(config) else 0
            wanted.append((asked, config))
        state.consider([config for _, config in wanted], origin)
        for asked, config in wanted:
            strategy.tell([(asked, book.costs_of(config) or _foreseen(state, model, config))])


def _foreseen(state: State, model: LossModel, config: Config) -> Costs:
    """Of a plan beyond its budgets: its price and constraints are exact, its loss (which then does not rank it) is the model's."""
    bench = state.book.bench
    price = bench.price(config)
    return Costs(float(model.predict(bench.codes(config))[0]), price.latency_ms, price.energy_mj, bench.problem.constraints(price))


def _within(state: State, model: LossModel, config: Config) -> Config | None:
    """The same config brought within the budgets."""
    codes = repaired(state.planner, model, state.book.bench.codes(config), config.op_point)
    if codes is None:
        return None
    return state.book.bench.space.canonical(replace(config, precision=tuple(Precision(state.names[c]) for c in codes)))


# ------------------------------------------------------------------------------------------------ polish


def polish(state: State, until: int) -> None:
    """From the best plan: other calibrators, then single steps and pairs; starts over from every better one."""
    book = state.book
    state.dropped = 0
    while book.count < until and state.patient:
        best = book.best()
        if best is None:
            return
        moves = [c for c in _moves(state, best) if not book.known(c)]
        if not moves:
            return
        for some in rounds(moves):
            state.consider(some[:until - book.count], "polish")
            if book.count >= until or book.best() is not best or not state.patient:
                break


def _variants(state: State, best: Evaluated) -> list[Config]:
    return [Config.of(best.config.precision, v, best.config.op_point) for v in state.book.bench.space.variants]


def _moves(state: State, best: Evaluated) -> list[Config]:
    """Neighbours of the best plan, the promising ones first."""
    space, model, variants = state.book.bench.space, state.model(), _variants(state, best)
    rows = ranked(state.planner, model, around(state.planner, state.book.bench.codes(best.config), state.pairs), best.config.op_point)
    steps = [replace(best.config, precision=tuple(Precision(state.names[c]) for c in row)) for row in rows]
    return list(dict.fromkeys(space.canonical(c) for c in (*variants, *steps)))


def alike(state: State, until: int) -> None:
    """Where the best plan loses something: its other variants. They cost the same, so that accuracy decides between them."""
    book = state.book
    best = book.best()
    if best is None or best.candidate.accuracy.drop <= 0.0:
        return
    for some in rounds([c for c in _variants(state, best) if not book.known(c)]):
        state.consider(some[:max(until - book.count, 0)], "polish")


def scatter(state: State, until: int) -> None:
    """Where little is left to try: random plans within the budgets, each brought in by `repaired`."""
    book, space, model = state.book, state.book.bench.space, state.model()
    state.dropped = 0
    rng = np.random.default_rng(state.book.problem.seed)
    repeats = 0
    while book.count < until and state.patient and repeats < 4 * REPEATS:
        some: list[Config] = []
        while len(some) < min(ROUND, until - book.count) and repeats < 4 * REPEATS:
            codes = np.array([rng.choice(options) for options in state.planner.allowed], np.int64)
            config = replace(state.config(codes, state.op_points[0]), calibrator=space.calibrators[int(rng.integers(len(space.calibrators)))])
            inside = _within(state, model, config)
            repeats = repeats + 1 if inside is None or book.known(inside) or inside in some else 0
            if inside is not None and repeats == 0:
                some.append(inside)
        state.consider(some, "random")


def revisit(state: State, until: int) -> None:
    """Last resort: the whole set for plans that a quick look had dropped, the least bad first."""
    book = state.book
    again = [d for d in book.dropped.values() if d.quick is not None and math.isfinite(d.quick.drop)]
    order = [d.config for d in sorted(again, key=lambda d: d.quick.drop if d.quick is not None else math.inf)]
    for some in rounds(order):
        book.consider_all(some[:max(until - book.count, 0)], "revisit", always=True)


# ------------------------------------------------------------------------------------------------ spread


def spread(state: State) -> None:
    """Adds evaluated plans at other operating points where that puts them on the front of loss, latency and energy."""
    book = state.book
    if len(book.problem.op_points) < 2:
        return
    have = [(e.config, e.costs.objectives) for e in book.evaluated.values() if e.costs.feasible]
    more: dict[Config, tuple[float, float, float]] = {}
    for e in list(book.evaluated.values()):
        for o in book.problem.op_points:
            config = replace(e.config, op_point=o)
            if config not in book.evaluated and config not in more:
                costs = book.bench.costs(book.bench.price(config), e.candidate.accuracy)
                if costs.feasible:
                    more[config] = costs.objectives
    everything = [*have, *more.items()]
    for i in front([point for _, point in everything] or np.zeros((0, 3))):
        if everything[i][0] in more:
            book.consider(everything[i][0], "spread", always=True)
