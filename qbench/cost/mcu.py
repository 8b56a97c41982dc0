"""Latency and energy of one kernel on a microcontroller: cycles = a MACs + b output elements + c, everything in its own memory.

Source of the form: COST_MODELS section 3.2 (STM32H7, measured 1.15 to 1.6 cycles per MAC, more for narrow networks).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qbench.cost.energy import dynamic_joules
from qbench.cost.kernel import Constants, KernelCost
from qbench.cost.parameters import McuParameters
from qbench.cost.tile import VIEWS
from qbench.network import Kernel, Network, Precision
from qbench.target import OperatingPoint


@dataclass(frozen=True)
class McuModel(Constants):
    """A CostModel from constants. macs_per_cycle   of each precision relative to INT8 stretch the cycles per MAC"""

    parameters: McuParameters
    macs_per_cycle: Mapping[Precision, float]
    top: OperatingPoint

    def kernel(self, kernel: Kernel, network: Network, precision: Precision, point: OperatingPoint) -> KernelCost:
        p = self.parameters
        slower = self.macs_per_cycle[Precision.INT8] / self.macs_per_cycle[precision]
        view = kernel.kind == "reshape" and kernel.op in VIEWS
        written = sum(network.tensors[t].elements for t in kernel.outputs)
        per_mac = p.cycles_per_mac_depthwise if kernel.kind == "depthwise" else p.cycles_per_mac_dense
        parts = {"compute": kernel.macs * per_mac * slower, "activation": 0.0 if view else written * p.cycles_per_output * slower,
                 "overhead": p.kernel_overhead_cycles}
        moved = sum(network.tensors[t].elements for t in (*kernel.inputs, *kernel.outputs)) * precision.activation_bytes
        moved += self.weight_bytes(kernel, precision)
        joules = dynamic_joules(kernel.macs, kernel.macs, moved, 0.0, precision, point, p)
        return KernelCost(kernel.name, kernel.op, max(sum(parts.values()), 1.0) / point.clock_hz, joules, max(parts, key=lambda k: parts[k]),
                          float(moved), kernel.macs, 1.0 if kernel.macs else 0.0, "CPU")

    def conversion(self, elements: int, source: Precision, goal: Precision, point: OperatingPoint) -> tuple[float, float]:
        p = self.parameters
        moved = elements * (source.activation_bytes + goal.activation_bytes)
        cycles = elements * p.cycles_per_output + p.kernel_overhead_cycles
        return cycles / point.clock_hz, dynamic_joules(0.0, 0.0, moved, 0.0, source, point, p)

    def tensor_bytes(self, network: Network, tensor: str, precision: Precision) -> int:
        return -(-network.tensors[tensor].elements * precision.activation_bytes // 16) * 16
