"""Where a target runs the kernels of one network, by the rule set that its file names: the ground of every price of that network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from qbench.graph import PreparedModel, specialised
from qbench.network import Network, Precision
from qbench.placement.judging import Judged, fallen_back, judge, kernels_of
from qbench.placement.operators import operators_of
from qbench.placement.record import Placement
from qbench.target import Target
from qbench.targets.rules import rules_of


@dataclass(frozen=True)
class Placing:
    """target    as it runs the network: the kernels that its rules put on the CPU are in `on_cpu`
    refused   at each precision: kernels that stop the toolchain's conversion; they are priced as cut out and run on the CPU
    """

    target: Target
    refused: Mapping[Precision, tuple[str, ...]] = field(default_factory=dict)


def placing(target: Target, prepared: PreparedModel, toolkit: str | None) -> Placing:
    """A target without rules is left as it is."""
    if not target.rules:
        return Placing(target)
    network = prepared.network
    static = specialised(prepared, {t: network.tensors[t].shape for t in network.inputs})
    operators = operators_of(static.graph, prepared.model.opset_imports.get("", 0))
    return by_verdicts(target, network, judge(operators, rules_of(target), target, target.toolkit(toolkit)))


def placed(target: Target, prepared: PreparedModel, toolkit: str | None) -> Target:
    return placing(target, prepared, toolkit).target


def by_verdicts(target: Target, network: Network, judged: Judged) -> Placing:
    """The same, where the operators have been judged already."""
    if not target.rules:
        return Placing(target)
    refused = {p: tuple(k for k, where in kernels_of(network, v).items() if where is Placement.REFUSED) for p, v in judged.items()}
    return Placing(replace(target, on_cpu=fallen_back(network, judged)), refused)
