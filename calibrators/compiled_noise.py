"""The compiled loops of `noise`. Importing this module imports numba: only a calibrator that needs it does, when asked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_BUCKETS = 8192
_SLACK = 1e-9       # a candidate is left out when it is worse by more than this: far above the rounding of running sums
EXACT_LEVELS = 1024
"""Up to here the error is summed level by level; above, values are even inside a step, which is finer than a cell."""


@njit(nogil=True, cache=True, error_model="numpy")
def squared_errors(x: Any, sums: Any, starts: Any, step: Any, zero: Any, levels: int, clip: float) -> Any:
    """Sum of squared errors when each value goes to its nearest level (k - zero) * step, k = 0..levels - 1, float64 [candidates].

    x           centres of the cells, ascending, float64 [cells]
    sums        `moments(x, counts)`
    starts      `buckets(x)`
    step, zero  float64 [candidates], best from narrow to wide. Infinity for one that is surely worse than a later one
    clip        weight of the errors of values beyond the outermost levels
    """
    found, least, scale = np.empty(step.size), np.inf, _scale(x)
    for c in range(step.size - 1, -1, -1):
        s, z = step[c], zero[c]
        bottom, top = -z * s, (levels - 1 - z) * s
        at, end = _find(x, starts, scale, bottom), _find(x, starts, scale, top)
        error = clip * (_about(sums, 0, at, bottom) + _about(sums, end, x.size, top))
        worst = least + _SLACK * sums[-1, 2]
        if levels > EXACT_LEVELS:
            error += (sums[end, 0] - sums[at, 0]) * s * s / 12
        elif at < end and error <= worst:
            for k in range(max(int(np.rint(x[at] / s + z)), 0), levels):
                cut = end if k == levels - 1 else min(_find(x, starts, scale, (k - z + 0.5) * s), end)
                if cut > at:
                    error += _about(sums, at, cut, (k - z) * s)
                    at = cut
                    if at == end or error > worst:
                        break
        found[c] = error if error <= worst else np.inf
        least = min(least, error)
    return found


@njit(nogil=True, cache=True, error_model="numpy")
def powered_errors(x: Any, sums: Any, starts: Any, step: Any, zero: Any, levels: int, clip: float, power: float, bounds: Any,
                   terms: Any, inner: int) -> Any:
    """As `squared_errors`, with |error|**power from a table: a quadratic on each of several pieces of |error| / step.

    bounds  where the pieces begin, the last one ends beyond all data, float64 [pieces + 1]
    terms   coefficients of 1, e and e**2 on each piece, float64 [pieces, 3]
    inner   pieces up to half a step
    """
    found, least, scale = np.empty(step.size), np.inf, _scale(x)
    slack = _SLACK * sums[-1, 0] * (sums[-1, 2] / sums[-1, 0]) ** (power / 2)
    ends, one, linear, square = np.empty(2 * inner), np.empty(2 * inner), np.empty(2 * inner), np.empty(2 * inner)
    for c in range(step.size - 1, -1, -1):
        s, z = step[c], zero[c]
        unit = s**power
        bottom, top = -z * s, (levels - 1 - z) * s
        at, end = _find(x, starts, scale, bottom), _find(x, starts, scale, top)
        error = clip * (_clipped(x, sums, starts, scale, at, bottom, -s, unit, bounds, terms)
                        + _clipped(x, sums, starts, scale, end, top, s, unit, bounds, terms))
        worst = least + slack
        if levels > EXACT_LEVELS:
            error += (sums[end, 0] - sums[at, 0]) * unit / (2.0**power * (power + 1))
        elif at < end and error <= worst:
            for j in range(2 * inner):                  # the pieces about a level, from half a step below it to half a step above
                i = inner - 1 - j if j < inner else j - inner
                ends[j] = (-bounds[i] if j < inner else bounds[i + 1]) * s
                one[j], linear[j], square[j] = terms[i, 0] * unit, terms[i, 1] * unit / s, terms[i, 2] * unit / (s * s)
                if j < inner:
                    linear[j] = -linear[j]
            for k in range(max(int(np.rint(x[at] / s + z)), 0), levels):
                level = (k - z) * s
                for j in range(2 * inner):
                    cut = end if k == levels - 1 and j == 2 * inner - 1 else min(_find(x, starts, scale, level + ends[j]), end)
                    if cut > at:
                        number, first, second = sums[cut, 0] - sums[at, 0], sums[cut, 1] - sums[at, 1], sums[cut, 2] - sums[at, 2]
                        away = first - level * number
                        error += number * one[j] + away * linear[j] + (second - level * (first + away)) * square[j]
                        at = cut
                if at == end or error > worst:
                    break
        found[c] = error if error <= worst else np.inf
        least = min(least, error)
    return found


@njit(nogil=True, cache=True, error_model="numpy")
def _clipped(x: Any, sums: Any, starts: Any, scale: float, at: int, level: float, step: float, unit: float, bounds: Any,
             terms: Any) -> float:
    """Sum of |x - level|**power over the cells from `at` on; for a negative step over those before it."""
    total = 0.0
    for j in range(bounds.size - 1):
        if at == (x.size if step > 0 else 0):
            break
        cut = _find(x, starts, scale, level + bounds[j + 1] * step)
        first, last = min(at, cut), max(at, cut)
        number = sums[last, 0] - sums[first, 0]
        away = (sums[last, 1] - sums[first, 1]) - number * level
        total += number * terms[j, 0] + away / step * terms[j, 1] + _about(sums, first, last, level) / (step * step) * terms[j, 2]
        at = cut
    return total * unit


@njit(nogil=True, cache=True, error_model="numpy")
def kept(high: Any, second: Any, step: Any, zero: Any, levels: int) -> Any:
    """How often the code of `high` lies above the code of `second`, both float64 [samples], int64 [candidates]."""
    found = np.zeros(step.size, np.int64)
    for c in range(step.size):
        s, z, last = step[c], zero[c], levels - 1.0
        for i in range(high.size):
            one, two = min(np.rint(high[i] / s) + z, last), min(np.rint(second[i] / s) + z, last)
            found[c] += one > max(two, 0.0)
    return found


@njit(nogil=True, cache=True, error_model="numpy")
def moments(x: Any, counts: Any) -> Any:
    """Running sums of counts * x**k, k = 0..2, float64 [cells + 1, 3]: the three lie together, as they are asked for together."""
    sums = np.zeros((x.size + 1, 3))
    for i in range(x.size):
        n, v = counts[i], x[i]
        sums[i + 1, 0] = sums[i, 0] + n
        sums[i + 1, 1] = sums[i, 1] + n * v
        sums[i + 1, 2] = sums[i, 2] + n * v * v
    return sums


@njit(nogil=True, cache=True, error_model="numpy")
def buckets(x: Any) -> Any:
    """Where the values of each of even parts of [x[0], x[-1]] begin in `x`, int64 [parts + 1]."""
    starts, scale = np.zeros(_BUCKETS + 1, np.int64), _scale(x)
    for i in range(x.size):
        starts[_bucket(x, scale, x[i]) + 1] += 1
    for i in range(_BUCKETS):
        starts[i + 1] += starts[i]
    return starts


@njit(nogil=True, cache=True, error_model="numpy")
def _scale(x: Any) -> Any:
    wide = x[-1] - x[0]
    return _BUCKETS / wide if wide > 0 else 0.0


@njit(nogil=True, cache=True, error_model="numpy")
def _bucket(x: Any, scale: float, value: float) -> Any:
    return int(min(max((value - x[0]) * scale, 0.0), _BUCKETS - 1.0))


@njit(nogil=True, cache=True, error_model="numpy")
def _find(x: Any, starts: Any, scale: float, value: float) -> Any:
    """The first place of `x` that is not below `value`; x.size when all are."""
    b = _bucket(x, scale, value)
    a, z = starts[b], starts[b + 1]
    while a < z:
        middle = (a + z) // 2
        if x[middle] < value:
            a = middle + 1
        else:
            z = middle
    return a


@njit(nogil=True, cache=True, error_model="numpy")
def _about(sums: Any, first: int, last: int, about: float) -> Any:
    """Sum of (x - about)**2 over the cells from `first` up to `last`."""
    return ((sums[last, 2] - sums[first, 2]) - 2 * about * (sums[last, 1] - sums[first, 1])
            + about * about * (sums[last, 0] - sums[first, 0]))
