"""Figures and names as the verdict writes them."""

from __future__ import annotations

from collections.abc import Sequence

from qbench.analysis.records import Check, KernelError
from qbench.metrics.fidelity import MOST_DB

FEW_NAMES = 4
FEW_NUMBERS = 8


def gain(check: Check, what: str = "output ") -> str:
    """"output 'y' goes from 21.3 to 26.8 dB (+5.5 dB)", and what it costs elsewhere."""
    name, before, after = check.part
    if after >= MOST_DB:
        text = f"{what}{name!r} becomes exact (from {db(before)})"
    else:
        text = f"{what}{name!r} goes from {plain(before)} to {db(after)} ({signed(after - before)})"
    if check.loss is not None and check.loss[0] != name:
        lost, had, has = check.loss
        text += f", at the cost of {lost!r}, {plain(had)} to {db(has)}"
    return text


def db(value: float) -> str:
    return "exact" if value >= MOST_DB else "NaN or infinity" if value <= -MOST_DB else f"{plain(value)} dB"


def plain(value: float) -> str:
    return f"{round(value, 1) + 0.0:.1f}"


def signed(value: float) -> str:
    return f"{round(value, 1) + 0.0:+.1f} dB"


def percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def times(ratio: float) -> str:
    return f"{ratio:.3g} times" if ratio < 1000 else f"{ratio:.0f} times"


def precisions(kernels: Sequence[KernelError]) -> str:
    return "/".join(dict.fromkeys(k.precision.upper() for k in kernels))


def count(n: int, what: str) -> str:
    return f"{n} {what}{'s' if n != 1 else ''}"


def names(found: Sequence[str]) -> str:
    return some([repr(n) for n in found])


def some(texts: Sequence[str], most: int = FEW_NAMES) -> str:
    """The first `most`, and how many more."""
    left = len(texts) - most
    return ", ".join(texts) if left <= 1 else f"{', '.join(texts[:most])} and {left} more"


def numbers(found: Sequence[int]) -> str:
    return some([str(n) for n in found], FEW_NUMBERS)
