"""Sums of float64 that do not depend on the order of adding: integers in units of the smallest float64."""

from __future__ import annotations

_UNIT_BITS = 1074                   # every finite float64 is a multiple of 2**-1074


def units(value: float) -> int:
    """`value` exactly, in units of 2**-1074. `value` is finite."""
    numerator, denominator = value.as_integer_ratio()
    return numerator << (_UNIT_BITS - (denominator.bit_length() - 1))


def real(units: int) -> float:
    """The float64 nearest to `units` * 2**-1074; infinite beyond the range of float64."""
    try:
        return units / (1 << _UNIT_BITS)
    except OverflowError:
        return float("inf") if units > 0 else float("-inf")
