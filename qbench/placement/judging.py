"""Which operators a target runs, per node and per kernel, by the rules that its file names."""

from __future__ import annotations

from collections.abc import Mapping

from qbench.network import Network, Precision
from qbench.placement.record import Operator, Placement, Rules, Verdict
from qbench.placement.segments import parts_of
from qbench.target import Target

Judged = Mapping[Precision, Mapping[str, Verdict]]
"""Precision -> node -> what the rules say of it."""


def judge(operators: Mapping[str, Operator], rules: Rules, target: Target, toolkit: str) -> Judged:
    """Every node at every precision that the toolkit offers."""
    return {p: {n: rules.judge(o, target, p, toolkit) for n, o in operators.items()} for p in target.available(toolkit)}


def kernels_of(network: Network, verdicts: Mapping[str, Verdict]) -> dict[str, Placement]:
    """Kernel -> the worst placement of its nodes."""
    return {k.name: max((verdicts[n].placement for n in k.nodes if n in verdicts), key=lambda p: p.severity, default=Placement.UNKNOWN)
            for k in network.kernels}


def fallen_back(network: Network, judged: Judged) -> dict[Precision, dict[str, float]]:
    """At each precision: kernel on the CPU -> its share of the hand-over of the segment that it belongs to.

    A refused kernel counts: it has to be cut out. One that the toolchain splits stays on the NPU: published latencies of classifiers, whose last
    Gemm is split, are met without a hand-over (experiments/fit_rk3588.py).
    """
    found = {}
    for precision, verdicts in judged.items():
        away = {k for k, p in kernels_of(network, verdicts).items() if p in (Placement.CPU, Placement.REFUSED)}
        found[precision] = {k: 1.0 / len(part) for part in parts_of(network, away) for k in part}
    return found
