"""A cost table after measurements: the same model, its times moved by what a board has taught (`qbench.cost.board_fit`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qbench.cost.board_fit import BoardFit, Floats, learn
from qbench.cost.kernel import CostModel, KernelCost
from qbench.cost.table import CostTable
from qbench.network import Kernel, Network, Precision
from qbench.plan import Plan
from qbench.target import OperatingPoint, Provenance

CONVERSION = "conversion"
START = "start of an inference"


def class_of(kernel: Kernel, precision: Precision | str) -> str:
    """Kernels that a board may treat alike: "conv int8"."""
    return f"{kernel.kind} {precision}"


@dataclass(frozen=True)
class FittedModel:
    """A CostModel whose seconds are those of `base`, times the factor of their class. Energy per operation stays."""

    base: CostModel
    factors: Mapping[str, float]
    scale: float

    @property
    def parameters(self) -> object:
        """Of the base, for who plans memory by them."""
        return getattr(self.base, "parameters", None)

    @property
    def model_overhead_s(self) -> float:
        return self.base.model_overhead_s * self.scale

    @property
    def charge_edges(self) -> bool:
        return self.base.charge_edges

    def kernel(self, kernel: Kernel, network: Network, precision: Precision, point: OperatingPoint) -> KernelCost:
        found = self.base.kernel(kernel, network, precision, point)
        return replace(found, seconds=found.seconds * self.factors.get(class_of(kernel, precision), self.scale))

    def conversion(self, elements: int, source: Precision, goal: Precision, point: OperatingPoint) -> tuple[float, float]:
        seconds, joules = self.base.conversion(elements, source, goal, point)
        return seconds * self.factors.get(CONVERSION, self.scale), joules

    def tensor_bytes(self, network: Network, tensor: str, precision: Precision) -> int:
        return self.base.tensor_bytes(network, tensor, precision)

    def weight_bytes(self, kernel: Kernel, precision: Precision) -> int:
        return self.base.weight_bytes(kernel, precision)

    def static_watts(self, point: OperatingPoint) -> float:
        return self.base.static_watts(point)


def seconds_by_class(table: CostTable, plans: Sequence[Plan]) -> tuple[tuple[str, ...], Floats, float]:
    """(classes, predicted seconds [plans, classes], seconds that belong to none) of plans at their operating points."""
    kernels = {k.name: k for k in table.network.kernels}
    rows = []
    for plan in plans:
        row: dict[str, float] = {}
        for cost in table.kernel_table(plan, plan.op_point):
            if cost.name != START:
                name = class_of(kernels[cost.name], cost.precision) if cost.name in kernels else CONVERSION
                row[name] = row.get(name, 0.0) + cost.ms / 1e3
        rows.append(row)
    classes = tuple(sorted({name for row in rows for name in row}))
    return classes, np.array([[row.get(c, 0.0) for c in classes] for row in rows]), table.model.model_overhead_s


def taught(table: CostTable, plans: Sequence[Plan], measured_s: Floats, error_s: Floats, where: str) -> tuple[CostTable, BoardFit]:
    """The table moved by measurements of `plans`, and what was learnt. `where` names the board in the provenance."""
    found = learn(*seconds_by_class(table, plans)[:2], measured_s, error_s, table.model.model_overhead_s)
    low, high = found.interval
    about = f"{found.count} measured plans on {where}"
    target = replace(table.target, latency_factor_low=low, latency_factor_high=high, provenance=Provenance(
        f"{table.target.provenance.fitted_on}; then {about}: scale {found.scale:.3g}", f"leave one measured plan out: {100 * found.residual_sd:.0f} % (standard deviation)",
        "80 %, normal, from the plans left out"))
    model = FittedModel(table.model, dict(zip(found.classes, found.factors.tolist(), strict=True)), found.scale)
    return CostTable.build(table.network, target, table.toolkit, model), found
