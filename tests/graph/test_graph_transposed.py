"""Activations behind a turned convolution fuse with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from models import Array, model, node, prepare

from qbench import qdq
from qbench.runtime import Session

RNG = np.random.default_rng(5)
TURN = {"perm": [0, 2, 3, 1]}


def f32(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def both(nodes: list[onnx.NodeProto], weights: dict[str, Array], outs: dict[str, Any]) -> tuple[dict[str, Array], dict[str, Array], list[str], list[str]]:
    """Outputs before and after preparation, and the operators of the nodes and of the kernels."""
    proto = model(nodes, {"x": ["N", 8, 6, 5]}, outs, {"w": f32(4, 8, 1, 1), **weights})
    prepared = prepare(proto)
    onnx.checker.check_model(qdq.to_bytes(prepared.model), full_check=True)
    x = {"x": f32(2, 8, 6, 5)}
    before, after = (Session(m, 1).run(x) for m in (proto.SerializeToString(), qdq.to_bytes(prepared.model)))
    return before, after, [n.op_type for n in prepared.model.graph], [k.op for k in prepared.network.kernels]


@pytest.mark.parametrize("kind", ["Relu", "Clip", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "Elu", "HardSwish"])
@pytest.mark.parametrize("behind", [True, False])
def test_it_goes_in_front_and_the_function_stays(kind: str, behind: bool) -> None:
    reads = {"Clip": ["t", "low", "high"]}.get(kind, ["t"])
    weights = {"low": np.float32(0), "high": np.float32(6)} if kind == "Clip" else {}
    nodes = [node("Conv", ["x", "w"], ["c"], "conv"), node("Transpose", ["c"], ["t"], "turn", **TURN),
             node(kind, reads, ["a" if behind else "y"], "act")]
    nodes += [node("Add", ["a", "a"], ["y"], "twice")] if behind else []
    before, after, operators, kernels = both(nodes, {k: np.asarray(v) for k, v in weights.items()}, {"y": None})
    assert operators == ["Conv", kind, "Transpose", *(["Add"] if behind else [])]
    assert kernels[0] == f"Conv+{kind}"
    assert list(before) == list(after) == ["y"] and np.array_equal(before["y"], after["y"])


@pytest.mark.parametrize(("nodes", "outs", "why"), [
    ([node("Transpose", ["c"], ["t"], "turn", **TURN), node("Relu", ["t"], ["y"], "act"), node("Neg", ["t"], ["z"], "neg")], ["y", "z"],
     "another node reads what it would change"),
    ([node("Transpose", ["c"], ["t"], "turn", **TURN), node("Relu", ["t"], ["y"], "act")], ["y", "t"], "the turned tensor leaves the network"),
    ([node("Transpose", ["c"], ["t"], "turn", **TURN), node("Relu", ["t"], ["y"], "act"), node("Neg", ["c"], ["z"], "neg")], ["y", "z"],
     "another node reads the convolution"),
    ([node("Neg", ["c"], ["n"], "neg"), node("Transpose", ["n"], ["t"], "turn", **TURN), node("Relu", ["t"], ["y"], "act")], ["y"],
     "no convolution to fuse with"),
    ([node("Transpose", ["c"], ["t"], "turn", **TURN), node("PRelu", ["t", "slope"], ["y"], "act")], ["y"], "slopes along an axis that moves"),
])
def test_what_cannot_go_stays(nodes: list[onnx.NodeProto], outs: list[str], why: str) -> None:
    weights = {"slope": f32(4)} if any("slope" in n.input for n in nodes) else {}
    nodes = [node("Conv", ["x", "w"], ["c"], "conv"), *nodes]
    before, after, operators, _ = both(nodes, weights, dict.fromkeys(outs))
    assert operators == [n.op_type for n in nodes], why
    assert all(np.array_equal(before[k], after[k]) for k in outs)
