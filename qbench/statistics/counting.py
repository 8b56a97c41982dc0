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
LANES = 2               # narrow tables in turn, so that equal neighbours (the zeros behind a ReLU) do not wait for one another
CARRY = 256             # what a narrow counter, one byte, hands on when it is full
FP16_INFINITE = 65520.0  # the smallest real that rounds to infinity in float16
NAN, POSITIVE, NEGATIVE, OVERFLOW = range(4)            # places of the counters

_ONE = np.uint32(1)
_CARRY = np.uint32(CARRY)
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
def tally(bits: Any, narrow: Any, wide: Any) -> None:
    """Add one to the cell of each value of `bits`, the uint32 view of the values.

    narrow  uint8 [LANES, cells]: what is less than CARRY. One byte a cell keeps what is counted into in the first-level
            cache, a word a cell does not, and that costs more than the counting.
    wide    uint32 [cells]
    """
    t0, t1 = narrow[0], narrow[1]
    n = uintp(bits.size)
    even = n - (n & uintp(1))
    for i in range(uintp(0), even, uintp(2)):
        k0, k1 = bits[i] >> _SHIFT, bits[i + uintp(1)] >> _SHIFT
        c0 = t0[k0] + 1
        t0[k0] = c0
        if c0 == CARRY:
            wide[k0] += _CARRY
        c1 = t1[k1] + 1
        t1[k1] = c1
        if c1 == CARRY:
            wide[k1] += _CARRY
    if even < n:
        wide[bits[even] >> _SHIFT] += _ONE


@njit(nogil=True, cache=True)
def careful(values: Any, wide: Any, counters: Any) -> Any:
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
            x = np.float64(v)
            counters[OVERFLOW] += abs(x) >= FP16_INFINITE
            total += x
            squares += x * x
            low, high = min(low, v), max(high, v)
            wide[bits[i] >> _SHIFT] += _ONE
    return low, high, total, squares


@njit(nogil=True, cache=True)
def block(values: Any, low: Any, high: Any, narrow: Any, wide: Any, counters: Any) -> Any:
    """(sum, sum of squares) of one block: `low.size` channels of equal length, one behind the other.

    Widens the channels' extremes `low` and `high`, float32 [channels], and adds to `narrow`, `wide` and `counters`.
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
        tally(unsigned, narrow, wide)
        return moments(values)
    total = squares = 0.0
    for c in range(low.size):
        least, most, one, two = careful(values[c * piece : (c + 1) * piece], wide, counters)
        low[c], high[c] = min(low[c], least), max(high[c], most)
        total, squares = total + one, squares + two
    return total, squares


@njit(nogil=True, cache=True)
def count(values: Any, low: Any, high: Any, samples: Any, narrow: Any, wide: Any, counters: Any) -> Any:
    """(NaN, +Inf, -Inf) in a tensor of shape [rows, channels, run], C-contiguous float32, counted in one pass.

    Widens low, high  float32 [channels]: extremes of the finite values
    Fills samples     float64 [rows, 4]: minimum, maximum, sum and sum of squares of the finite values of each row;
                      (inf, -inf, 0, 0) where there is none
    Adds to narrow    uint8 [LANES, cells], and wide, uint32 [cells]
            counters  int64 [4]: NaN, +Inf, -Inf, float16 overflows
    """
    rows, channels, run = values.shape
    group = max(1, BLOCK // run)                # channels to a block where a channel is short
    step = BLOCK if group == 1 else run         # values of a channel to a block
    flat = values.reshape(-1)
    nan, positive, negative = counters[NAN], counters[POSITIVE], counters[NEGATIVE]
    least, most = np.empty(channels, np.float32), np.empty(channels, np.float32)
    for r in range(rows):
        least[:], most[:] = np.inf, -np.inf
        total = squares = 0.0
        for first in range(0, channels, group):
            last = min(first + group, channels)
            for start in range(0, run, step):
                begin = (r * channels + first) * run + start
                end = begin + (last - first) * min(step, run - start)
                one, two = block(flat[begin:end], least[first:last], most[first:last], narrow, wide, counters)
                total, squares = total + one, squares + two
        bottom, top = np.float32(np.inf), np.float32(-np.inf)
        for c in range(channels):
            low[c], high[c] = min(low[c], least[c]), max(high[c], most[c])
            bottom, top = min(bottom, least[c]), max(top, most[c])
        samples[r, 0], samples[r, 1], samples[r, 2], samples[r, 3] = bottom, top, total, squares
    return counters[NAN] - nan, counters[POSITIVE] - positive, counters[NEGATIVE] - negative


@njit(nogil=True, cache=True)
def drain(narrow: Any, wide: Any, top: int, expected: int) -> Any:
    """(codes int32, counts int64) of the non-empty cells, by ascending code (see `grid`); leaves the tables zero.

    top       exponent pattern (0..254) of the largest magnitude counted
    expected  values counted, below 2**32. Binades are looked at from zero and then from the top down until so many are
              found: the pages of the tables that no value ever touched stay untouched and cost no memory.
    """
    width = 1 << MANTISSA_BITS
    found, bottom = _sum_of(narrow, wide, 0), top + 1
    while found < expected and bottom > 1:
        bottom -= 1
        found += _sum_of(narrow, wide, bottom)
    most = 2 * (top + 2 - bottom) * width
    codes, counts = np.empty(most, np.int32), np.empty(most, np.int64)
    used = 0
    for turn in range(2 * (top + 2 - bottom)):              # binades by ascending code: -top .. -bottom, -0, +0, bottom .. top
        at = turn - (top + 2 - bottom)
        rank = at if at >= 0 else ~at
        start = (bottom - 1 + rank if rank else 0) * width
        side = 0 if at >= 0 else CELLS // 2
        for j in range(width):
            k = start + (j if at >= 0 else width - 1 - j)
            carried = np.int64(wide[side + k])
            here = np.int64(narrow[0, side + k]) + np.int64(narrow[1, side + k]) + carried
            if here:
                codes[used], counts[used] = (k if at >= 0 else ~k), here
                used += 1
                narrow[0, side + k] = narrow[1, side + k] = 0
            if carried:
                wide[side + k] = 0
    return codes[:used].copy(), counts[:used].copy()


@njit(nogil=True, cache=True)
def _sum_of(narrow: Any, wide: Any, exponent: int) -> Any:
    """Values counted in the cells of both signs of one exponent pattern."""
    total = np.int64(0)
    for sign in range(2):
        start = sign * (CELLS // 2) + (exponent << MANTISSA_BITS)
        for k in range(start, start + (1 << MANTISSA_BITS)):
            total += np.int64(narrow[0, k]) + np.int64(narrow[1, k]) + np.int64(wide[k])
    return total
