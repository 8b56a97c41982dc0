"""What a plan does with every operator: its precision and, where that is not the lowest, the reason (BUG case B23)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from qbench.network import Kernel, Network, Precision, Unit
from qbench.plan import Plan


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One operator of the network.

    node       its name; original   its name in the user's file, "" where it had none
    op         ONNX operator type
    reason     why it is not in the plan's lowest integer precision; "" when it is
    macs       multiply-accumulates of one sample; those of a kernel stand beside its first operator
    """

    node: str
    original: str
    op: str
    kernel: str
    unit: str
    precision: Precision
    reason: str
    macs: int


@dataclass(frozen=True, slots=True)
class Share:
    """operators, macs   how many; macs_share   of all MACs, 0..1; None in a network without MACs"""

    precision: Precision
    operators: int
    operators_share: float
    macs: int
    macs_share: float | None


@dataclass(frozen=True, slots=True)
class Coverage:
    """rows in execution order; shares one per precision in use; lowest   the plan's lowest integer precision, None without one"""

    rows: tuple[OperatorRow, ...]
    shares: tuple[Share, ...]
    lowest: Precision | None

    @property
    def quantized_operators(self) -> float:
        """Share of operators that run in integers, 0..1; 0 in an empty network."""
        return sum(s.operators_share for s in self.shares if not s.precision.is_float)

    @property
    def quantized_macs(self) -> float | None:
        """Share of multiply-accumulates that run in integers, 0..1; None in a network without any."""
        known = [s.macs_share for s in self.shares if s.macs_share is not None]
        return sum(s.macs_share or 0.0 for s in self.shares if not s.precision.is_float) if known else None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"lowest": None if self.lowest is None else str(self.lowest), "quantized_operators": self.quantized_operators,
                "quantized_macs": self.quantized_macs,
                "shares": [asdict(s) | {"precision": str(s.precision)} for s in self.shares],
                "rows": [asdict(r) | {"precision": str(r.precision)} for r in self.rows]}


def coverage_from_dict(body: Mapping[str, Any]) -> Coverage:
    """The inverse of `Coverage.to_dict`."""
    def typed(entry: Mapping[str, Any]) -> dict[str, Any]:
        return {**entry, "precision": Precision(entry["precision"])}

    return Coverage(tuple(OperatorRow(**typed(r)) for r in body["rows"]), tuple(Share(**typed(s)) for s in body["shares"]),
                    None if body["lowest"] is None else Precision(body["lowest"]))


def coverage(network: Network, plan: Plan, nodes: Iterable[str] | None = None) -> Coverage:
    """Every operator of `network` under `plan`.

    nodes   names of the operators to look at; default all
    """
    wanted = None if nodes is None else set(nodes)
    units = {u.name: u for u in network.units}
    integers = [p for p in (Precision.INT8, Precision.INT16) if p in plan.precision.values()]
    lowest = integers[0] if integers else None
    rows = tuple(row for kernel in network.kernels for row in _rows(kernel, network, units, plan, lowest) if wanted is None or row.node in wanted)
    return Coverage(rows, _shares(rows), lowest)


def _rows(kernel: Kernel, network: Network, units: dict[str, Unit], plan: Plan, lowest: Precision | None) -> list[OperatorRow]:
    unit = units[network.unit_of_kernel[kernel.name]]
    precision = plan.precision[unit.name]
    reason = _reason(unit, precision, plan, lowest)
    return [OperatorRow(node, network.renamed.get(node, node), op, kernel.name, unit.name, precision, reason, kernel.macs if i == 0 else 0)
            for i, (node, op) in enumerate(zip(kernel.nodes, kernel.op.split("+"), strict=True))]


def _reason(unit: Unit, precision: Precision, plan: Plan, lowest: Precision | None) -> str:
    if precision is lowest:
        return ""
    if unit.reason or unit.name in plan.notes:
        return "; ".join(dict.fromkeys(filter(None, (unit.reason, plan.notes.get(unit.name, "")))))
    if lowest is None:
        return f"the plan keeps everything in {precision}"
    return f"raised by the plan: {precision} in place of {lowest}"


def _shares(rows: tuple[OperatorRow, ...]) -> tuple[Share, ...]:
    macs = sum(r.macs for r in rows)
    found = []
    for precision in Precision:
        mine = [r for r in rows if r.precision is precision]
        if mine:
            work = sum(r.macs for r in mine)
            found.append(Share(precision, len(mine), len(mine) / len(rows), work, work / macs if macs else None))
    return tuple(found)
