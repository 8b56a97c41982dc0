"""Jobs for any target: a small network, a plan with the target's own schemes, a few inputs."""

from __future__ import annotations

from collections.abc import Mapping

import models
import numpy as np
import onnx
from export_cases import three_convs

from qbench import qdq, targets
from qbench.export import Job, planned
from qbench.fixed import fixed_range
from qbench.network import Precision
from qbench.plan import Granularity, make_plan
from qbench.target import Target


def float_of(target: Target) -> str:
    """The float precision that a target computes what is not quantized in."""
    return "fp16" if Precision.FP16 in target.available() else "fp32"


def job_for(name: str, precision: Mapping[str, str] | None = None, proto: onnx.ModelProto | None = None, granularity: Granularity = Granularity.PER_CHANNEL,
            options: Mapping[str, str] | None = None, schemes_of: str = "", calibrator: str = "minmax") -> Job:
    """`precision`: unit -> precision, "float" for the target's own; INT8 where it says nothing. schemes_of   another target's schemes"""
    target = targets.load(name)
    schemes = {str(p.precision): p.scheme for p in targets.load(schemes_of or name).precisions if p.scheme is not None}
    prepared = models.prepare(proto or three_convs())
    rng = np.random.default_rng(5)
    feeds = tuple({n: rng.normal(0.0, 1.0, prepared.network.tensors[n].shape).astype(np.float32) for n in prepared.network.inputs} for _ in range(3))
    words = {u: float_of(target) if p == "float" else p for u, p in (precision or {}).items()}
    chosen = {u.name: Precision(words.get(u.name, "int8" if u.quantizable else float_of(target))) for u in prepared.network.units}
    ranges = models.observe(prepared, feeds)
    for kernel in prepared.network.kernels:                       # as `qbench search` does (BUG case B12)
        for tensor in kernel.outputs:
            prescribed = fixed_range(kernel.op, target.fixed_outputs, schemes["int8"].activation) if target.fixed_outputs else None
            if prescribed is not None and tensor in prepared.network.group_of:
                ranges[prepared.network.group_of[tensor].name] = prescribed
    plan = make_plan(prepared.network, chosen, ranges, schemes, calibrator=calibrator, granularity=granularity, target=name,
                     toolkit=target.toolkit(None))
    written = qdq.write(prepared, plan)
    return Job(prepared, plan, written, planned(prepared, plan, written, target), target, target.toolkit(None), feeds, options=dict(options or {}))


def attention() -> onnx.ModelProto:
    """MatMul -> Softmax -> MatMul by a weight: BUG case B12."""
    rng = np.random.default_rng(7)
    weights = {"wq": rng.normal(0.0, 0.5, (8, 8)).astype(np.float32), "wv": rng.normal(0.0, 0.5, (8, 8)).astype(np.float32)}
    nodes = [models.node("MatMul", ["x", "wq"], ["s"], "scores"), models.node("Softmax", ["s"], ["p"], "softmax", axis=-1),
             models.node("MatMul", ["p", "wv"], ["y"], "values")]
    return models.model(nodes, {"x": [1, 4, 8]}, {"y": [1, 4, 8]}, weights)
