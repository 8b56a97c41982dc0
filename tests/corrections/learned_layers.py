"""Small networks with one kind of layer each, and what the tests of the learning corrections measure on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from models import NPU, Array, model, node, observe, plan, prepare, sqnr_db

from qbench import qdq
from qbench.affine import Scheme
from qbench.graph import PreparedModel
from qbench.network import Precision
from qbench.packed import Packed
from qbench.plan import Granularity, Plan
from qbench.qdq import to_bytes
from qbench.runtime import Session
from qbench.target import QuantScheme

KINDS = ("conv", "conv1d", "conv3d", "grouped", "depthwise", "dilated", "same", "transposed", "gemm", "gemm-t", "matmul", "matmul-bias")
"""Kinds of layer; each network is such a layer, a Relu, and a second one of the same kind where that fits."""


def four_bits(bits: int = 4) -> dict[str, QuantScheme]:
    """Weights of 4 bits, in blocks of four input channels where the plan is per group."""
    return {"int8": replace(NPU["int8"], weight=Scheme(bits, True, True, True), weight_block=4), "int16": NPU["int16"]}


def network(kind: str, seed: int = 0) -> tuple[onnx.ModelProto, list[dict[str, Array]]]:
    """The network and 12 samples for it; neighbouring inputs are alike, as pictures are, so that rounding errors can cancel."""
    rng = np.random.default_rng(seed)

    def w(*shape: int) -> Array:
        return rng.normal(0, 1 / np.sqrt(np.prod(shape[1:])), shape).astype(np.float32)

    c = 8
    weights: dict[str, Array] = {}
    how: dict[str, Any] = {}
    op = "Conv"
    shape: tuple[int, ...] = (c, 7, 7)
    first: tuple[int, ...] = (c, c, 3, 3)
    second: tuple[int, ...] = first
    match kind:
        case "conv1d":
            shape, first, second = (c, 24), (c, c, 3), (c, c, 3)
        case "conv3d":
            shape, first, second = (c, 5, 5, 5), (c, c, 2, 2, 2), (c, c, 2, 2, 2)
        case "grouped":
            how, first, second = {"group": 2}, (c, c // 2, 3, 3), (c, c // 2, 3, 3)
        case "depthwise":
            how, first, second = {"group": c}, (c, 1, 3, 3), (c, 1, 3, 3)
        case "dilated":
            how = {"dilations": [2, 1], "pads": [1, 0, 2, 1]}
        case "same":
            how = {"auto_pad": "SAME_UPPER", "strides": [2, 2]}
        case "transposed":
            op, how, first, second = "ConvTranspose", {"strides": [2, 2]}, (c, c, 3, 3), (c, c, 2, 2)
        case "gemm" | "gemm-t" | "matmul" | "matmul-bias":
            op = "MatMul" if kind.startswith("matmul") else "Gemm"
            shape, first, second = ((5, 16) if op == "MatMul" else (16,)), (16, 16), (16, 16)
            how = {"transB": 1} if kind == "gemm-t" else {}
    weights |= {"w0": w(*first), "w1": w(*second)}
    with_bias = kind not in ("same", "matmul")
    if with_bias:
        weights |= {f"b{i}": rng.normal(0, 0.3, (len(weights[f"w{i}"]),)).astype(np.float32) for i in (0, 1)}
    nodes = []
    source = "x"
    for i, name in enumerate(("first", "second")):
        made = f"y{i}"
        if kind == "matmul-bias":
            nodes += [node(op, [source, f"w{i}"], [f"p{i}"], name), node("Add", [f"p{i}", f"b{i}"], [made], f"{name}_bias")]
        else:
            nodes.append(node(op, [source, f"w{i}", *([f"b{i}"] if with_bias else [])], [made], name, **how))
        source = f"r{i}"
        nodes.append(node("Relu", [made], [source], f"relu{i}"))
    samples = []
    mixing = rng.normal(size=(3, shape[0] if op != "MatMul" else shape[-1]))
    for _ in range(12):
        latent: Array = rng.normal(size=(3, *(shape[1:] if op != "MatMul" else shape[:-1])))
        x = np.asarray(np.tensordot(mixing, latent, (0, 0)) + 0.1 * rng.normal(size=(mixing.shape[1], *latent.shape[1:])))
        samples.append({"x": np.asarray(np.moveaxis(x, 0, -1) if op == "MatMul" else x, np.float32)[None]})
    return model(nodes, {"x": ["N", *shape]}, {source: None}, weights), samples


def opened(kind: str, bits: int = 4, seed: int = 0, granularity: Granularity = Granularity.PER_CHANNEL) -> tuple[PreparedModel, Plan, list[dict[str, Array]]]:
    proto, samples = network(kind, seed)
    prepared = prepare(proto)
    made = plan(prepared, observe(prepared, samples), Precision.INT8, granularity=granularity, schemes=four_bits(bits))
    return prepared, made, samples


def with_tensors(made: Plan, tensors: dict[str, Packed] | Any) -> Plan:
    return replace(made, tensors={**made.tensors, **tensors})


def output(prepared: PreparedModel, made: Plan | None, samples: list[dict[str, Array]], name: str = "") -> Array:
    """The network's output, or the value `name` of the Q/DQ model, on all samples at once; the float one without a plan."""
    model_ = prepared.model.clone() if made is None else qdq.write(prepared, made).model
    if name:
        model_.graph.outputs[:] = [v for n in model_.graph for v in n.outputs if v.name == name]
    feeds = {"x": np.concatenate([s["x"] for s in samples])}
    return next(iter(Session(to_bytes(model_), 1, True).run(feeds).values()))


def quality_db(prepared: PreparedModel, made: Plan, samples: list[dict[str, Array]]) -> float:
    return float(sqnr_db(output(prepared, None, samples), output(prepared, made, samples)))
