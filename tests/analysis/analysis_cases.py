"""Small networks with a known fault, and an analysis of a plan of theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import onnx
import onnx_ir as ir
from models import NPU, Array, model, node, observe, plan, prepare

from qbench.affine import Range
from qbench.analysis import Analysis, Finding, Options, analyze, run_checks, verdict
from qbench.analysis.checks import Outputs
from qbench.data import ArrayDataset
from qbench.graph import PreparedModel
from qbench.network import Precision, ScaleGroup
from qbench.plan import Plan
from qbench.qdq import Written, to_bytes, write
from qbench.runtime import Session
from qbench.statistics import Statistics
from qbench.walk import Walk
from qbench.workbench.analyzing import best_ranges
from qbench.workbench.plans import statistics_of

Feeds = list[dict[str, Array]]


def noise_feeds(shape: Sequence[int], count: int = 6, seed: int = 1, name: str = "x") -> Feeds:
    rng = np.random.default_rng(seed)
    return [{name: rng.normal(size=(1, *shape)).astype(np.float32)} for _ in range(count)]


def weights(seed: int, **shapes: Sequence[int]) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {name: (rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32) for name, shape in shapes.items()}


def detection_head(factor: float = 150.0) -> onnx.ModelProto:
    """BUG case B16: Conv -> {Mul by `factor` = boxes, Sigmoid = scores} -> Concat."""
    w = weights(0, w=(4, 3, 3, 3)) | {"factor": np.array([factor], np.float32)}
    nodes = [node("Conv", ["x", "w"], ["c"], "conv", pads=[1] * 4), node("Mul", ["c", "factor"], ["boxes"], "scale"),
             node("Sigmoid", ["c"], ["scores"], "gate"), node("Concat", ["boxes", "scores"], ["y"], "join", axis=1)]
    return model(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 8, 8, 8]}, w)


def chain(outlier: float = 1.0) -> onnx.ModelProto:
    """Four convolutions; channel 0 of the second one is `outlier` times as large, which the third one takes back: nothing changes in float."""
    w = weights(3, w1=(8, 3, 3, 3), w2=(8, 8, 3, 3), w3=(8, 8, 3, 3), w4=(5, 8, 1, 1))
    w["w2"][0] *= outlier
    w["w3"][:, 0] /= outlier
    nodes = []
    for i, (source, made) in enumerate((("x", "a"), ("a", "b"), ("b", "c"), ("c", "y")), start=1):
        pads = [1] * 4 if i < 4 else [0] * 4
        nodes.append(node("Conv", [source, f"w{i}"], [made if i == 4 else f"{made}_"], f"conv{i}", pads=pads))
        if i < 4:
            nodes.append(node("Relu", [f"{made}_"], [made], f"relu{i}"))
    return model(nodes, {"x": ["N", 3, 10, 10]}, {"y": ["N", 5, 10, 10]}, w)


def residual() -> onnx.ModelProto:
    """Conv + Add + Relu, which has an inner tensor with a scale of its own, then pooling and a Gemm."""
    w = weights(5, w1=(6, 3, 3, 3), w2=(6, 6, 3, 3), fc=(6, 4))
    nodes = [node("Conv", ["x", "w1"], ["a_"], "stem", pads=[1] * 4), node("Relu", ["a_"], ["a"]),
             node("Conv", ["a", "w2"], ["b"], "body", pads=[1] * 4), node("Add", ["b", "a"], ["s"]), node("Relu", ["s"], ["r"]),
             node("GlobalAveragePool", ["r"], ["g"], "pool"), node("Flatten", ["g"], ["f"], "flat"), node("Gemm", ["f", "fc"], ["y"], "head")]
    return model(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 4]}, w)


@dataclass(frozen=True)
class Case:
    """One plan of one model, analyzed; Q/DQ run as written, so that the host's integer kernels do not matter."""

    prepared: PreparedModel
    plan: Plan
    feeds: Feeds
    checks: int = 0

    @cached_property
    def statistics(self) -> Statistics:
        data = ArrayDataset({k: np.concatenate([f[k] for f in self.feeds]) for k in self.feeds[0]}, None, "data")
        return statistics_of(self.prepared, data)

    def fresh(self, group: ScaleGroup, bits: int) -> Range | None:
        if not all(t in self.statistics for t in group.sources):
            return None
        return Range(min(self.statistics[t].minimum for t in group.sources), max(self.statistics[t].maximum for t in group.sources))

    @cached_property
    def measured(self) -> tuple[Analysis, Outputs]:
        walk = Walk(self.prepared, self.plan, self.feeds, threads=1, simulate=True)
        return analyze(walk, self.statistics, best=best_ranges(self.prepared.network, self.plan, self.statistics, {}), data="data")

    @cached_property
    def analysis(self) -> Analysis:
        analysis, outputs = self.measured
        if not self.checks:
            return analysis
        above = {Precision.INT8: (Precision.INT16, Precision.FP16), Precision.INT16: (Precision.FP16,)}
        options = Options({u: above.get(p, ()) for u, p in self.plan.precision.items()}, dict(NPU), self.fresh, self.checks)
        return replace(analysis, checks=run_checks(analysis, outputs, self.prepared.network, options))

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        return verdict(self.analysis)

    @cached_property
    def x(self) -> dict[str, Array]:
        return {k: np.concatenate([f[k] for f in self.feeds]) for k in self.feeds[0]}

    def floats(self, names: Sequence[str]) -> dict[str, Array]:
        """Tensors of the float model on all samples at once."""
        return run(self.prepared.model, {n: n for n in names}, self.x)

    def quantized(self, plan: Plan, names: Sequence[str]) -> dict[str, Array]:
        """Tensors of a plan's whole model on all samples at once, as their readers see them."""
        written = write(self.prepared, plan)
        return run(written.model, {n: written.stored.get(n, n) for n in names}, self.x)


def case(proto: onnx.ModelProto, feeds: Feeds, checks: int = 0, **options: object) -> Case:
    """`options` as of `models.plan`."""
    prepared = prepare(proto)
    return Case(prepared, plan(prepared, observe(prepared, feeds), **options), feeds, checks)  # type: ignore[arg-type]


def run(source: ir.Model, names: Mapping[str, str], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Tensor -> its value; names: tensor -> value of the model."""
    watched = source.clone()
    values = {str(v.name): v for n in watched.graph for v in n.outputs}
    watched.graph.outputs.extend([values[v] for v in dict.fromkeys(names.values()) if not values[v].is_graph_output()])
    made = Session(to_bytes(watched), 1, simulate=True).run(feeds)
    return {t: made[v] for t, v in names.items()}


__all__ = ["Case", "Feeds", "Written", "case", "chain", "detection_head", "noise_feeds", "residual", "run", "weights"]
