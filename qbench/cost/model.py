"""The latency model of a target and toolkit version."""

from __future__ import annotations

from qbench.cost.host import HostModel
from qbench.cost.kernel import CostModel
from qbench.cost.mcu import McuModel
from qbench.cost.npu import NpuModel
from qbench.cost.parameters import HostParameters, McuParameters, read_parameters
from qbench.target import Target


def cost_model(target: Target, toolkit: str | None = None) -> CostModel:
    """Reads the target's constants into their record. Raises TargetError when one is missing, unknown or impossible."""
    parameters = read_parameters(f"target {target.name}", target.cost_model, target.cost)
    rates = {p: target.support(p, toolkit).macs_per_cycle for p in target.available(toolkit)}
    top = target.operating_points[-1]
    if isinstance(parameters, HostParameters):
        return HostModel(parameters, rates, top)
    if isinstance(parameters, McuParameters):
        return McuModel(parameters, rates, top)
    bits = {p.precision: p.scheme.weight.bits for p in target.precisions if p.scheme is not None}
    return NpuModel(parameters, rates, frozenset(target.cpu_ops), top, bits, target.on_cpu)
