"""How much of the compute array does useful work, kernel by kernel, and what would fill it better."""

from __future__ import annotations

from dataclasses import dataclass

from qbench.cost import CostTable, KernelRow, changes
from qbench.network import Kernel, Precision
from qbench.target import OperatingPoint

WORST = 10
FULL = 0.999


@dataclass(frozen=True, slots=True)
class Utilised:
    """One kernel.

    utilisation   MACs over MACs of the padded array, 0 to 1
    wasted_macs   computed on padding
    shape         channels and map, in words
    better        the nearest channel numbers that fill the array, with what one of them saves; "" when none helps
    """

    kernel: str
    op: str
    utilisation: float
    wasted_macs: float
    ms: float
    bound: str
    shape: str
    better: str


@dataclass(frozen=True, slots=True)
class Padding:
    """utilisation   of the whole network: its MACs over the padded ones; None where the model of the target knows no array
    kernels       how many have MACs
    worst         those that waste most MACs
    """

    utilisation: float | None
    kernels: int
    worst: tuple[Utilised, ...]
    note: str = ""


def padding(table: CostTable, rows: tuple[KernelRow, ...], point: OperatingPoint) -> Padding:
    """rows   of `CostTable.kernel_table`"""
    if table.target.cost_model != "npu":
        return Padding(None, 0, (), "the target has no compute array: nothing is padded")
    busy = [r for r in rows if r.macs and 0.0 < r.utilisation <= 1.0]
    if not busy:
        return Padding(None, 0, (), "no kernel multiplies")
    padded = sum(r.macs / r.utilisation for r in busy)
    order = sorted((r for r in busy if r.utilisation < FULL), key=lambda r: r.macs - r.macs / r.utilisation)
    worst = tuple(_utilised(table, r, table.network.kernel[r.name], point) for r in order[:WORST])
    return Padding(sum(r.macs for r in busy) / padded, len(busy), worst)


def _utilised(table: CostTable, row: KernelRow, kernel: Kernel, point: OperatingPoint) -> Utilised:
    runs = Precision(row.precision)
    better = [f"{c.what} (-{c.saved_s * 1e3:.2g} ms)" for c in changes(table.model, kernel, table.network, runs, point) if c.kind == "channels"]
    return Utilised(row.name, row.op, row.utilisation, row.macs / row.utilisation - row.macs, row.ms, row.bound, _shape(kernel), "; ".join(better))


def _shape(k: Kernel) -> str:
    if k.kind == "matmul":
        return f"{k.out_h} x {k.in_channels} x {k.out_channels}"
    groups = f", {k.groups} groups" if k.groups > 1 else ""
    return f"{k.in_channels} to {k.out_channels} channels{groups}, {k.out_h} x {k.out_w}"
