"""What each unit costs in accuracy when only it is lowered, and which units do not act alone.

Measured with everything else in float, on the first samples of the set, against the float model on the same samples (paired).
Units come in topological order, so an evaluator that remembers the float prefix runs only what lies behind the unit.
That losses add up is then checked against real plans; where they do not, neighbours are lowered together (`probe`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from qbench.network import Network, Precision
from qbench.protocols import Accuracy, Progress
from qbench.search.loss import Floats, LossModel, Pair
from qbench.search.space import Space, finest

Measure = Callable[[Sequence[tuple[Precision, ...]]], list[Accuracy]]
"""Accuracies, on the samples agreed, of plans given as one precision per unit."""

SIGMAS = 1.959963984540054
"""A 95 % interval is this many standard errors to each side."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The accuracy with only `unit` (an index) lowered to `precision` and the rest in float."""

    unit: int
    precision: Precision
    accuracy: Accuracy


@dataclass(frozen=True, slots=True)
class Coupling:
    """Two units lowered together.

    together     drop of the pair
    apart        sum of the drops of the two alone
    error        standard error of the difference
    """

    units: Pair
    precision: tuple[Precision, Precision]
    together: float
    apart: float
    error: float

    @property
    def interaction(self) -> float:
        return self.together - self.apart

    @property
    def significant(self) -> bool:
        return self.error > 0.0 and abs(self.interaction) > 3.0 * self.error         # of a single sample no error is known


def standard_error(accuracy: Accuracy) -> float:
    """Of the drop, from its 95 % interval; 0 where the interval is not finite."""
    error = (accuracy.drop_high - accuracy.drop_low) / (2.0 * SIGMAS)
    return error if math.isfinite(error) and error > 0.0 else 0.0


def lowerings(space: Space, harmless: AbstractSet[Precision] = frozenset()) -> list[tuple[int, Precision]]:
    """Every (unit, integer precision) to measure, units in topological order, `harmless` precisions left out."""
    return [(u, p) for u, allowed in enumerate(space.allowed) for p in allowed if not p.is_float and p not in harmless]


def measure(space: Space, run: Measure, progress: Progress, harmless: AbstractSet[Precision] = frozenset(),
            together: int = 1) -> Iterator[Sensitivity]:
    """In steps, so that an interrupted search keeps what it has.

    harmless   precisions under which the whole network loses nothing: no unit of it needs a look of its own
    together   how many in one go; none waits for another's result
    """
    goals = lowerings(space, harmless)
    for start in range(0, len(goals), together):
        progress("sensitivity", start, len(goals))
        some = goals[start:start + together]
        for (u, p), seen in zip(some, run([only(space, {u: p}) for u, p in some]), strict=True):
            yield Sensitivity(u, p, seen)
    progress("sensitivity", len(goals), len(goals))


def only(space: Space, lowered: dict[int, Precision]) -> tuple[Precision, ...]:
    """Float everywhere but for the units in `lowered`."""
    return tuple(lowered.get(u, Precision.FP32) for u in range(len(space.units)))


def noise(accuracy: Accuracy) -> float:
    """Quantization noise at the output as a share of its power; 0 where it is not known."""
    return float(10.0 ** (-accuracy.sqnr_db / 10.0)) if not math.isnan(accuracy.sqnr_db) else 0.0


def loss_model(space: Space, names: Sequence[str], found: Sequence[Sensitivity], uniform: Mapping[Precision, Accuracy] = MappingProxyType({})) -> LossModel:
    """The additive model, `names` being the pricer's precisions; `uniform` holds what one precision throughout really loses.

    A drop that lies within its error says little. The noise at the output then says more: it is turned into a drop (`_proxy`), and both are
    averaged with the weights 1 / error (the proxy's error is itself), so that of two units without a clear drop the noisier one never counts
    as safer. A unit that changed no decision at all has no error that could be read off: it is given the usual one, or has the proxy alone.
    """
    index = {name: i for i, name in enumerate(names)}
    unit = np.zeros((len(space.units), len(names)))
    drop = np.array([s.accuracy.drop for s in found], float)
    error = np.array([standard_error(s.accuracy) for s in found], float)
    floor = floor_of(error)
    silent = error <= 0.0
    usual = float(np.median(error[~silent])) if (~silent).any() else np.inf
    error = np.where(silent, usual, np.maximum(error, floor))
    proxy = np.maximum(_proxy(found, drop, error, uniform), floor)
    weight = 1.0 / (1.0 + proxy / error)                                   # 1 where the error is not known
    value = np.maximum(weight * proxy + (1.0 - weight) * drop, 0.0)        # more noise never means less loss
    value = np.where(~silent & (drop > 2.0 * error), drop, value)
    spread = np.full_like(unit, floor)
    for s, v, e in zip(found, value, error, strict=True):
        unit[s.unit, index[str(s.precision)]] = v
        spread[s.unit, index[str(s.precision)]] = math.hypot(min(e, max(v, floor)), 0.3 * v)
    return LossModel(unit, spread)


