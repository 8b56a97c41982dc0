"""What the lists of a target file say: the rule set of targets without limits of their own, and the ground of the others."""

from __future__ import annotations

from qbench.placement.record import Operator, Placement, Verdict
from qbench.target import Target
from qbench.targets.rules.registry import Book, Case

CORES = {"mcu": "the chip has no NPU: each operator is a kernel of its core", "host": "the target is a CPU"}


def listed(op: Operator, case: Case) -> Verdict:
    """The target's own lists; unknown where there are none, or where they leave the operator out."""
    target = case.target
    if target.cost_model in CORES:
        return Verdict(Placement.CPU, CORES[target.cost_model], source=target.title)
    if op.domain:
        return Verdict(Placement.UNKNOWN, f"an operator of domain {op.domain!r}: no table knows it")
    if target.operators is None and op.op not in target.cpu_ops:
        return Verdict(Placement.UNKNOWN, "no public operator table exists for this target")
    if op.chain == "gelu" and target.operators is not None and "Gelu" in target.operators.accelerated:
        return Verdict(Placement.NPU, "part of a GELU chain, which the toolchain takes for a Gelu", source=target.operators.source)
    placement = Placement(target.placement(op.op))
    if placement is Placement.UNKNOWN:
        return Verdict(placement, _unlisted(target), source=target.operators.source if target.operators else "")
    return Verdict(placement, source=target.operators.source if target.operators else target.sources.get("cpu_ops", ""))


def _unlisted(target: Target) -> str:
    fallback = target.operators.fallback if target.operators else ""
    return "not in the toolchain's public table" + (f": {fallback}" if fallback else "")


BOOK = Book(listed)
