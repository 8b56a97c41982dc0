"""What rknn-toolkit2 is known to refuse, said before it is built: operator, reason, and what mends it."""

from __future__ import annotations

from collections.abc import Iterator

from qbench.export import Job
from qbench.graph import specialised
from qbench.network import Precision
from qbench.placement.operators import operators_of
from qbench.placement.record import Placement
from qbench.targets.exporters.half_overflow import overflows
from qbench.targets.rewrites import REWRITES
from qbench.targets.rules import rules_of

CURES = {
    "LayerNormalization": "qbench rewrite --only layernorm-epsilon",
    "GroupNormalization": "qbench rewrite --only groupnorm-to-instancenorm",
    "Resize": "qbench rewrite --allow resize-cubic-to-linear, or run it before the NPU",
    "Gelu": "qbench rewrite --only gelu-to-erf",
    "LSTM": "plan it in FP16, which the toolkit builds",
}
"""What mends a refused operator; others are cut out: end the model before it and run it on the CPU."""


def refusals(job: Job) -> Iterator[str]:
    """One line for each node that the toolkit's rules refuse at the plan's precision, each pattern it stops at, each overflow of FP16."""
    network, target, model = job.prepared.network, job.target, job.prepared.model
    static = specialised(job.prepared, {t: network.tensors[t].shape for t in network.inputs})
    precision = {n: job.plan.precision[network.unit_of_kernel[k.name]] for k in network.kernels for n in k.nodes}
    rules = rules_of(target)
    for name, op in operators_of(static.graph, model.opset_imports.get("", 0)).items():
        verdict = rules.judge(op, target, precision.get(name, Precision.FP16), job.toolkit)
        if verdict.placement is Placement.REFUSED:
            cure = CURES.get(op.op, "qbench rewrite MODEL --target " + target.name + ", or end the model before it and run it on the CPU")
            yield f"node {name!r} ({op.op}): rknn-toolkit2 {job.toolkit} refuses it ({verdict.why}); {cure}"
    for rewrite in REWRITES.values():
        if (why := rewrite.hazards.get(target.rules)) and (places := rewrite.places(static)):
            yield f"node {places[0][0]!r}: rknn-toolkit2 {job.toolkit} stops there ({why}); qbench rewrite --only {rewrite.name}"
    yield from overflows(job)
