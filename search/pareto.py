"""Pareto front and hypervolume. Every objective is minimised; flip signs at the edge.

Source: Zitzler and Thiele 1998 (PPSN V), the S metric; slicing objectives: While et al. 2006 (IEEE TEC 10:1), section II.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def _points(points: ArrayLike) -> NDArray[np.float64]:
    array: NDArray[np.float64] = np.asarray(points, np.float64)
    if array.size == 0:
        return array.reshape(0, array.shape[-1] if array.ndim == 2 else 1)
    if array.ndim != 2:
        raise ValueError(f"points must be [n, objectives], got shape {array.shape}")
    return array


def non_dominated(points: ArrayLike) -> NDArray[np.bool_]:
    """True for each row of `points` [n, objectives] that no other row dominates.

    Equal rows do not dominate one another: all of them stay. A row with NaN is never on the front.
    """
    x = _points(points)
    valid: NDArray[np.bool_] = np.asarray(~np.isnan(x).any(axis=1), np.bool_)
    keep: NDArray[np.bool_] = valid.copy()
    candidates = x[valid]
    for i in np.flatnonzero(valid):
        no_worse = (candidates <= x[i]).all(axis=1)
        better = (candidates < x[i]).any(axis=1)
        keep[i] = not bool((no_worse & better).any())
    return keep


def front(points: ArrayLike) -> NDArray[np.intp]:
    """Rows of the non-dominated points, ascending by objective (first, then second, ...); of equal rows only the first."""
    x = _points(points)
    rows = np.flatnonzero(non_dominated(x))
    order = np.lexsort((rows, *(x[rows, k] for k in range(x.shape[1] - 1, -1, -1))))
    rows = rows[order]
    first = np.ones(len(rows), bool)
    if len(rows) > 1:
        first[1:] = (x[rows[1:]] != x[rows[:-1]]).any(axis=1)
    return rows[first]


def hypervolume(points: ArrayLike, reference: ArrayLike) -> float:
    """Volume that `points` [n, objectives] dominate up to `reference` [objectives]. Exact, any number of objectives.

    Points that do not lie below the reference in every objective add nothing.
    """
    ref: NDArray[np.float64] = np.asarray(reference, np.float64)
    x = _points(points)
    if len(x) == 0:
        return 0.0
    if x.shape[1:] != ref.shape:
        raise ValueError(f"reference has {ref.size} objectives, the points have {x.shape[1]}")
    x = x[(x < ref).all(axis=1)]
    return _volume(x[front(x)], ref) if len(x) else 0.0


def _volume(x: NDArray[np.float64], ref: NDArray[np.float64]) -> float:
    """Hypervolume of a non-empty set below `ref`: slices along the last objective, each of one objective less."""
    if x.shape[1] == 1:
        return float(ref[0] - x.min())
    if x.shape[1] == 2:
        return _area(x, ref)
    x = x[np.argsort(x[:, -1], kind="stable")]
    edges: NDArray[Any] = np.append(x[1:, -1], ref[-1])
    total = 0.0
    for k, (low, high) in enumerate(zip(x[:, -1], edges, strict=True)):
        if high > low:
            slab = x[: k + 1, :-1]
            total += float(high - low) * _volume(slab[front(slab)], ref[:-1])
    return total


def _area(x: NDArray[np.float64], ref: NDArray[np.float64]) -> float:
    """Two objectives: a staircase, swept by the first."""
    x = x[np.lexsort((x[:, 1], x[:, 0]))]
    lowest = np.minimum.accumulate(x[:, 1])
    widths = np.append(x[1:, 0], ref[0]) - x[:, 0]
    return float(np.sum(widths * (ref[1] - lowest)))
