"""What is known of one tensor after a pass over the data: a fixed-size sketch that answers every calibrator, and merges.

Exact: count, extremes (also per channel and per sample), zeros, NaN, infinities, float16 overflows. The distribution is a histogram whose cells are at most 2**-10 of their value wide (see `grid`). Merging is commutative and associative: no
answer depends on how the data was cut into batches or shards, nor on the order of merging.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbench.errors import NotObserved
from qbench.statistics.exact import real
from qbench.statistics.grid import Codes, edges

PER_SAMPLE = 1 << 14
"""Samples whose own extremes are kept, the first by index: enough for moving averages, and bounded."""

Counts = NDArray[np.int64]
Reals = NDArray[np.float64]
Singles = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class TensorStatistics:
    """One tensor over all samples. Reals are those of its float32 values; non-finite ones are only counted.

    codes, counts            non-empty cells but those of 0, ascending; see `grid`
    zeros                    values that are 0; a magnitude below 2**-136 (1e-41), too small for any scale, counts as 0
    minimum, maximum         0.0 while count is 0
    low_sample, high_sample  index of the first sample that holds the extreme; -1 while count is 0
    fp16_overflows           values that float16 rounds to infinity (magnitude of 65520 or more)
    total, squares           sum and sum of squares, in units of 2**-1074 (see `exact`). The sums of one sample are float64,
                             relative error below 1e-13 of the sum of magnitudes; those of the samples are added exactly.
    samples, sample_low, sample_high    int64, float32, float32 [samples]: extremes of each of the first PER_SAMPLE samples, by
                             index; a tensor without an axis of samples has one entry a batch. (inf, -inf): none finite.
    sample_second            float32 [samples]: the second largest finite value of each of these samples, of tensors of shape
                             [samples, classes] with two values a sample or more (equal maxima: the maximum; -inf: fewer than
                             two finite). Empty when any sample came in another shape, and in files of before it was kept.
    channel_low, channel_high   float32 [channels] along axis 1 of tensors with three axes or more; empty when there is
                             no such axis or its length varies, None before the first value
    """

    name: str
    codes: Codes
    counts: Counts
    zeros: int = 0
    minimum: float = 0.0
    maximum: float = 0.0
    low_sample: int = -1
    high_sample: int = -1
    nan: int = 0
    positive_inf: int = 0
    negative_inf: int = 0
    fp16_overflows: int = 0
    total: int = 0
    squares: int = 0
    samples: Counts = field(default_factory=lambda: np.empty(0, np.int64))
    sample_low: Singles = field(default_factory=lambda: np.empty(0, np.float32))
    sample_high: Singles = field(default_factory=lambda: np.empty(0, np.float32))
    channel_low: Singles | None = None
    channel_high: Singles | None = None
    sample_second: Singles = field(default_factory=lambda: np.empty(0, np.float32))

    @staticmethod
    def empty(name: str) -> TensorStatistics:
        """Of a tensor that never occurred; the neutral element of `merge`."""
        return TensorStatistics(name, np.empty(0, np.int32), np.empty(0, np.int64))

    @staticmethod
    def of(values: NDArray[np.floating[Any]], name: str = "", first: int = 0) -> TensorStatistics:
        """Of one array whose first axis counts samples, the first of which has index `first`."""
        from qbench.statistics.counter import Counter

        counter = Counter(name)
        counter.update(values, first, len(values) if values.ndim else 1)
        return counter.statistics()

    @cached_property
    def count(self) -> int:
        """Finite values seen."""
        return int(self.counts.sum()) + self.zeros

    @property
    def non_finite(self) -> int:
        return self.nan + self.positive_inf + self.negative_inf

    @property
    def constant(self) -> bool:
        """One value over all the data: a range of no use (BUG case B04)."""
        return self.count > 0 and self.minimum == self.maximum

    @property
    def magnitude(self) -> float:
        return max(abs(self.minimum), abs(self.maximum))

    @property
    def mean(self) -> float:
        self._observed()
        return real(self.total) / self.count

    @property
    def variance(self) -> float:
        """Mean squared distance from the mean; absolute error below 1e-13 of the mean square."""
        self._observed()
        scaled = (self.count * self.squares << 1074) - self.total * self.total
        return max(0.0, real(scaled >> 1074)) / self.count**2

    @cached_property
    def _cells(self) -> tuple[Reals, Reals, Counts]:
        """Lower edge, upper edge and count of the non-empty cells, ascending, zero among them, cut to the extremes."""
        low, high = edges(self.codes)
        counts = self.counts
        if self.zeros:
            at = int(np.searchsorted(self.codes, 0))
            low, high = np.insert(low, at, 0.0), np.insert(high, at, 0.0)
            counts = np.insert(counts, at, self.zeros)
        return np.clip(low, self.minimum, self.maximum), np.clip(high, self.minimum, self.maximum), counts

    @cached_property
    def _before(self) -> Counts:
        """Values in the cells before each cell, int64 [cells + 1]."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self._cells[2])])

    def histogram(self) -> tuple[Reals, Counts]:
        """Centres (ascending, signed) and counts of the non-empty cells; the counts sum to `count`."""
        low, high, counts = self._cells
        return (low + high) / 2, counts

    def below(self, x: Reals) -> Reals:
        """How many finite values are smaller than each x, same shape: exact at cell edges, linear inside a cell."""
        if not self.count:
            return np.zeros(np.shape(x))
        low, high, counts = self._cells
        at = np.searchsorted(low, x, side="left") - 1
        cell = np.maximum(at, 0)
        width = high[cell] - low[cell]
        part = np.divide(x - low[cell], width, out=np.ones(np.shape(x)), where=width > 0)
        return np.where(at < 0, 0.0, self._before[cell] + counts[cell] * np.minimum(part, 1.0))

    def quantile(self, q: float) -> float:
        """The real with a share q of the values at or below it, as numpy's linear method; 0 and 1 give the exact extremes.

        Raises NotObserved if the tensor never occurred.
        """
        self._observed()
        if not 0.0 <= q <= 1.0:
            raise ValueError(f"quantile needs 0 <= q <= 1, got {q}")
        rank = q * (self.count - 1)
        whole = int(rank)
        first = self._ordered(whole)
        return first if whole == rank else first + (rank - whole) * (self._ordered(whole + 1) - first)

    def _ordered(self, rank: int) -> float:
        """The value of that rank, 0 for the smallest, taken as evenly spread inside its cell."""
        if rank <= 0:
            return self.minimum
        if rank >= self.count - 1:
            return self.maximum
        low, high, counts = self._cells
        cell = int(np.searchsorted(self._before, rank, side="right")) - 1
        part = (rank - int(self._before[cell]) + 0.5) / int(counts[cell])
        return float(low[cell] + part * (high[cell] - low[cell]))

    def _observed(self) -> None:
        if not self.count:
            raise NotObserved(f"tensor {self.name!r} was never observed in the calibration data; keep it in float, "
                              "or add samples that reach it")

    def merged(self, other: TensorStatistics) -> TensorStatistics:
        """Statistics of the data of both. The samples of the two must have different indices."""
        if self.name != other.name:
            raise ValueError(f"cannot merge statistics of {self.name!r} with those of {other.name!r}")
        codes, counts = added(self.codes, self.counts, other.codes, other.counts)
        minimum, low_sample = _extreme(self, other, 1)
        maximum, high_sample = _extreme(self, other, -1)
        samples = np.concatenate([self.samples, other.samples])
        order = np.argsort(samples, kind="stable")[:PER_SAMPLE]
        seconds = np.concatenate([self.sample_second, other.sample_second])     # shorter than `samples` when one lacks them
        return TensorStatistics(
            self.name, codes, counts, self.zeros + other.zeros, minimum, maximum, low_sample, high_sample,
            self.nan + other.nan, self.positive_inf + other.positive_inf, self.negative_inf + other.negative_inf,
            self.fp16_overflows + other.fp16_overflows, self.total + other.total, self.squares + other.squares,
            samples[order],
            np.concatenate([self.sample_low, other.sample_low])[order],
            np.concatenate([self.sample_high, other.sample_high])[order],
            channels(self.channel_low, other.channel_low, np.minimum),
            channels(self.channel_high, other.channel_high, np.maximum),
            seconds[order] if seconds.size == samples.size else np.empty(0, np.float32))


