"""The compiled loops of the sketch. Importing this module imports numba: only `counter` does, at its first value.

All loops release the GIL and read each value from memory once: a block of BLOCK values is reduced and then counted while
it lies in the first-level cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, uintp

from qbench.statistics.grid import CELLS, MANTISSA_BITS, SHIFT

BLOCK = 4096
LANES = 4               # tables in turn, so that equal neighbours (the zeros behind a ReLU) do not wait for one another
INFINITE = 0x7F800000   # bit pattern of +Inf; anything above it is NaN
FP16_INFINITE = 65520.0  # the smallest real that rounds to infinity in float16
NAN, POSITIVE, NEGATIVE, OVERFLOW = range(4)            # places of the counters

_ONE = np.uint32(1)
_SHIFT = uintp(SHIFT)


@njit(nogil=True, cache=True)
def extremes(signed: Any, unsigned: Any) -> Any:
    """(minimum, maximum) as bit patterns of a float32 run given as its int32 and uint32 views.

    Among patterns read as int32 the positive reals ascend and the negative ones descend, so three integer reductions,
    which vectorise without a word about NaN, hold both extremes; NaN and infinity come out as extremes too.
    """
    least = most = signed[0]
    top = unsigned[0]
    for i in range(uintp(signed.size)):
        least = min(least, signed[i])
        most = max(most, signed[i])
        top = max(top, unsigned[i])
    return (np.int32(top) if least < 0 else least), (most if most >= 0 else least)


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
def moments(values: Any) -> Any:
    """(sum, sum of squares) of finite float32 values, accumulated in float64."""
    total = squares = 0.0
    for i in range(uintp(values.size)):
        v = np.float64(values[i])
        total += v
        squares += v * v
    return total, squares


@njit(nogil=True, cache=True)
def tally(bits: Any, tables: Any) -> None:
    """Add one to the cell of each value; `tables` is uint32 [LANES, cells], `bits` the uint32 view of the values."""
    t0, t1, t2, t3 = tables[0], tables[1], tables[2], tables[3]
    n = uintp(bits.size)
    even = n - (n & uintp(3))
    for i in range(uintp(0), even, uintp(4)):
        t0[bits[i] >> _SHIFT] += _ONE
        t1[bits[i + uintp(1)] >> _SHIFT] += _ONE
        t2[bits[i + uintp(2)] >> _SHIFT] += _ONE
        t3[bits[i + uintp(3)] >> _SHIFT] += _ONE
    for i in range(even, n):
        t0[bits[i] >> _SHIFT] += _ONE


@njit(nogil=True, cache=True)
def careful(values: Any, tables: Any, counters: Any) -> Any:
    """Count a block that holds NaN, infinity or values beyond float16 one by one.

    Returns (minimum, maximum, sum, sum of squares) of its finite values; (inf, -inf, 0, 0) when it has none.
    """
    low, high = np.float32(np.inf), np.float32(-np.inf)
    total = squares = 0.0
    bits = values.view(np.uint32)
    for i in range(values.size):
        v = values[i]
        if np.isnan(v):
            counters[NAN] += 1
        elif np.isinf(v):
            counters[POSITIVE if v > 0 else NEGATIVE] += 1
        else:
            wide = np.float64(v)
            counters[OVERFLOW] += abs(wide) >= FP16_INFINITE
            total += wide
            squares += wide * wide
            low, high = min(low, v), max(high, v)
            tables[0, bits[i] >> _SHIFT] += _ONE
    return low, high, total, squares


@njit(nogil=True, cache=True)
def block(values: Any, low: Any, high: Any, tables: Any, counters: Any) -> Any:
    """(sum, sum of squares) of one block: `low.size` channels of equal length, one behind the other.

    Widens the channels' extremes `low` and `high`, float32 [channels], and adds to `tables` and `counters`.
    """
    piece = values.size // low.size
    signed, unsigned = values.view(np.int32), values.view(np.uint32)
    pair = np.empty(2, np.float32)
    bits = pair.view(np.int32)
    fine = True
    for c in range(low.size):
        bits[0], bits[1] = extremes(signed[c * piece : (c + 1) * piece], unsigned[c * piece : (c + 1) * piece])
        if not (abs(pair[0]) < FP16_INFINITE and abs(pair[1]) < FP16_INFINITE):     # NaN lands here too
            fine = False
            break
        low[c], high[c] = min(low[c], pair[0]), max(high[c], pair[1])
    if fine:
        tally(unsigned, tables)
        return moments(values)
    total = squares = 0.0
    for c in range(low.size):
        least, most, one, two = careful(values[c * piece : (c + 1) * piece], tables, counters)
        low[c], high[c] = min(low[c], least), max(high[c], most)
        total, squares = total + one, squares + two
    return total, squares


@njit(nogil=True, cache=True)
def count(values: Any, low: Any, high: Any, sums: Any, tables: Any, counters: Any) -> None:
    """One pass over a tensor of shape [rows, channels, run], C-contiguous float32.

    Fills low, high  float32 [rows, channels]: extremes of the finite values, (inf, -inf) where there is none
          sums       float64 [rows, 2]: sum and sum of squares of the finite values
    Adds to tables   uint32 [LANES, cells]
            counters int64 [4]: NaN, +Inf, -Inf, float16 overflows
    """
    rows, channels, run = values.shape
    group = max(1, BLOCK // run)                # channels to a block where a channel is short
    step = BLOCK if group == 1 else run         # values of a channel to a block
    flat = values.reshape(-1)
    low[:], high[:], sums[:] = np.inf, -np.inf, 0.0
    for r in range(rows):
        for first in range(0, channels, group):
            last = min(first + group, channels)
            for start in range(0, run, step):
                begin = (r * channels + first) * run + start
                end = begin + (last - first) * min(step, run - start)
                total, squares = block(flat[begin:end], low[r, first:last], high[r, first:last], tables, counters)
                sums[r, 0] += total
                sums[r, 1] += squares


@njit(nogil=True, cache=True)
def drain(tables: Any, top: int, expected: int) -> Any:
    """(patterns, counts) int64 of the non-empty cells; leaves `tables` zero.

    top       exponent pattern (0..254) of the largest magnitude counted
    expected  values counted, below 2**32. Binades are looked at from zero and then from the top down until so many are
              found: the pages of the tables that no value ever touched stay untouched and cost no memory.
    """
    width = 1 << MANTISSA_BITS
    patterns, counts = np.empty(2 * (top + 1) * width, np.int64), np.empty(2 * (top + 1) * width, np.int64)
    found = used = 0
    for step in range(top + 1):
        exponent = 0 if step == 0 else top + 1 - step
        for sign in range(2):
            if found == expected:
                return patterns[:used].copy(), counts[:used].copy()
            start = sign * (CELLS // 2) + exponent * width
            a, b = tables[0, start : start + width], tables[1, start : start + width]
            c, d = tables[2, start : start + width], tables[3, start : start + width]
            for i in range(uintp(width)):
                here = a[i] + b[i] + c[i] + d[i]
                if here:
                    patterns[used], counts[used] = start + i, here
                    used += 1
                    found += here
                    a[i] = b[i] = c[i] = d[i] = 0
    return patterns[:used].copy(), counts[:used].copy()
