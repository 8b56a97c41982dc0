"""Everything that a price depends on, as one record: a step of advice changes it, and the changed one is priced like any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from qbench.cost import CostTable, MemoryPlan
from qbench.cost.kernel import KernelCost
from qbench.cost.model import cost_model
from qbench.cost.modes import kernel_on_cores
from qbench.cost.npu import NpuModel
from qbench.network import Network, Precision
from qbench.target import OperatingPoint, Target


@dataclass(frozen=True)
class Setup:
    """precision   unit -> its precision"""

    network: Network
    target: Target
    toolkit: str
    precision: Mapping[str, Precision]
    point: OperatingPoint
    cores: int = 1

    def with_constants(self, **constants: float) -> Setup:
        """On a chip with other constants of the latency model."""
        return replace(self, target=replace(self.target, cost={**self.target.cost, **constants}))

    def with_network(self, network: Network) -> Setup:
        """Running another network, whose units keep their names."""
        return replace(self, network=network, precision={u.name: self.precision[u.name] for u in network.units})

    def uniform(self, precision: Precision) -> Setup:
        """Every unit that may take it in `precision`; the others stay as they are."""
        return replace(self, precision={u.name: precision if u.quantizable or precision.is_float else self.precision[u.name] for u in self.network.units})


@dataclass(frozen=True)
class Cost:
    """Predicted cost of one inference.

    energy_j     None where the model does not price it (several cores)
    peak_bytes   weights and the arena of `memory`
    kernels      of each kernel on one core, in execution order
    """

    latency_s: float
    energy_j: float | None
    peak_bytes: float
    dram_bytes: float
    memory: MemoryPlan
    kernels: tuple[KernelCost, ...]


def quicker(now: Cost, seconds: float) -> Cost:
    """`now` with so much time less, where nothing is known about the energy."""
    return replace(now, latency_s=now.latency_s - seconds, energy_j=None)


def priced(setup: Setup) -> Cost:
    """What the cost model of the target says about a setup."""
    top = setup.target.operating_points[-1]                          # the static power is a share of the fastest point's
    table = CostTable.build(setup.network, replace(setup.target, operating_points=tuple(dict.fromkeys((setup.point, top)))), setup.toolkit)
    codes = np.array([table.available.index(setup.precision[u]) for u in table.units], dtype=np.int64)
    price = table.price(codes[None], setup.point.name)[0]
    costs = table.kernel_costs(codes, setup.point.name)
    latency, energy = price.latency_ms / 1e3, price.energy_mj / 1e3
    moved = sum(r.dram_bytes for r in table.kernel_table(codes, setup.point.name))
    memory = table.memory(codes)
    peak = float(memory.peak_bytes)
    if setup.cores > 1 and isinstance(table.model, NpuModel):
        alone, parameters = sum(c.seconds for c in costs), table.model.parameters
        return Cost(latency - alone + sum(kernel_on_cores(c, setup.cores, parameters) for c in costs), None, peak, moved, memory, costs)
    return Cost(latency, energy, peak, moved, memory, costs)


def npu(setup: Setup) -> NpuModel | None:
    """The latency model, where the chip is an NPU."""
    model = cost_model(setup.target, setup.toolkit)
    return model if isinstance(model, NpuModel) else None
