"""Sums over one tensor's channels while the samples go by, and the errors that follow from them."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from qbench.analysis.records import Error, capped
from qbench.metrics.fidelity import cosine, sqnr_db
from qbench.protocols import Array
from qbench.walk import Values

Sums = NDArray[np.float64]
"""[channels, 8]: float^2, quantized^2, float * quantized, error^2, values not zero in float, those of them exactly zero in the
quantized tensor; and the largest magnitudes, float and quantized."""
_ADDED = 6


def comparable(tensor: str, *runs: Values) -> bool:
    """Whether a tensor has one shape in all runs and, but for the samples, in all chunks: some depend on the values, as what NonZero finds."""
    first, *others = runs
    alike = all(a[tensor].shape == b[tensor].shape for run in others for a, b in zip(first, run, strict=True))
    return alike and len({chunk[tensor].shape[1:] for chunk in first}) == 1 and all(c[tensor].dtype.kind in "fiub" for r in runs for c in r)


def channel_sums(reference: Array, output: Array, axis: int | None) -> Sums:
    """The sums of one chunk; one row when `axis` is None. Values where the reference is not finite are left out."""
    from qbench.analysis.compiled import add_sums

    r, o = (_by_channel(x, axis) for x in (reference, output))
    found = np.zeros((r.shape[1], 8))
    add_sums(r, o, found)
    if not np.isfinite(found[:, 0]).all():
        bad = ~np.isfinite(r)
        found[:] = 0.0
        add_sums(np.where(bad, np.float32(0), r), np.where(bad, np.float32(0), o), found)
    return found


def _by_channel(values: Array, axis: int | None) -> Array:
    """[samples, channels, values of a channel], float32, contiguous."""
    values = values.astype(np.float32, copy=False)
    if axis is None:
        return np.ascontiguousarray(values.reshape(1, 1, -1))
    moved = np.ascontiguousarray(np.moveaxis(values, axis, 1))
    return moved.reshape(*moved.shape[:2], prod(moved.shape[2:]))


def joined(one: Sums | None, two: Sums) -> Sums:
    """The sums of both."""
    if one is None:
        return two
    return np.concatenate([one[:, :_ADDED] + two[:, :_ADDED], np.maximum(one[:, _ADDED:], two[:, _ADDED:])], axis=1)


def error_of(sums: Sums) -> Error:
    """The error over all rows of `sums` together."""
    total = sums[:, :_ADDED].sum(axis=0)
    alive = float(total[4])
    return Error(capped(float(sqnr_db(total[0], total[3]))), float(cosine(total[:4])), float(total[5]) / alive if alive else 0.0)


def channel_db(sums: Sums) -> tuple[float, ...]:
    """SQNR of each row; two decimals are more than a reader sees."""
    return tuple(round(capped(float(v)), 2) for v in sqnr_db(sums[:, 0], sums[:, 3]))


def dead_channels(sums: Sums) -> tuple[int, ...]:
    """Rows that are zero throughout in the quantized tensor and not in float."""
    return tuple(int(i) for i in np.flatnonzero((sums[:, 6] > 0) & (sums[:, 7] == 0)))
