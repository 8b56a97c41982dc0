"""The compiled loops of the calibrators. Importing this module imports numba: only a calibrator that needs it does, when asked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_BUCKETS = 8192
_NOISE = 1e-9       # share of the sum of squares below which two errors are not told apart: far above the rounding of running sums


@njit(nogil=True, cache=True)
def cross_entropy(mass: Any, filled: Any, first: Any, last: Any, levels: int, left: Any, right: Any) -> Any:
    """Sum over the bins of P * log(Q), before normalising, float64 [candidates]; see `kl`.

    mass, filled   running sums over the bins of their counts and of how many are not empty, float64 [bins + 1]
    first, last    bins [first, last) of each candidate, ascending in width; `levels` bins or more
    left, right    what each candidate clips, moved to its end bins, float64 [candidates]

    All candidates together cut the bins into few different groups (a start and one of a dozen widths), so the terms of
    the inner groups, each with a logarithm, come from a table.
    """
    found = np.empty(first.size)
    terms = _group_terms(mass, filled, (last[-1] - first[-1]) // levels + 1)
    for c in range(first.size):
        width, more = divmod(last[c] - first[c], levels)
        at, part, total = first[c], 0, 0.0
        for group in range(levels):
            size = width
            part += more
            if part >= levels:
                part -= levels
                size += 1
            if 0 < group < levels - 1:
                total += terms[size, at]
            else:
                total += _end_term(mass, filled, at, at + size, left[c] if group == 0 else 0.0, right[c] if group == levels - 1 else 0.0)
            at += size
        found[c] = total
    return found


@njit(nogil=True, cache=True)
def _group_terms(mass: Any, filled: Any, widest: int) -> Any:
    """q * log(q / non-empty bins) of the group of `width` bins from bin a, float64 [widest + 1, bins]."""
    bins = mass.size - 1
    terms = np.zeros((widest + 1, bins))
    for width in range(1, widest + 1):
        for a in range(bins - width + 1):
            q = mass[a + width] - mass[a]
            if q > 0:
                terms[width, a] = q * np.log(q / (filled[a + width] - filled[a]))
    return terms


@njit(nogil=True, cache=True)
def _end_term(mass: Any, filled: Any, a: int, b: int, left: float, right: float) -> float:
    """The term of a group that also takes clipped values, into an end bin that may have been empty."""
    q, bins = mass[b] - mass[a], filled[b] - filled[a]
    bins += left > 0 and filled[a + 1] == filled[a]
    bins += right > 0 and filled[b] == filled[b - 1]
    p = q + left + right
    q = max(q, min(p, 0.5))             # a bin of P that Q leaves empty counts as half a value
    return p * np.log(q / bins) if p > 0 else 0.0


@njit(nogil=True, cache=True)
def squared_errors(x: Any, sums: Any, starts: Any, low: Any, high: Any, levels: int) -> Any:
    """Sum of squared errors when each value goes to its nearest level, float64 [candidates]; see `mse`.

    x          centres of the cells, ascending, float64 [cells]
    sums       running sums of counts * x**k, k = 0..2, float64 [3, cells + 1]
    starts     of `buckets(x)`
    low, high  the candidate ranges, from narrow to wide. Infinity for one that is worse than a wider one by what it clips alone
    """
    found = np.empty(low.size)
    least = np.inf
    for c in range(low.size - 1, -1, -1):
        step = (high[c] - low[c]) / (levels - 1)
        zero = np.rint(-low[c] / step)
        bottom, top = -zero * step, (levels - 1 - zero) * step
        at, end = _find(x, starts, bottom), _find(x, starts, top)
        error = _about(sums, 0, at, bottom) + _about(sums, end, x.size, top)
        if error > least + _NOISE * sums[2, -1]:
            found[c] = np.inf
            continue
        for k in range(levels):
            cut = end if k == levels - 1 else min(_find(x, starts, (k - zero + 0.5) * step), end)
            if cut > at:
                error += _about(sums, at, cut, (k - zero) * step)
                at = cut
        found[c] = error
        least = min(least, error)
    return found


@njit(nogil=True, cache=True)
def buckets(x: Any) -> Any:
    """Where the values of each of even parts of [x[0], x[-1]] begin in `x`, int64 [parts + 1]."""
    starts = np.zeros(_BUCKETS + 1, np.int64)
    for i in range(x.size):
        starts[_bucket(x, x[i]) + 1] += 1
    for i in range(_BUCKETS):
        starts[i + 1] += starts[i]
    return starts


@njit(nogil=True, cache=True)
def _bucket(x: Any, value: float) -> int:
    wide = x[-1] - x[0]
    return min(max(int((value - x[0]) / wide * _BUCKETS), 0), _BUCKETS - 1) if wide > 0 else 0


@njit(nogil=True, cache=True)
def _find(x: Any, starts: Any, value: float) -> int:
    """The first place of `x` that is not below `value`; x.size when all are."""
    b = _bucket(x, value)
    a, z = starts[b], starts[b + 1]
    while a < z:
        middle = (a + z) // 2
        if x[middle] < value:
            a = middle + 1
        else:
            z = middle
    return a


@njit(nogil=True, cache=True)
def _about(sums: Any, first: int, last: int, about: float) -> float:
    """Sum of (x - about)**2 over the cells from `first` up to `last`."""
    return ((sums[2, last] - sums[2, first]) - 2 * about * (sums[1, last] - sums[1, first])
            + about * about * (sums[0, last] - sums[0, first]))
