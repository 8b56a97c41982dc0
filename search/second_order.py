"""Sensitivities foreseen from curvature instead of measured: the prior of the loss model at the price of a few passes.

    increase(unit, precision) = 1/2 E[(g . d)^2]

over samples, g being the gradient of the task loss with respect to what the unit writes and d the error that the unit alone makes there in
integers. E[g g^T] is the Fisher information, which stands for the Hessian. Such figures order the units of one precision; their unit is that
of the task loss. So each precision is scaled until its increases sum up to what its uniform plan really loses.
Source: empirical Fisher instead of the Hessian, additive over layers: Yao et al. 2021, HAWQ-V3 (arXiv 2011.10680), section 3.4;
Kim et al. 2021 (ICLR, BRECQ, arXiv 2102.05426), section 3.2; that it orders plans well: Zandonati et al. 2022, FIT (arXiv 2210.08502).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from qbench.network import Precision
from qbench.plan import Plan
from qbench.protocols import Accuracy
from qbench.search.loss import LossModel
from qbench.search.sensitivity import SIGMAS, Sensitivity, standard_error
from qbench.search.space import Space

MODEL_ERROR = 1.0
"""How far a foreseen drop may be off, as a share of itself: a quadratic form is no measurement."""


@dataclass(frozen=True, slots=True)
class Increase:
    """Expected increase of the task loss with only `unit` (an index) in `precision`, with its standard error over `samples` samples."""

    unit: int
    precision: Precision
    mean: float
    error: float
    samples: int


class Curvature(Protocol):
    """Finds the increases of all units of uniform plans.

    passes   what the last call cost, in passes of the float model over the evaluation set
    """

    passes: float

    def __call__(self, uniform: Mapping[Precision, Plan]) -> list[Increase]: ...


def increases(first_order: Mapping[tuple[int, Precision], np.ndarray[tuple[int], np.dtype[np.float64]]]) -> list[Increase]:
    """From g . d, one value a sample, of every unit and precision."""
    found = []
    for (unit, precision), change in first_order.items():
        half = 0.5 * np.square(change)
        error = float(half.std(ddof=1)) / math.sqrt(len(half)) if len(half) > 1 else float(half.mean())
        found.append(Increase(unit, precision, float(half.mean()), error, len(half)))
    return found


def foreseen(space: Space, found: Sequence[Increase], uniform: Mapping[Precision, Accuracy]) -> list[Sensitivity]:
    """`found` as drops of the metric: those of one precision add up to the drop of its uniform plan.

    uniform   accuracy of the plan with every unit in that precision. One that loses nothing for certain is taken to lose its standard
              error, so that the order of its units counts for something. A precision without one is scaled as the other ones are in the mean.
    """
    sums = {p: sum(i.mean for i in found if i.precision is p and p in space.allowed[i.unit]) for p in {i.precision for i in found}}
    ratios = {p: max(a.drop, standard_error(a), 1e-6) / sums[p] for p, a in uniform.items() if sums.get(p, 0.0) > 0.0}
    usual = float(np.mean(list(ratios.values()))) if ratios else 0.0
    rows = []
    for i in sorted(found, key=lambda i: (i.unit, i.precision)):
        if i.precision not in space.allowed[i.unit]:
            continue
        ratio = ratios.get(i.precision, usual)
        drop, error = ratio * i.mean, SIGMAS * ratio * i.error
        about = uniform.get(i.precision) or next(iter(uniform.values()))
        value = about.value + about.drop - drop
        rows.append(Sensitivity(i.unit, i.precision, Accuracy(
            about.metric, value, value - error, value + error, i.samples, drop, max(drop - error, 0.0), drop + error, math.nan, math.nan, math.nan, 0.0)))
    return rows


def prior(space: Space, names: Sequence[str], rows: Sequence[Sensitivity]) -> LossModel:
    """The additive model of foreseen drops, `names` being the pricer's precisions; each term may be off by MODEL_ERROR of itself."""
    unit = np.zeros((len(space.units), len(names)))
    floor = max(0.1 * float(np.median([s.accuracy.drop for s in rows])), 1e-6) if rows else 1e-6
    error = np.full_like(unit, floor)
    for s in rows:
        at = s.unit, list(names).index(str(s.precision))
        unit[at] = s.accuracy.drop
        error[at] = max(floor, math.hypot(standard_error(s.accuracy), MODEL_ERROR * s.accuracy.drop))
    return LossModel(unit, error)
