"""Which precisions each unit may take, and why not the others."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from qbench.errors import InputError, PrecisionUnavailable
from qbench.network import Network, Precision, Unit
from qbench.protocols import Seen
from qbench.qdq.tensors import bound_of, seen_outside
from qbench.statistics import Statistics
from qbench.target import Target

FP16_MAX = 65504.0
FP16_SAFETY = 2.0
"""FP16 is offered where this many times the largest value seen still fits (BUG case B22)."""
LEAST_MARK = 5000.0
"""The smallest mark: its step in 16 bits would be 0.15."""
CLOSED = ("If", "Loop", "Scan")
"""Operators whose bodies hold tensors that no unit lists."""


def precision_of(text: str) -> Precision:
    """Raises InputError that lists the precisions."""
    try:
        return Precision(text.lower())
    except ValueError:
        raise InputError(f"no precision {text!r}; known: {', '.join(Precision)}") from None


def allowed_precisions(network: Network, statistics: Statistics, target: Target, toolkit: str | None,
                       wanted: tuple[Precision, ...] | None = None, masked: Collection[str] = ()) -> tuple[dict[str, tuple[Precision, ...]], dict[str, str]]:
    """unit -> precisions it may take on the target, and unit -> why something is missing.

    wanted   what the user restricts the search to; each must be available
    masked   tensors whose marks a correction took away after they were observed
    Raises PrecisionUnavailable for a wanted precision that the target or toolkit lacks, or when a unit is left with none.
    """
    available = target.available(toolkit)
    for precision in wanted or ():
        target.support(precision, toolkit)
    available = tuple(p for p in available if wanted is None or p in wanted)
    floats = tuple(p for p in available if p.is_float)
    allowed: dict[str, tuple[Precision, ...]] = {}
    reasons: dict[str, str] = {}
    for unit in network.units:
        why_no_integer = unit.reason if not unit.quantizable else _unobserved(network, statistics, unit) or _marked(network, statistics, unit, masked)
        why_no_half = fp16_fault(network, statistics, unit) if Precision.FP16 in floats else ""
        fine = tuple(p for p in available if (not why_no_integer if not p.is_float else not (p is Precision.FP16 and why_no_half)))
        if not fine and floats:
            fine = floats                                   # nothing else can run it: offered with the warning below
        if not fine:
            raise PrecisionUnavailable(f"unit {unit.name!r} must stay in float ({why_no_integer}), and {target.name} is limited to "
                                       f"{', '.join(available)}; allow a float precision")
        allowed[unit.name] = fine
        if why := "; ".join(filter(None, (why_no_integer, why_no_half))):
            reasons[unit.name] = why
    return allowed, reasons


def _unobserved(network: Network, statistics: Statistics, unit: Unit) -> str:
    for name in unit.kernels:
        kernel = network.kernel[name]
        for tensor in (*kernel.inputs, *kernel.outputs):
            group = network.group_of.get(tensor)
            for source in group.sources if group else ():
                if source in statistics.unobserved:
                    return f"tensor {source!r}: {statistics.unobserved[source]}"
    return ""


def _marked(network: Network, statistics: Statistics, unit: Unit, masked: Collection[str]) -> str:
    """Why no integers can hold what the unit reads and writes: marks, such as -1e9 for an invalid place, beside ordinary values (BUG case B13)."""
    for kernel in (network.kernel[name] for name in unit.kernels):
        for tensor in seen_outside(kernel):
            group = network.group_of.get(tensor)
            for source in group.sources if group else ():
                if source not in masked and source in statistics and (mark := mark_in(statistics[source])):
                    return f"tensor {source!r} holds {mark:.3g} and, with nothing in between, ordinary values, which would vanish on its scale"
    return ""


def mark_in(seen: Seen) -> float:
    """The extreme of a tensor that falls into ordinary values and, far away with nothing in between, marks; 0.0 for any other."""
    if not seen.count or max(-seen.minimum, seen.maximum) < LEAST_MARK:
        return 0.0
    worst = seen.minimum if -seen.minimum > seen.maximum else seen.maximum
    near, far = 0.1 * abs(worst), 0.9 * worst
    below, above, beyond = (float(n) for n in seen.below(np.array([-near, near, far])))
    between = below - beyond if worst < 0 else beyond - above
    return worst if between <= 0 and above - below > seen.zeros else 0.0


def fp16_fault(network: Network, statistics: Statistics, unit: Unit) -> str:
    """Why FP16 is not proved to hold the unit: a constant or a value that is too large, or a tensor that nobody saw; "" when proved.

    Proved means: twice every value that the unit read or wrote on the calibration data fits, those between fused operators
    included. Not looked at: sums inside one operator, which chips keep in wider registers, and values that a Relu or Clip cuts.
    """
    for kernel in (network.kernel[name] for name in unit.kernels):
        if kernel.fp16_constant:
            return kernel.fp16_constant
        if closed := next((op for op in kernel.op.split("+") if op in CLOSED), ""):
            return f"FP16 is not proved: what the bodies of {closed} {kernel.name!r} compute was not watched"
        for tensor in seen_outside(kernel):
            group = network.group_of.get(tensor)
            for source in group.sources if group else ():
                if why := _too_large(network, statistics, source):
                    return why
    return ""


def _too_large(network: Network, statistics: Statistics, tensor: str) -> str:
    if tensor not in statistics:
        tensor = bound_of(network, tensor)
    if not tensor:
        return ""
    if tensor not in statistics or not statistics[tensor].count:
        why = statistics.unobserved.get(tensor, "it was not asked for in the pass over the data: collect the statistics again")
        return f"FP16 is not proved: tensor {tensor!r}: {why}"
    seen = statistics[tensor]
    if seen.magnitude * FP16_SAFETY > FP16_MAX:
        return f"FP16 could overflow: tensor {tensor!r} reaches {seen.magnitude:.6g}, and {FP16_SAFETY:g} times that exceeds 65504"
    return ""
