"""Which precisions each unit may take, and why not the others."""

from __future__ import annotations

from qbench.errors import InputError, PrecisionUnavailable
from qbench.network import Network, Precision, Unit
from qbench.statistics import Statistics
from qbench.target import Target

FP16_MAX = 65504.0
FP16_SAFETY = 2.0
"""FP16 is offered where this many times the largest value seen still fits (BUG case B22)."""


def precision_of(text: str) -> Precision:
    """Raises InputError that lists the precisions."""
    try:
        return Precision(text.lower())
    except ValueError:
        raise InputError(f"no precision {text!r}; known: {', '.join(Precision)}") from None


def allowed_precisions(network: Network, statistics: Statistics, target: Target, toolkit: str | None,
                       wanted: tuple[Precision, ...] | None = None) -> tuple[dict[str, tuple[Precision, ...]], dict[str, str]]:
    """unit -> precisions it may take on the target, and unit -> why something is missing.

    wanted   what the user restricts the search to; each must be available
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
        why_no_integer = unit.reason if not unit.quantizable else _unobserved(network, statistics, unit)
        why_no_half = _overflows(network, statistics, unit) if Precision.FP16 in floats else ""
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


def _overflows(network: Network, statistics: Statistics, unit: Unit) -> str:
    for name in unit.kernels:
        for tensor in (*network.kernel[name].inputs, *network.kernel[name].outputs):
            if tensor in statistics and statistics[tensor].count and statistics[tensor].magnitude * FP16_SAFETY > FP16_MAX:
                return f"FP16 could overflow: tensor {tensor!r} reaches {statistics[tensor].magnitude:.6g}, and {FP16_SAFETY:g} times that exceeds 65504"
    return ""
