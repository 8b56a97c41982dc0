"""Small models for tests, built with onnx.helper to the descriptions of the bug cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qbench.affine import Range, Scheme
from qbench.graph import PreparedModel, load_network
from qbench.network import Precision
from qbench.plan import Granularity, Plan, make_plan
from qbench.qdq import quantized_tensors, to_bytes
from qbench.runtime import Session
from qbench.target import QuantScheme

Array = NDArray[Any]
NPU = {"int8": QuantScheme(Scheme(8, False, False), Scheme(8, True, True, True), True),
       "int16": QuantScheme(Scheme(16, True, True), Scheme(16, True, True, True), True)}
"""uint8 asymmetric activations with int8 narrow per-channel weights; int16 symmetric for both."""


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], name: str = "", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), name=name, **attributes)


def model(nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, Sequence[int | str]], outputs: Mapping[str, Sequence[int | str] | None],
          weights: Mapping[str, Array], opset: int = 17, ir_version: int = 8, weights_as_inputs: bool = False) -> onnx.ModelProto:
    def info(name: str, shape: Sequence[int | str] | None) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    declared = [info(k, v) for k, v in inputs.items()]
    if weights_as_inputs:
        declared += [info(k, w.shape) for k, w in weights.items()]
    graph = helper.make_graph(list(nodes), "g", declared, [info(k, v) for k, v in outputs.items()],
                              [numpy_helper.from_array(w, k) for k, w in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def conv_relu(opset: int = 17, **kwargs: Any) -> onnx.ModelProto:
    """Conv(3 -> 4, 3x3, pad 1) + Relu, weights N(0, 0.5), dynamic N and H."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(0, 0.5, (4, 3, 3, 3)).astype(np.float32), "b": rng.normal(0, 0.5, 4).astype(np.float32)}
    nodes = [node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1]), node("Relu", ["c"], ["y"], "relu")]
    return model(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 4, 8, 8]}, weights, opset, **kwargs)


def prepare(proto: onnx.ModelProto | Path) -> PreparedModel:
    return load_network(proto if isinstance(proto, Path) else ir.serde.deserialize_model(proto))


def observe(prepared: PreparedModel, feeds: Sequence[Mapping[str, Array]]) -> dict[str, Range]:
    """Exact min-max range of every scale group."""
    names = quantized_tensors(prepared.network)
    watched = prepared.model.clone()
    values = {str(v.name): v for n in watched.graph for v in n.outputs}
    watched.graph.outputs.extend([values[n] for n in names if n in values and not values[n].is_graph_output()])
    session = Session(to_bytes(watched), 1)
    seen: dict[str, list[float]] = {}
    for feed in feeds:
        for name, value in {**session.run(feed), **feed}.items():
            seen.setdefault(name, []).extend((float(value.min()), float(value.max())))
    return {g.name: Range(min(v), max(v)) for g in prepared.network.groups
            if (v := [x for t in g.sources for x in seen.get(t, [])])}


def plan(prepared: PreparedModel, ranges: Mapping[str, Range], base: Precision = Precision.INT8, floats: Sequence[str] = (),
         granularity: Granularity = Granularity.PER_CHANNEL, schemes: Mapping[str, QuantScheme] = NPU) -> Plan:
    """Every quantizable unit in `base`, those named in `floats` in FP16."""
    precision = {u.name: base if u.quantizable and u.name not in floats else Precision.FP16 for u in prepared.network.units}
    return make_plan(prepared.network, precision, ranges, schemes, calibrator="minmax", granularity=granularity)


def sqnr_db(reference: Array, other: Array) -> float:
    noise = float(np.sum((reference.astype(np.float64) - other) ** 2))
    return float("inf") if noise == 0.0 else float(10 * np.log10(np.sum(reference.astype(np.float64) ** 2) / noise))
