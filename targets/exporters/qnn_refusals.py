"""What onnxruntime-qnn leaves to the CPU or computes otherwise, said before it is compiled, as neither is allowed: operator, reason, and what mends it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from qbench.export import Job
from qbench.graph import specialised
from qbench.network import Precision
from qbench.placement.operators import operators_of
from qbench.placement.record import Placement
from qbench.targets.exporters.half_overflow import overflows
from qbench.targets.rewrites import REWRITES
from qbench.targets.rules import rules_of

IN_INTEGERS: Mapping[str, str] = MappingProxyType({
    "Erf": "between quantized tensors the provider has no Erf, not even as part of a GELU, which it takes in FP16",
    "PRelu": "its slopes have no codes, so that the HTP computes it in FP16",
})
"""Operators that a plan may have in integers and the provider does not. Source: onnxruntime-qnn 2.7.0, compiled for HTP (2026)."""


def refusals(job: Job) -> Iterator[str]:
    """One line for each kind of operator that does not run on the HTP as the plan wants it, one for each overflow of FP16."""
    network, target, model = job.prepared.network, job.target, job.prepared.model
    static = specialised(job.prepared, {t: network.tensors[t].shape for t in network.inputs})
    precision = {n: job.plan.precision[network.unit_of_kernel[k.name]] for k in network.kernels for n in k.nodes}
    rules, told = rules_of(target), set()
    for name, op in operators_of(static.graph, model.opset_imports.get("", 0)).items():
        wanted = precision.get(name, Precision.FP16)
        verdict = rules.judge(op, target, wanted, job.toolkit)
        why = verdict.why if verdict.placement in (Placement.CPU, Placement.REFUSED) else "" if wanted.is_float else IN_INTEGERS.get(op.op, "")
        if why and op.op not in told:
            told.add(op.op)
            fitting = [r.name for r in REWRITES.values() if op.op in r.ops and r.places(static)]
            cure = f"qbench rewrite MODEL --target {target.name} --allow {fitting[0]}, or end" if fitting else "end"
            yield f"node {name!r} ({op.op}): onnxruntime-qnn does not take it as planned ({why}), and the CPU is not used instead; {cure} the model before it"
    yield from overflows(job)
