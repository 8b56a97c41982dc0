"""The coverage of a plan as the user reads it: one line, and why operators stay in a higher precision."""

from __future__ import annotations

from qbench.coverage import Coverage, OperatorRow
from qbench.report import text


def percent(share: float | None) -> str:
    """"97.3 %"; a share that is not quite all or nothing does not read as such."""
    if share is None:
        return text.MISSING
    shown = f"{100 * share:.1f}"
    if shown == "100.0" and share < 1.0:
        return "> 99.9 %"
    return "< 0.1 %" if shown == "0.0" and share > 0.0 else f"{shown} %"


def coverage_line(found: Coverage) -> str:
    """"97.3 % of the multiply-accumulates and 41 of 52 operators run in integers (int8: 40, int16: 1, fp16: 11)"."""
    integers = sum(s.operators for s in found.shares if not s.precision.is_float)
    parts = ", ".join(f"{s.precision}: {s.operators}" for s in found.shares)
    work = "no operator multiplies" if found.quantized_macs is None else f"{percent(found.quantized_macs)} of the multiply-accumulates"
    if found.quantized_macs is None:
        return f"{integers} of {len(found.rows)} operators run in integers ({parts or 'none'}); {work}"
    return f"{work} and {integers} of {len(found.rows)} operators run in integers ({parts})"


def reasons(found: Coverage) -> dict[str, list[str]]:
    """Reason -> the operators it keeps from the lowest precision, in execution order."""
    grouped: dict[str, list[str]] = {}
    for row in found.rows:
        if row.reason:
            grouped.setdefault(row.reason, []).append(row.node)
    return grouped


def name(row: OperatorRow) -> str:
    """The node's name, and the one in the user's file where it differs."""
    return row.node if row.original == row.node else f"{row.node} (in the file: {row.original or 'unnamed'})"
