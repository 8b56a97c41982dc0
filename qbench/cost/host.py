"""Latency and energy of one kernel on a general-purpose CPU: roofline over vector units and memory. Generic, not validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qbench.cost.energy import dynamic_joules
from qbench.cost.kernel import Constants, KernelCost
from qbench.cost.parameters import HostParameters
from qbench.cost.work import FREE_ACTIVATIONS, lut_elements
from qbench.network import Kernel, Network, Precision
from qbench.target import OperatingPoint


@dataclass(frozen=True)
class HostModel(Constants):
    """A CostModel from constants. macs_per_cycle   of each precision, all threads together"""

    parameters: HostParameters
    macs_per_cycle: Mapping[Precision, float]
    top: OperatingPoint

    def kernel(self, kernel: Kernel, network: Network, precision: Precision, point: OperatingPoint) -> KernelCost:
        p = self.parameters
        elements = sum(network.tensors[t].elements for t in (*kernel.inputs, *kernel.outputs))
        moved = elements * precision.activation_bytes + self.weight_bytes(kernel, precision)
        share = p.compute_efficiency_depthwise if kernel.kind == "depthwise" else p.compute_efficiency_dense
        mapped = lut_elements(kernel, network) if kernel.activation not in FREE_ACTIVATIONS or not kernel.macs else 0
        parts = {"compute": kernel.macs / (self.macs_per_cycle[precision] * share * point.clock_hz), "dram": moved / p.memory_bytes_per_s,
                 "activation": mapped / (p.map_elements_per_cycle * point.clock_hz), "overhead": p.kernel_overhead_s}
        time = max(parts["compute"], parts["dram"]) + parts["activation"] + parts["overhead"]
        joules = dynamic_joules(kernel.macs, kernel.macs, moved, moved, precision, point, p)
        return KernelCost(kernel.name, kernel.op, time, joules, max(parts, key=lambda k: parts[k]), moved, kernel.macs,
                          1.0 if kernel.macs else 0.0, "CPU")

    def conversion(self, elements: int, source: Precision, goal: Precision, point: OperatingPoint) -> tuple[float, float]:
        p = self.parameters
        moved = elements * (source.activation_bytes + goal.activation_bytes)
        return moved / p.memory_bytes_per_s + p.kernel_overhead_s, dynamic_joules(0.0, 0.0, moved, moved, source, point, p)

    def tensor_bytes(self, network: Network, tensor: str, precision: Precision) -> int:
        return -(-network.tensors[tensor].elements * precision.activation_bytes // 64) * 64
