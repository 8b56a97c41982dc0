"""Where losses do not add up: pairs of neighbours lowered together, and what that teaches."""

from __future__ import annotations

import math
from itertools import islice

from qbench.network import Precision
from qbench.search.sensitivity import Coupling, probe, suspects
from qbench.search.state import State

PROBES_PER_PLAN = 3
"""Pairs of units that are measured for one surprising plan."""
PROBES = 12
"""Pairs of units that may be measured in all."""


def probe_surprises(state: State) -> None:
    """Where a plan's real loss is not what the sum of its parts says, lowers neighbours together and teaches the prior."""
    assert state.prior is not None, "sensitivity comes before probing"
    if state.book.problem.second_order is not None:
        return                                                   # a pair can be compared with measured units only
    space = state.book.bench.space
    alone = {(s.unit, s.precision): s.accuracy for s in state.sensitivity}
    codes, loss, error = state.book.observations(state.main)
    model = state.model()
    for plan, y, e in zip(codes, loss, error, strict=True):
        expected = float(state.prior.predict(plan)[0]), float(model.predict(plan)[0])
        if all(abs(y - m) <= 3.0 * math.hypot(e, 0.1 * max(y, m), float(model.error.min())) for m in expected):
            continue
        for pair in islice(suspects(state.prior, state.pairs, plan.tolist(), set(state.prior.probed)), PROBES_PER_PLAN):
            at = (Precision(state.names[plan[pair[0]]]), Precision(state.names[plan[pair[1]]]))
            if len(state.couplings) >= PROBES:
                break
            if any((u, p) not in alone for u, p in zip(pair, at, strict=True)):
                continue
            _learn(state, probe(space, state.look_all, pair, at, alone))
            model = state.model()


def _learn(state: State, found: Coupling) -> None:
    assert state.prior is not None
    state.couplings.append(found)
    codes = (state.names.index(str(found.precision[0])), state.names.index(str(found.precision[1])))
    error = math.hypot(found.error, 0.3 * abs(found.interaction), float(state.prior.error.min()))
    state.prior = state.prior.with_probe(found.units, codes, found.interaction, error)
    if found.significant:
        state.book.events.note(coupling_text(found, state.book.bench.space.units))


def coupling_text(found: Coupling, units: tuple[str, ...]) -> str:
    a, b = (units[u] for u in found.units)
    return (f"units {a!r} and {b!r} do not act alone: lowered together they lose {found.together:.4g}, "
            f"one by one {found.apart:.4g} in sum")
