"""The compiled loops of `kl`. Importing this module imports numba: only a calibrator that needs it does, when asked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_NOISE = 1e-9       # a candidate is left out when it is worse by more than this: far above the rounding of running sums


@njit(nogil=True, cache=True)
def divergences(mass: Any, filled: Any, first: Any, last: Any, levels: int, own: Any, floors: Any) -> Any:
    """Kullback-Leibler divergences, float64 [candidates]; see `kl`.

    mass, filled   running sums over the bins of their counts and of how many are not empty, float64 [bins + 1]
    first, last    bins [first, last) of each candidate, ascending in width; `levels` bins or more
    own            the part of each divergence that does not depend on Q, float64 [candidates]
    floors         what each divergence is at least. Infinity for a candidate that is worse than a wider one by this alone,
                   or keeps no value

    All candidates together cut the bins into few different groups (a start and one of a dozen widths), so the terms of
    the inner groups, each with a logarithm, come from a table, made as far as it is needed.
    """
    found, least = np.full(first.size, np.inf), np.inf
    bins, widest = mass.size - 1, (last[-1] - first[-1]) // levels + 1
    terms, made = np.zeros((widest + 1, bins)), np.zeros(widest + 1, np.bool_)
    for c in range(first.size - 1, -1, -1):
        if mass[last[c]] == mass[first[c]] or floors[c] > least + _NOISE:
            continue
        width, more = divmod(last[c] - first[c], levels)
        for wide in range(width, width + 2 if more else width + 1):
            if not made[wide]:
                _group_terms(mass, filled, wide, terms[wide])
                made[wide] = True
        clipped = mass[first[c]], mass[-1] - mass[last[c]]
        cross = _cross_entropy(mass, filled, first[c], last[c], levels, clipped, terms)
        found[c] = own[c] - cross / mass[-1]
        least = min(least, found[c])
    return found


@njit(nogil=True, cache=True)
def _cross_entropy(mass: Any, filled: Any, first: int, last: int, levels: int, clipped: Any, terms: Any) -> Any:
    """Sum over the bins of P * log(Q), before normalising; `clipped` values below and above go to the end bins."""
    width, more = divmod(last - first, levels)
    if levels == 1:
        return _end_term(mass, filled, first, last, clipped[0], clipped[1])
    at, part, total = first + width, more, 0.0
    for _ in range(1, levels - 1):
        part += more
        size = width
        if part >= levels:
            part -= levels
            size += 1
        total += terms[size, at]
        at += size
    return total + (_end_term(mass, filled, first, first + width, clipped[0], 0.0) + _end_term(mass, filled, at, last, 0.0, clipped[1]))


@njit(nogil=True, cache=True)
def _group_terms(mass: Any, filled: Any, width: int, terms: Any) -> None:
    """Fills terms[a] with q * log(q / non-empty bins) of the group of `width` bins from bin a."""
    for a in range(mass.size - width):
        q = mass[a + width] - mass[a]
        if q > 0:
            terms[a] = q * np.log(q / (filled[a + width] - filled[a]))


@njit(nogil=True, cache=True)
def _end_term(mass: Any, filled: Any, a: int, b: int, left: float, right: float) -> float:
    """The term of a group that also takes clipped values, into an end bin that may have been empty."""
    q, bins = mass[b] - mass[a], filled[b] - filled[a]
    bins += left > 0 and filled[a + 1] == filled[a]
    bins += right > 0 and filled[b] == filled[b - 1]
    p = q + left + right
    q = max(q, min(p, 0.5))             # a bin of P that Q leaves empty counts as half a value
    return p * np.log(q / bins) if p > 0 else 0.0
