"""Counts one tensor while the data goes by: the one mutable thing of the statistics."""

from __future__ import annotations

import mmap
import sys
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbench.statistics.exact import units
from qbench.statistics.grid import CELLS
from qbench.statistics.sketch import PER_SAMPLE, Singles, TensorStatistics, added

_PITCH = CELLS + 1088           # the tables start in different cache sets and at different offsets in a page
_FULL = 1 << 31                 # values after which the 32-bit counters go to the 64-bit list
_ROWS = 256                     # samples whose results wait to be noted together
_NO_AXIS = np.empty(0, np.float32)


def _tables() -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Zeros, uint8 [lanes, cells] and uint32 [cells], of which only the pages that are written to will take memory.

    A plain allocation of this size may be backed by huge pages as a whole: 1.5 MB a tensor in place of a tenth of it.
    """
    size = 2 * _PITCH + 4 * CELLS
    if sys.platform == "win32":
        memory = mmap.mmap(-1, size)
    else:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.uint8, 2 * _PITCH).reshape(2, _PITCH), np.frombuffer(memory, np.uint32, CELLS, 2 * _PITCH)


class Counter:
    """Takes the batches of one tensor, from several threads if need be, and gives its TensorStatistics."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = Lock()
        self._tables: tuple[NDArray[np.uint8], NDArray[np.uint32]] | None = None
        self._pending = 0                                       # finite values that only the tables hold
        self._codes, self._counts = np.empty(0, np.int32), np.empty(0, np.int64)
        self._counters = np.zeros(4, np.int64)                  # NaN, +Inf, -Inf, float16 overflows
        self._sum = self._squares = 0
        self._low, self._high = (np.inf, -1), (-np.inf, -1)     # extreme, sample
        self._waiting, self._wait_index, self._waits = np.empty((0, 4), np.float64), np.empty(0, np.int64), 0
        self._samples, self._lows, self._highs = np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.float32)
        self._wait_seconds, self._seconds = np.empty(0, np.float32), np.empty(0, np.float32)
        self._no_classes = False                                # a sample was not a row of two classes or more
        self._channels: tuple[Singles, Singles] | None = None   # extremes along axis 1
        self._no_axis = False                                   # axis 1 is not one of channels: absent once, or of another length

    @property
    def busy(self) -> bool:
        """Another thread is counting this very tensor; `update` would wait."""
        return self._lock.locked()

    def update(self, values: NDArray[Any], first: int, samples: int) -> tuple[int, int, int]:
        """Count a float array; returns how many NaN, +Inf and -Inf it held.

        values   any shape; its first axis counts the samples if it is `samples` long, else it counts as one sample
        first    index of the first sample
        """
        if not values.size:
            return 0, 0, 0
        from qbench.statistics import counting

        whole = _singles(values)
        by_sample = whole.ndim > 0 and whole.shape[0] == samples
        rows = samples if by_sample else 1
        axis = whole.shape[1] if by_sample and whole.ndim >= 3 else 0
        with self._lock:
            if self._tables is None:
                self._tables = _tables()
            low, high = self._extremes(axis)
            found: tuple[int, int, int] = counting.count(whole.reshape(rows, max(axis, 1), -1), low, high, self._places(rows, first),
                                                         *self._tables, self._counters)
            self._note_seconds(whole if by_sample and whole.ndim == 2 and whole.shape[1] >= 2 else None, sum(found))
            self._pending += whole.size - sum(found)
            if self._pending > _FULL:
                self._drain()
        return found

    def _extremes(self, axis: int) -> tuple[Singles, Singles]:
        """Where to widen the extremes of `axis` channels; 0: there are none."""
        if self._channels is not None and self._channels[0].size == axis:
            return self._channels
        fresh = np.full(max(axis, 1), np.inf, np.float32), np.full(max(axis, 1), -np.inf, np.float32)
        if not axis or self._channels is not None:
            self._no_axis = True
        else:
            self._channels = fresh
        return fresh

    def _places(self, rows: int, first: int) -> NDArray[np.float64]:
        """float64 [rows, 4] where the results of the next samples wait."""
        if self._waits + rows > len(self._waiting):
            self._note()
        if rows > len(self._waiting):
            self._waiting, self._wait_index = np.empty((max(rows, _ROWS), 4)), np.empty(max(rows, _ROWS), np.int64)
        here = slice(self._waits, self._waits + rows)
        self._wait_index[here] = first if rows == 1 else np.arange(first, first + rows)
        self._waits += rows
        return self._waiting[here]

    def _note_seconds(self, rows: Singles | None, bad: int) -> None:
        """Keep the second largest finite value of each of the samples that began to wait last.

        rows  [samples, classes]; None: they are of another shape
        bad   values that are not finite
        """
        if rows is None or self._no_classes:
            self._no_classes = True
            return
        if self._wait_seconds.size < self._wait_index.size:
            self._wait_seconds = np.empty(self._wait_index.size, np.float32)
        finite = np.where(np.isfinite(rows), rows, -np.inf) if bad else rows
        self._wait_seconds[self._waits - len(rows) : self._waits] = np.partition(finite, -2, axis=1)[:, -2] + np.float32(0)

    def _note(self) -> None:
        """Take in the results of the samples that wait: everything but the histogram and the channels."""
        index, found = self._wait_index[: self._waits], self._waiting[: self._waits]
        seconds = np.concatenate([self._seconds, self._wait_seconds[: self._waits]])
        self._waits = 0
        some = found[:, 0] <= found[:, 1]                       # a value was finite
        for i, (low, high, total, squares) in zip(index[some].tolist(), (found[some] + 0.0).tolist(), strict=True):     # -0.0 becomes 0.0
            self._low = min(self._low, (low, i))
            self._high = max(self._high, (high, i), key=lambda e: (e[0], -e[1]))
            self._sum += units(total)
            self._squares += units(squares)
        index, lows, highs = (np.concatenate(pair) for pair in (
            (self._samples, index), (self._lows, found[:, 0].astype(np.float32) + np.float32(0)),
            (self._highs, found[:, 1].astype(np.float32) + np.float32(0))))
        order = np.argsort(index, kind="stable")[:PER_SAMPLE]
        self._samples, self._lows, self._highs = index[order], lows[order], highs[order]
        self._seconds = np.empty(0, np.float32) if self._no_classes else seconds[order]

    def _drain(self) -> None:
        """Move the counts of the tables to the sparse list."""
        from qbench.statistics import counting

        self._note()
        if self._tables is None or not self._pending:
            return
        top = int(np.float32(max(abs(self._low[0]), abs(self._high[0]))).view(np.uint32)) >> 23
        found, counts = counting.drain(*self._tables, top, self._pending)
        self._codes, self._counts = added(self._codes, self._counts, found, counts) if self._codes.size else (found, counts)
        self._pending = 0

    def statistics(self) -> TensorStatistics:
        """What has been seen so far; counting may go on afterwards."""
        with self._lock:
            self._drain()
            nan, positive, negative, overflows = (int(n) for n in self._counters)
            zero = (self._codes == 0) | (self._codes == -1)         # +0 and -0
            seen = self._low[1] >= 0
            return TensorStatistics(
                self.name, self._codes[~zero], self._counts[~zero], int(self._counts[zero].sum()),
                float(self._low[0]) if seen else 0.0, float(self._high[0]) if seen else 0.0,
                self._low[1], self._high[1], nan, positive, negative, overflows, self._sum, self._squares,
                self._samples, self._lows, self._highs, *self._channel_extremes(), self._seconds)

    def _channel_extremes(self) -> tuple[Singles | None, Singles | None]:
        """What `TensorStatistics` calls channel_low and channel_high."""
        if self._no_axis:
            return _NO_AXIS, _NO_AXIS
        if self._channels is None:
            return None, None
        low, high = self._channels
        return low + np.float32(0), high + np.float32(0)        # a copy; -0.0 becomes 0.0


def _singles(values: NDArray[Any]) -> Singles:
    """`values` as C-contiguous float32; a float64 beyond float32 counts as infinite."""
    if values.dtype == np.float32 and values.flags.c_contiguous:
        return values
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, np.float32)
