"""A model of the accuracy that a plan loses: one term per unit and precision, one per coupled pair, learnt from real evaluations.

    loss(plan) = max(0, sum over units u of unit[u, p_u] + sum over pairs (a, b) of pair[a, b][p_a, p_b])

Unit terms start as sensitivities: the loss when only that unit is lowered. That losses add up is an assumption; where real
plans disagree, `refit` moves the terms, and terms of pairs (of either sign) take what no sum of units can say.
Source: additive model: Yao et al. 2021, HAWQ-V3 (arXiv 2011.10680), section 3.4; Bayesian view of the update: Bishop 2006, section 3.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from qbench.search.space import Codes

Floats = NDArray[np.float64]
Pair = tuple[int, int]

TRUST = 0.1
"""Share of a measured loss that the model need not explain: a plan that loses 20 points says little about tenths of a point."""


@dataclass(frozen=True)
class Observations:
    """Real evaluations. codes int64 [n, units]; loss and its standard error [n]."""

    codes: Codes
    loss: Floats
    error: Floats


@dataclass(frozen=True)
class LossModel:
    """unit   float64 [units, precisions]; 0 for the least lossy precision of a unit
    error     float64 [units, precisions], how far each term may be off (standard deviation)
    pairs     (a, b) with a < b -> float64 [precisions, precisions]; 0 where either unit has its least lossy precision
    probed    (a, b, p, q) -> standard error of a pair term that was measured
    """

    unit: Floats
    error: Floats
    pairs: Mapping[Pair, Floats] = field(default_factory=dict)
    probed: Mapping[tuple[int, int, int, int], float] = field(default_factory=dict)

    def raw(self, codes: Codes) -> Floats:
        """[n] sums for `codes` [n, units], not clipped."""
        codes = np.atleast_2d(codes)
        total: Floats = self.unit[np.arange(codes.shape[1]), codes].sum(axis=1)
        for (a, b), term in self.pairs.items():
            total = total + term[codes[:, a], codes[:, b]]
        return total

    def predict(self, codes: Codes) -> Floats:
        """[n] predicted losses for `codes` [n, units], at least 0."""
        return np.maximum(self.raw(codes), 0.0)

    def with_pairs(self, pairs: Sequence[Pair]) -> LossModel:
        """The same model, able to learn these pairs too."""
        p = self.unit.shape[1]
        ordered = {(min(pair), max(pair)): np.zeros((p, p)) for pair in pairs}
        return replace(self, pairs={**ordered, **self.pairs})

    def with_probe(self, pair: Pair, at: tuple[int, int], value: float, error: float) -> LossModel:
        """The same model with the measured term `value` for `pair` (a < b) at the codes `at`."""
        term = self.pairs[pair].copy() if pair in self.pairs else np.zeros((self.unit.shape[1],) * 2)
        term[at] = value
        return replace(self, pairs={**self.pairs, pair: term}, probed={**self.probed, (*pair, *at): error})


@dataclass(frozen=True)
class _Term:
    """One column of the regression: unit `a` at code `p`, or a pair of them."""

    a: int
    p: int
    b: int = -1
    q: int = -1

    def column(self, codes: Codes) -> Floats:
        on = codes[:, self.a] == self.p
        if self.b >= 0:
            on = on & (codes[:, self.b] == self.q)
        column: Floats = np.asarray(on, np.float64)
        return column


def _terms(model: LossModel, allowed: Sequence[Sequence[int]], base: Codes) -> list[_Term]:
    """Every free term: those that involve a unit at its least lossy code stay 0."""
    lossy = [[p for p in options if p != base[u]] for u, options in enumerate(allowed)]
    units = [_Term(u, p) for u, options in enumerate(lossy) for p in options]
    pairs = [_Term(a, p, b, q) for a, b in model.pairs for p in lossy[a] for q in lossy[b]]
    return units + pairs


@dataclass(frozen=True)
class Posterior:
    """What is known of the terms: values [n] and a square root of their covariance [n, n], bounds left aside."""

    prior: LossModel
    terms: Sequence[_Term]
    mean: Floats
    spread: Floats

    def model(self, values: Floats) -> LossModel:
        """The prior with these values of the terms; unit terms below 0 count as 0."""
        unit, pairs = self.prior.unit.copy(), {k: v.copy() for k, v in self.prior.pairs.items()}
        for t, value in zip(self.terms, values, strict=True):
            if t.b < 0:
                unit[t.a, t.p] = max(value, 0.0)
            else:
                pairs[t.a, t.b][t.p, t.q] = value
        return replace(self.prior, unit=unit, pairs=pairs)


def posterior(prior: LossModel, seen: Observations, allowed: Sequence[Sequence[int]], base: Codes, floor: float) -> Posterior | None:
    """The terms as `refit` finds them, with their covariance; None where there is nothing to learn."""
    found = _solved(prior, seen, allowed, base, floor)
    if found is None:
        return None
    terms, rows, values = found
    return Posterior(prior, terms, values, np.linalg.inv(np.linalg.qr(rows, mode="r")))


def refit(prior: LossModel, seen: Observations, allowed: Sequence[Sequence[int]], base: Codes, floor: float) -> LossModel:
    """The model that balances `prior` against `seen` by their errors.

    allowed  codes that each unit may take;  base  int64 [units], the least lossy code of each
    floor    smallest standard error that anything is given, in units of loss
    Unit terms stay at least 0, pair terms are free in sign: bounded linear least squares on
    sum ((y - Xt) / s)^2 + sum ((t - t0) / s0)^2, s = standard error joined with TRUST times the loss itself.
    """
    found = _solved(prior, seen, allowed, base, floor)
    return prior if found is None else Posterior(prior, found[0], found[2], np.zeros((0, 0))).model(found[2])


def _solved(prior: LossModel, seen: Observations, allowed: Sequence[Sequence[int]], base: Codes, floor: float) -> tuple[list[_Term], Floats, Floats] | None:
    """The terms, the rows of the least-squares problem and its solution; None without terms or observations."""
    from scipy.optimize import lsq_linear

    terms = _terms(prior, allowed, base) if len(seen.loss) else []
    if not terms:
        return None
    start = np.array([prior.unit[t.a, t.p] if t.b < 0 else prior.pairs[t.a, t.b][t.p, t.q] for t in terms])
    width = np.array([max(_width(prior, t), floor) for t in terms])
    error = np.hypot(np.maximum(seen.error, floor), TRUST * np.abs(seen.loss))
    design = np.column_stack([t.column(seen.codes) for t in terms])
    rows = np.vstack([design / error[:, None], np.diag(1.0 / width)])
    goal = np.concatenate([seen.loss / error, start / width])
    low = np.array([0.0 if t.b < 0 else -np.inf for t in terms])
    found = lsq_linear(rows, goal, bounds=(low, np.full(len(terms), np.inf)), method="bvls", tol=1e-12).x
    return terms, rows, found


def _width(model: LossModel, t: _Term) -> float:
    """How far a term may move: by its error if it was measured; a pair that was not, by what its larger unit loses alone."""
    if t.b < 0:
        return float(model.error[t.a, t.p])
    if (t.a, t.b, t.p, t.q) in model.probed:
        return model.probed[t.a, t.b, t.p, t.q]
    return float(max(model.unit[t.a, t.p], model.unit[t.b, t.q], model.error[t.a, t.p], model.error[t.b, t.q]))
