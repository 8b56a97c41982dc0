"""How far two machines are apart, and how much of that a prediction leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, sqrt

import numpy as np

from qbench.diagnosis.records import Gap, Tensors
from qbench.protocols import Array


def gap(expected: Array, observed: Array, step: float | None = None) -> Gap:
    """Of two arrays of one shape; where `expected` is not finite nothing is compared."""
    e, o = np.asarray(expected, np.float64).ravel(), np.asarray(observed, np.float64).ravel()
    usable = np.isfinite(e)
    e, o = e[usable], o[usable]
    if not np.isfinite(o).all():
        return Gap(-inf, 0.0, inf, inf, step)
    d = o - e
    noise, signal = float(d @ d), float(e @ e)
    db = inf if noise == 0.0 else -inf if signal == 0.0 else 10.0 * float(np.log10(signal / noise))
    norms = sqrt(signal) * float(np.linalg.norm(o))
    cosine = float(e @ o) / norms if norms else float(signal == float(o @ o))
    return Gap(db, min(cosine, 1.0), float(np.abs(d).max(initial=0.0)), sqrt(noise / max(d.size, 1)), step)


def left(observed: Tensors, predicted: Tensors, clean: Tensors, samples: Sequence[int]) -> float:
    """Energy of observed - predicted over that of observed - clean: 0 where the prediction explains everything.

    What is left may not be most of the observed values themselves either: else a factor of 0 would explain anything small. Tensors count by
    their own energy, so that a large one hides no small one; values that are not finite are left out.
    """
    noise = gap_energy = seen_energy = 0.0
    for name, seen in observed.items():
        d, p, c = (np.asarray(x[name][samples], np.float64) for x in (observed, predicted, clean))
        usable = np.isfinite(d) & np.isfinite(p) & np.isfinite(c)
        lost = np.count_nonzero(np.isfinite(d) & ~np.isfinite(p)) / max(seen.size, 1)
        d, p, c = d[usable], p[usable], c[usable]
        weight = 1.0 / max(float(c @ c), 1e-30)
        before = weight * float((d - c) @ (d - c))
        noise += weight * float((d - p) @ (d - p)) + lost * max(before, 1.0)
        gap_energy += before
        seen_energy += weight * float(d @ d)
    least = min(gap_energy, seen_energy)
    return noise / least if least > 0.0 else (inf if noise else float(gap_energy == 0.0))


def affected(observed: Tensors, clean: Tensors, allowed: Mapping[str, float]) -> list[int]:
    """Samples in which any tensor lies further apart than allowed."""
    count = len(next(iter(observed.values())))
    return [i for i in range(count) if any(gap(clean[t][i], observed[t][i]).rms_error > allowed[t] for t in observed)]


def db_text(value: float) -> str:
    return "equal" if value == inf else f"{value:.1f} dB"


def odd_text(x: Array) -> str:
    """How many values of `x` are not finite."""
    return f"{int(np.isnan(x).sum())} NaN and {int(np.isinf(x).sum())} infinities in {x.size} values"
