"""Constants behind a convolution become its bias and weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from models import Array, model, node, prepare
from numpy.typing import NDArray

from qbench import qdq
from qbench.runtime import Session

RNG = np.random.default_rng(3)


def f32(*shape: int) -> NDArray[np.float32]:
    return RNG.normal(size=shape).astype(np.float32)


def outputs(proto: onnx.ModelProto, x: Array) -> tuple[Array, Array, list[str]]:
    prepared = prepare(proto)
    onnx.checker.check_model(qdq.to_bytes(prepared.model), full_check=True)
    before = Session(proto.SerializeToString(), 1).run({"x": x})["y"]
    after = Session(qdq.to_bytes(prepared.model), 1).run({"x": x})["y"]
    return before, after, [n.op_type for n in prepared.model.graph]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "grouped", "depthwise"])
@pytest.mark.parametrize(("perm", "shape"), [(None, (1, 8, 1, 1)), ((0, 2, 3, 1), (8,)), ((0, 2, 3, 1), (1, 1, 1, 8)), ((0, 2, 3, 1), ()), ((0, 2, 1, 3), (1, 8, 1))])
@pytest.mark.parametrize("tail", [("Add",), ("Sub",), ("Mul",), ("Mul", "Add")])
def test_the_tail_goes_and_the_function_stays(bias: bool, kind: str, perm: tuple[int, ...] | None, shape: tuple[int, ...], tail: tuple[str, ...]) -> None:
    op = "ConvTranspose" if kind == "ConvTranspose" else "Conv"
    group = {"grouped": 2, "depthwise": 8}.get(kind, 1)
    weight = f32(8, 8, 3, 3) if op == "ConvTranspose" else f32(8, 8 // group, 3, 3)
    attributes: dict[str, Any] = {"group": group}
    nodes = [node(op, ["x", "w", *(["b"] if bias else [])], ["c"], "conv", **attributes)]
    last = "c"
    if perm is not None:
        nodes.append(node("Transpose", [last], ["t"], "turn", perm=list(perm)))
        last = "t"
    weights = {"w": weight} | ({"b": f32(8)} if bias else {})
    for i, name in enumerate(tail):
        weights[f"k{i}"] = f32(*shape)
        out = "y" if i == len(tail) - 1 else f"m{i}"
        nodes.append(node(name, [last, f"k{i}"] if name == "Sub" or i else [f"k{i}", last], [out], f"tail{i}"))
        last = out
    before, after, ops = outputs(model(nodes, {"x": ["N", 8, 6, 6]}, {"y": None}, weights), f32(2, 8, 6, 6))
    assert ops == [op, *(["Transpose"] if perm else [])]
    assert np.abs(before - after).max() <= 1e-5 * np.abs(before).max()


@pytest.mark.parametrize(("nodes", "why"), [
    ([node("Conv", ["x", "w"], ["c"], "conv"), node("Add", ["c", "k"], ["y"], "add")], "an axis of positions"),
    ([node("Conv", ["x", "w"], ["c"], "conv"), node("Sub", ["s", "c"], ["y"], "sub")], "the constant is the first operand"),
    ([node("Conv", ["x", "w"], ["c"], "conv"), node("Add", ["c", "s"], ["a"], "add"), node("Mul", ["a", "c"], ["y"], "mul")], "another reader"),
])
def test_what_cannot_go_stays(nodes: list[onnx.NodeProto], why: str) -> None:
    weights = {"w": f32(8, 8, 1, 1), "k": f32(1, 1, 6, 1), "s": f32(1, 8, 1, 1)}
    used = {i for n in nodes for i in n.input}
    before, after, ops = outputs(model(nodes, {"x": ["N", 8, 6, 6]}, {"y": None}, {k: v for k, v in weights.items() if k in used}), f32(1, 8, 6, 6))
    assert ops == [n.op_type for n in nodes], why
    assert np.array_equal(before, after)


def test_a_shared_weight_is_not_scaled_for_one_of_its_readers() -> None:
    nodes = [node("Conv", ["x", "w"], ["c"], "one"), node("Mul", ["c", "s"], ["m"], "mul"), node("Conv", ["m", "w"], ["y"], "two")]
    before, after, ops = outputs(model(nodes, {"x": ["N", 8, 6, 6]}, {"y": None}, {"w": f32(8, 8, 1, 1), "s": f32(1, 8, 1, 1)}), f32(1, 8, 6, 6))
    assert ops == ["Conv", "Mul", "Conv"] and np.array_equal(before, after)
