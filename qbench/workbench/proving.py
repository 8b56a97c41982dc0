"""Proof that a rewritten graph answers as the one before: both run in onnxruntime, operator by operator, on the same inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qbench.errors import ModelError
from qbench.qdq.saving import to_bytes

Array = NDArray[Any]
Feeds = Mapping[str, Array]
RANDOM_SAMPLES = 2
NUDGE = 1e-5
"""Relative change of the inputs by which the amplification of rounding is measured."""
MOST_AMPLIFIED = 100.0
OTHER_INDICES = 0.01
"""Share of integer results (indices, classes) that other rounding may tip over."""
LARGE = 1024
"""Elements from which a tensor counts as weights."""
SMALLEST = 16


@dataclass(frozen=True)
class Answers:
    """Of one graph, one dict of outputs for each of the inputs."""

    outputs: tuple[dict[str, Array], ...]


def answers(models: Sequence[ir.Model], feeds: Sequence[Feeds]) -> Answers:
    """Outputs of models that run one behind the other, e.g. device and host, without onnxruntime's optimizer: it rounds as it likes.

    Raises ModelError when onnxruntime cannot run one.
    """
    import onnxruntime as ort

    results: list[dict[str, Array]] = [{} for _ in feeds]
    for model in models:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        try:
            session = ort.InferenceSession(to_bytes(model), options, providers=["CPUExecutionProvider"])
            names = [o.name for o in session.get_outputs()]
            for found, feed in zip(results, feeds, strict=True):
                have = {**feed, **found}
                found.update(zip(names, session.run(None, {i.name: have[i.name] for i in session.get_inputs()}), strict=True))
        except Exception as error:                                # onnxruntime raises many kinds
            raise ModelError(f"onnxruntime cannot run the graph: {str(error).splitlines()[0][:300]}") from error
    return Answers(tuple(results))


def difference(one: Answers, other: Answers) -> float:
    """The largest difference of an output of real numbers over its largest magnitude, over all inputs; of outputs in common. An output of
    integers counts with the share of entries that differ."""
    worst = 0.0
    for a, b in zip(one.outputs, other.outputs, strict=True):
        for name in a.keys() & b.keys():
            worst = max(worst, _apart(a[name], b[name]))
    return worst


def _apart(a: Array, b: Array) -> float:
    if a.shape != b.shape:
        return float("inf")
    if not a.size or a.dtype.kind not in "fiub":
        return 0.0
    if a.dtype.kind != "f":
        return float(np.mean(a.astype(np.int64) != b.astype(np.int64)))
    x, y = a.astype(np.float64), b.astype(np.float64)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    if same.all():
        return 0.0
    if not (np.isfinite(x[~same]).all() and np.isfinite(y[~same]).all()):
        return float("inf")
    finite = x[np.isfinite(x)]
    return float(np.abs(x[~same] - y[~same]).max() / max(np.abs(finite).max(initial=0.0), np.finfo(np.float32).tiny))


def allowed(tolerance: float, amplification: float) -> float:
    """Largest difference at the outputs of a network for a rewrite of this tolerance: rounding in the middle of it grows towards the end."""
    return tolerance * amplification


def amplification(model: ir.Model, feeds: Sequence[Feeds], reference: Answers) -> float:
    """How much a relative change of the inputs grows on its way through the network; 1 to 100."""
    rng = np.random.default_rng(2)
    nudged = [{k: (v * (1 + NUDGE * rng.uniform(-1, 1, v.shape))).astype(v.dtype) if v.dtype.kind == "f" else v for k, v in f.items()} for f in feeds]
    real = Answers(tuple({k: v for k, v in o.items() if v.dtype.kind == "f"} for o in reference.outputs))
    return float(np.clip(difference(real, answers([model], nudged)) / NUDGE, 1.0, MOST_AMPLIFIED))


def random_feeds(model: ir.Model, count: int = RANDOM_SAMPLES) -> list[dict[str, Array]]:
    """Inputs of normal noise; integers are 0 or 1, which any table of indices has."""
    rng, found = np.random.default_rng(0), []
    for _ in range(count):
        feed = {}
        for value in model.graph.inputs:
            shape: Any = value.shape
            dtype = value.dtype.numpy() if value.dtype is not None else np.dtype(np.float32)
            feed[str(value.name)] = (rng.standard_normal(tuple(shape)).astype(dtype) if dtype.kind == "f" else rng.integers(0, 2, tuple(shape)).astype(dtype))
        found.append(feed)
    return found


def weightless(model: ir.Model) -> bool:
    """Whether all larger tensors of weights are zeros: the file tells shapes only."""
    large = [held for held in _weights(model.graph.initializers.values()) if held.size >= LARGE]
    return bool(large) and not any(held.any() for held in large)


def _weights(values: Iterable[ir.Value]) -> list[Array]:
    return [v.const_value.numpy() for v in values if v.const_value is not None and v.const_value.dtype == ir.DataType.FLOAT]


def with_random_weights(model: ir.Model) -> ir.Model:
    """A copy whose tensors of zeros hold random weights (He et al. 2015), since zeros would agree with anything."""
    twin, rng = model.clone(), np.random.default_rng(1)
    variances = {id(n.inputs[4]) for n in twin.graph if n.op_type == "BatchNormalization"}
    for value in twin.graph.initializers.values():
        held = value.const_value
        if held is None or held.dtype != ir.DataType.FLOAT or held.size < SMALLEST or held.numpy().any():
            continue
        shape = held.numpy().shape
        drawn = rng.standard_normal(shape) * np.sqrt(2.0 / (held.numpy()[0].size if len(shape) > 1 else 100))
        value.const_value = ir.tensor((1 + np.abs(drawn) if id(value) in variances else drawn).astype(np.float32), name=value.name)
    return twin
