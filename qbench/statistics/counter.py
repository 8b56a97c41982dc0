"""Counts one tensor while the data goes by: the one mutable thing of the statistics."""

from __future__ import annotations

import mmap
import sys
from array import array
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbench.statistics.exact import units
from qbench.statistics.grid import CELLS, codes
from qbench.statistics.sketch import PER_SAMPLE, Singles, TensorStatistics, added, channels

_LANES = 4
_PITCH = CELLS + 1040           # tables start in different cache sets and at different offsets in a page
_FULL = 1 << 31                 # values after which the 32-bit counters go to the 64-bit list


def _tables() -> NDArray[np.uint32]:
    """uint32 [lanes, cells] of zeros, of which only the pages that are written to will take memory.

    A plain allocation of this size may be backed by huge pages as a whole: 8 MB a tensor in place of less than one.
    """
    size = 4 * _LANES * _PITCH
    if sys.platform == "win32":
        memory = mmap.mmap(-1, size)
    else:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.uint32).reshape(_LANES, _PITCH)


class Counter:
    """Takes the batches of one tensor, from several threads if need be, and gives its TensorStatistics."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = Lock()
        self._tables: NDArray[np.uint32] | None = None
        self._pending = 0                                       # finite values that only the tables hold
        self._codes, self._counts = np.empty(0, np.int32), np.empty(0, np.int64)
        self._counters = np.zeros(4, np.int64)                  # NaN, +Inf, -Inf, float16 overflows
        self._sum = self._squares = 0
        self._low, self._high = (np.inf, -1), (-np.inf, -1)     # extreme, sample
        self._samples, self._lows, self._highs = array("q"), array("f"), array("f")
        self._channel_low: Singles | None = None
        self._channel_high: Singles | None = None

    def update(self, values: NDArray[Any], first: int, samples: int) -> tuple[int, int, int]:
        """Count a float array; returns how many NaN, +Inf and -Inf it held.

        values   any shape; its first axis counts the samples if it is `samples` long, else it counts as one sample
        first    index of the first sample
        """
        if not values.size:
            return 0, 0, 0
        from qbench.statistics import counting

        with np.errstate(over="ignore"):                        # a float64 beyond float32 counts as infinite
            whole = np.ascontiguousarray(values, np.float32)
        by_sample = whole.ndim > 0 and whole.shape[0] == samples
        by_channel = by_sample and whole.ndim >= 3
        rows, axis = samples if by_sample else 1, whole.shape[1] if by_channel else 1
        low, high = np.empty((rows, axis), np.float32), np.empty((rows, axis), np.float32)
        sums = np.empty((rows, 2), np.float64)
        with self._lock:
            if self._tables is None:
                self._tables = _tables()
            before = self._counters.copy()
            counting.count(whole.reshape(rows, axis, -1), low, high, sums, self._tables, self._counters)
            nan, positive, negative = (int(n) for n in (self._counters - before)[:3])
            self._pending += whole.size - nan - positive - negative
            self._note(low + np.float32(0), high + np.float32(0), sums, first, by_channel)      # -0.0 becomes 0.0
            if self._pending > _FULL:
                self._drain()
        return nan, positive, negative

    def _note(self, low: Singles, high: Singles, sums: NDArray[np.float64], first: int, channelled: bool) -> None:
        """Everything but the histogram; low, high float32 [samples, channels]."""
        none = np.empty(0, np.float32)
        self._channel_low = channels(self._channel_low, low.min(axis=0) if channelled else none, np.minimum)
        self._channel_high = channels(self._channel_high, high.max(axis=0) if channelled else none, np.maximum)
        lows, highs = low.min(axis=1), high.max(axis=1)
        least, most = int(np.argmin(lows)), int(np.argmax(highs))
        if lows[least] <= highs[most]:                          # some value was finite
            self._low = min(self._low, (float(lows[least]), first + least))
            self._high = max(self._high, (float(highs[most]), first + most), key=lambda e: (e[0], -e[1]))
            self._sum += sum(units(total) for total in sums[:, 0].tolist())
            self._squares += sum(units(total) for total in sums[:, 1].tolist())
        self._samples.extend(range(first, first + len(lows)))
        self._lows.frombytes(lows.tobytes())
        self._highs.frombytes(highs.tobytes())
        if len(self._samples) > 2 * PER_SAMPLE:
            self._prune()

    def _prune(self) -> None:
        """Sort the extremes of samples by index and keep the first PER_SAMPLE."""
        order = np.argsort(np.array(self._samples), kind="stable")[:PER_SAMPLE]
        self._samples = array("q", np.array(self._samples)[order].tolist())
        self._lows = array("f", np.array(self._lows)[order].tolist())
        self._highs = array("f", np.array(self._highs)[order].tolist())

    def _drain(self) -> None:
        """Move the counts of the tables to the sparse list."""
        from qbench.statistics import counting

        if self._tables is None or not self._pending:
            return
        top = int(np.float32(max(abs(self._low[0]), abs(self._high[0]))).view(np.uint32)) >> 23
        patterns, counts = counting.drain(self._tables, top, self._pending)
        found = codes(patterns)
        order = np.argsort(found)
        self._codes, self._counts = added(self._codes, self._counts, found[order], counts[order])
        self._pending = 0

    def statistics(self) -> TensorStatistics:
        """What has been seen so far; counting may go on afterwards."""
        with self._lock:
            self._drain()
            self._prune()
            nan, positive, negative, overflows = (int(n) for n in self._counters)
            zero = (self._codes == 0) | (self._codes == -1)         # +0 and -0
            seen = self._low[1] >= 0
            return TensorStatistics(
                self.name, self._codes[~zero], self._counts[~zero], int(self._counts[zero].sum()),
                float(self._low[0]) if seen else 0.0, float(self._high[0]) if seen else 0.0,
                self._low[1], self._high[1], nan, positive, negative, overflows, self._sum, self._squares,
                np.array(self._samples, np.int64), np.array(self._lows, np.float32), np.array(self._highs, np.float32),
                self._channel_low, self._channel_high)
