"""95 % intervals of a metric, and of the drop between two models on the same samples.

Shares of right samples get closed forms: a bootstrap of rows that are all right has width zero, and says nothing of the next
sample. Everything else is a percentile bootstrap over samples, with the same resamples for every candidate of a search, so that
two candidates differ by their outputs and not by the draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from qbench.metrics.base import Rows
from qbench.protocols import Array, ClassAccuracy, Metric

REPLICATES = 500
Z = 1.959963984540054         # 97.5 % quantile of the normal distribution
CELLS = 4_000_000             # most counts held at a time: 32 MB
CLASSES_KEPT = 32             # of a metric with more classes, those that lost most


def interval(metric: Metric, rows: Array, seed: int = 0) -> tuple[float, float, float]:
    """(value, low, high) of the metric over `rows` [n, k]; low and high are nan for fewer than two samples of a mean.

    Shares: Wilson's score interval. Source: Wilson 1927, JASA 22; Brown, Cai, DasGupta 2001, Statistical Science 16(2), recommends it.
    Others: percentile bootstrap, widened to hold the value. Source: Efron and Tibshirani 1993, chapter 13.
    """
    value = metric.value(rows)
    hits = _hits(metric, rows)
    if hits is not None:
        return (value, *wilson(int(hits.sum()), len(hits)))
    return (value, *_percentiles(_replicates(metric, (rows,), seed)[0], value, len(rows)))


def paired_drop(metric: Metric, rows_float: Array, rows_quantized: Array, seed: int = 0) -> tuple[float, float, float]:
    """(drop, low, high): the float model's value minus the quantized one's on the same samples; positive is a loss.

    Shares: adjusted Wald interval for paired proportions, which stays honest when no sample changes sides.
    Source: Bonett and Price 2012, J. Educational and Behavioral Statistics 37(4).
    Others: paired percentile bootstrap: both models on the same resample.
    """
    if len(rows_float) != len(rows_quantized):
        raise ValueError(f"paired rows: {len(rows_float)} and {len(rows_quantized)}")
    drop = metric.value(rows_float) - metric.value(rows_quantized)
    before, after = _hits(metric, rows_float), _hits(metric, rows_quantized)
    if before is not None and after is not None:
        return (drop, *paired_shares(int((before & ~after).sum()), int((after & ~before).sum()), len(before)))
    a, b = _replicates(metric, (rows_float, rows_quantized), seed)
    return (drop, *_percentiles(a - b, drop, len(rows_float)))


def by_class(metric: Metric, rows_float: Array, rows_quantized: Array, seed: int = 0) -> tuple[ClassAccuracy, ...]:
    """The metric of each class and its paired drop, in the metric's order; empty for a metric without classes.

    A class that the samples do not hold is left out. Of more than CLASSES_KEPT classes those with the largest drop are kept.
    """
    ask: Callable[[Array], Mapping[str, Array]] = getattr(metric, "of_classes", lambda rows: {})
    before, after = ask(rows_float), ask(rows_quantized)
    found = []
    for name in before.keys() & after.keys():
        drop, drop_low, drop_high = paired_drop(metric, before[name], after[name], seed)
        found.append(ClassAccuracy(name, *interval(metric, after[name], seed), drop, drop_low, drop_high, len(after[name])))
    present = {c.name: c for c in found if np.isfinite(c.drop)}
    worst = sorted(present.values(), key=lambda c: (-c.drop, c.name))[:CLASSES_KEPT]
    return tuple(c for name in before if (c := present.get(name)) is not None and c in worst)


def wilson(right: int, count: int) -> tuple[float, float]:
    """95 % score interval of a share."""
    share, z2 = right / count, Z * Z
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z / (1 + z2 / count) * np.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    return max(0.0, float(min(middle - half, share))), min(1.0, float(max(middle + half, share)))


def paired_shares(lost: int, won: int, count: int) -> tuple[float, float]:
    """95 % interval of (lost - won) / count, where `lost` samples turned wrong and `won` turned right."""
    down, up = (lost + 1) / (count + 2), (won + 1) / (count + 2)
    middle = down - up
    half = Z * np.sqrt((down + up - middle * middle) / (count + 2))
    drop = (lost - won) / count
    return max(-1.0, float(min(middle - half, drop))), min(1.0, float(max(middle + half, drop)))


def _hits(metric: Any, rows: Array) -> Array | None:
    """Right or wrong per sample; None when the metric is no share, or comes from elsewhere and does not say."""
    ask = getattr(metric, "hits", None)
    return None if ask is None else ask(rows)


def _percentiles(replicates: Rows, value: float, samples: int) -> tuple[float, float]:
    kept = replicates[np.isfinite(replicates)]
    if samples < 2 or not len(kept):
        return float("nan"), float("nan")
    low, high = np.percentile(kept, (2.5, 97.5))
    return float(np.fmin(low, value)), float(np.fmax(high, value))


def _replicates(metric: Any, several: tuple[Array, ...], seed: int) -> list[Rows]:
    """The metric of each of `several` under the same REPLICATES resamples."""
    n = len(several[0])
    if not hasattr(metric, "weighted"):                          # a third party's metric: only `value` is promised
        draws = np.random.default_rng(seed).integers(0, n, (REPLICATES, n))
        return [np.array([metric.value(rows[d]) for d in draws]) for rows in several]
    parts = [[metric.weighted(rows, counts) for rows in several] for counts in _counts(n, seed)]
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def _counts(n: int, seed: int) -> Iterator[Rows]:
    """How often each of `n` samples occurs in each resample, float64 [b, n], in slices of at most CELLS counts."""
    if n * REPLICATES <= CELLS:
        yield _drawn(n, REPLICATES, seed)
        return
    at_once = max(1, CELLS // n)
    for first in range(0, REPLICATES, at_once):
        yield _draw(n, min(at_once, REPLICATES - first), np.random.default_rng([seed, first]))


@lru_cache(maxsize=4)
def _drawn(n: int, count: int, seed: int) -> Rows:
    counts = _draw(n, count, np.random.default_rng(seed))
    counts.setflags(write=False)                                 # shared between callers
    return counts


def _draw(n: int, count: int, rng: np.random.Generator) -> Rows:
    cell = rng.integers(0, n, (count, n)) + n * np.arange(count)[:, None]
    return np.bincount(cell.ravel(), minlength=count * n).reshape(count, n).astype(np.float64)
