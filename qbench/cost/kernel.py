"""What a latency model answers, whatever the hardware: the seam between the models and the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from qbench.cost.energy import static_watts
from qbench.cost.parameters import HostParameters, McuParameters, NpuParameters
from qbench.network import Kernel, Network, Precision
from qbench.target import OperatingPoint


@dataclass(frozen=True, slots=True)
class KernelCost:
    """Predicted cost of one kernel at one precision and one operating point.

    seconds      all of it, steady state
    joules       without the static share, which goes with the time of the whole inference
    bound        what takes most of the time: "compute", "dram", "activation" or "overhead"
    dram_bytes   read and written after tiling
    utilisation  macs / MACs of the padded array, 0..1; 0 for kernels without MACs
    placement    "NPU" or "CPU"
    """

    name: str
    op: str
    seconds: float
    joules: float
    bound: str
    dram_bytes: float
    macs: int
    utilisation: float
    placement: str


class CostModel(Protocol):
    """Prices one kernel, one conversion, one tensor. Pure: equal questions get equal answers."""

    @property
    def model_overhead_s(self) -> float: ...
    @property
    def charge_edges(self) -> bool: ...

    def kernel(self, kernel: Kernel, network: Network, precision: Precision, point: OperatingPoint) -> KernelCost: ...

    def conversion(self, elements: int, source: Precision, goal: Precision, point: OperatingPoint) -> tuple[float, float]:
        """Seconds and joules of rewriting a tensor of `elements` values."""
        ...

    def tensor_bytes(self, network: Network, tensor: str, precision: Precision) -> int:
        """Bytes that the tensor takes in memory."""
        ...

    def weight_bytes(self, kernel: Kernel, precision: Precision) -> int:
        """Bytes that the kernel's weights, biases and scales take in memory."""
        ...

    def static_watts(self, point: OperatingPoint) -> float: ...


class Constants:
    """What every model that is a record of constants answers alike. The record has the fields that are declared here."""

    parameters: NpuParameters | HostParameters | McuParameters
    macs_per_cycle: Mapping[Precision, float]
    top: OperatingPoint

    @property
    def model_overhead_s(self) -> float:
        return self.parameters.model_overhead_s

    @property
    def charge_edges(self) -> bool:
        return self.parameters.charge_edges > 0

    def weight_bytes(self, kernel: Kernel, precision: Precision) -> int:
        return kernel.weights * precision.activation_bytes + kernel.biases * 4

    def static_watts(self, point: OperatingPoint) -> float:
        return static_watts(max(self.macs_per_cycle.values()), self.top, point, self.parameters)