def floor_of(errors: Floats) -> float:
    """The smallest standard error that is believed: a tenth of the median of those above 0, at least 1e-6."""
    positive = errors[errors > 0.0]
    return max(0.1 * float(np.median(positive)), 1e-6) if len(positive) else 1e-6


def _proxy(found: Sequence[Sensitivity], drop: Floats, error: Floats, uniform: Mapping[Precision, Accuracy]) -> Floats:
    """[n] drops that the output noise alone would suggest: by the median ratio of drop to noise over the units whose drop is clear; without such
    units, so that those of a precision add up to the loss of its uniform plan (its standard error, where that loses nothing); without such a plan,
    by the ratio of the errors."""
    share = np.array([noise(s.accuracy) for s in found], float)
    known = np.isfinite(share) & (share > 0.0)
    share = np.where(known, share, 0.0)
    clear = known & np.isfinite(error) & (drop > 2.0 * error)
    if clear.any():
        return np.asarray(float(np.median(drop[clear] / share[clear])) * share)
    proxy = np.zeros(len(found))
    for p in {s.precision for s in found}:
        of = np.array([s.precision is p for s in found]) & known
        if p in uniform and math.isfinite(uniform[p].drop) and of.any():
            proxy[of] = max(uniform[p].drop, standard_error(uniform[p])) * share[of] / share[of].sum()
        elif (of & np.isfinite(error)).any():
            proxy[of] = float(np.median(error[of] / share[of])) * share[of]
    return proxy


def neighbours(network: Network, space: Space) -> list[Pair]:
    """Pairs (a, b), a < b, of units with a choice where one reads what the other writes, directly or through fixed units."""
    index = {name: i for i, name in enumerate(space.units)}
    after: dict[int, set[int]] = {i: set() for i in range(len(space.units))}
    for tensor, kernel in network.producer.items():
        a = index[network.unit_of_kernel[kernel]]
        after[a] |= {index[network.unit_of_kernel[k]] for k in network.consumers.get(tensor, ())} - {a}
    free = set(space.free)
    found: set[Pair] = set()
    for a in free:
        seen: set[int] = set()
        ahead = list(after[a])
        while ahead:
            b = ahead.pop()
            if b in seen:
                continue
            seen.add(b)
            if b in free:
                found |= {(min(a, b), max(a, b))} - {(a, a)}
            else:
                ahead.extend(after[b])
    return sorted(found)


def suspects(model: LossModel, pairs: Sequence[Pair], codes: Sequence[int], known: set[tuple[int, int, int, int]]) -> list[Pair]:
    """Pairs of which both units lose something at their codes in the plan, not `known`, the ones that matter most alone first."""

    def alone(pair: Pair) -> float:
        return float(max(model.unit[u, codes[u]] for u in pair))

    lowered = [p for p in pairs if (*p, codes[p[0]], codes[p[1]]) not in known and all(model.unit[u, codes[u]] > 0.0 for u in p)]
    return sorted(lowered, key=lambda p: (-alone(p), p))


def probe(space: Space, run: Measure, pair: Pair, at: tuple[Precision, Precision], alone: dict[tuple[int, Precision], Accuracy]) -> Coupling:
    """Both units of `pair` lowered, the rest in float. `alone` holds the two single measurements on the same samples."""
    [both] = run([only(space, dict(zip(pair, at, strict=True)))])
    single = [alone[u, p] for u, p in zip(pair, at, strict=True)]
    error = math.hypot(standard_error(both), *(standard_error(a) for a in single))
    return Coupling(pair, at, both.drop, sum(a.drop for a in single), error)


def least_lossy(space: Space, names: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Codes of the finest precision of every unit."""
    return np.array([list(names).index(str(finest(a))) for a in space.allowed], np.int64)