def merge(parts: Iterable[TensorStatistics]) -> TensorStatistics:
    """Statistics of all parts together; the order does not matter. At least one part."""
    return reduce(TensorStatistics.merged, parts)


def channels(one: Singles | None, two: Singles | None, pick: np.ufunc) -> Singles | None:
    """Extremes per channel of both; empty when the number of channels varies: then the axis does not count channels."""
    if one is None or two is None:
        return two if one is None else one
    if one.size != two.size:
        return np.empty(0, np.float32)
    found: Singles = pick(one, two)
    return found


def added(codes: Codes, counts: Counts, more: Codes, add: Counts) -> tuple[Codes, Counts]:
    """Union of two ascending cell lists, counts added."""
    if not codes.size or not more.size:
        return (codes, counts) if codes.size else (more, add)
    order = np.argsort(both := np.concatenate([codes, more]), kind="stable")        # merges two runs, which is fast
    union, numbers = both[order], np.concatenate([counts, add])[order]
    first = np.flatnonzero(np.diff(union, prepend=union[0] - 1))
    return union[first], np.add.reduceat(numbers, first)


def _extreme(one: TensorStatistics, two: TensorStatistics, sign: int) -> tuple[float, int]:
    """(minimum, sample) for sign 1, (maximum, sample) for sign -1; of equal extremes the first sample counts."""
    found = [(s.minimum, s.low_sample) if sign > 0 else (s.maximum, s.high_sample) for s in (one, two) if s.count]
    if not found:
        return 0.0, -1
    return min(found, key=lambda entry: (sign * entry[0], entry[1]))
