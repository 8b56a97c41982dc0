"""B15: tensors that only move between operators share one scale, through any chain of them; what computes does not pass it on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from models import Array, model, node, observe, plan, prepare, sqnr_db

from qbench import qdq
from qbench.runtime import Session
from qbench.schemes import quant_scheme

SYMMETRIC = {"int8": quant_scheme("int8:symmetric,narrow", "int8:symmetric,narrow")}
X = {"x": np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 4, 4, 4)}
ONES = [1, 4, 1, 1]


def gain(name: str, factor: float, channels: int = 4) -> tuple[onnx.NodeProto, dict[str, Array]]:
    """A 1x1 convolution that multiplies each channel: its output range is known."""
    w = np.eye(channels, dtype=np.float32).reshape(channels, channels, 1, 1) * np.float32(factor)
    return node("Conv", ["x", f"w_{name}"], [name], f"conv_{name}"), {f"w_{name}": w}


def scales(nodes: Sequence[onnx.NodeProto], weights: dict[str, Array], outputs: Sequence[str] = ("y",), **integers: Any) -> dict[str, float]:
    """Activation tensor -> the scale of its pair; tensors without one are left out."""
    proto = model(nodes, {"x": [1, 4, 4, 4]}, dict.fromkeys(outputs), weights)
    for name, value in integers.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    prepared = prepare(proto)
    found = qdq.write(prepared, plan(prepared, observe(prepared, [X]), schemes=SYMMETRIC))
    before = Session(proto.SerializeToString(), 1).run(X)
    after = Session(qdq.to_bytes(found.model), 1).run(X)
    assert all(sqnr_db(before[k], after[k]) > 25 for k in before)
    made: dict[str, float] = {}
    for n in found.model.graph:
        if n.op_type == "QuantizeLinear" and n.inputs[0] is not None and n.inputs[1] is not None and n.inputs[1].const_value is not None:
            made[str(n.inputs[0].name).removesuffix("_float")] = float(n.inputs[1].const_value.numpy())
    return made


def one(made: dict[str, float], *names: str) -> float:
    """The scale that `names` share."""
    assert len({made[n] for n in names}) == 1
    return made[names[0]]


def test_a_concat_takes_the_union_of_what_meets_in_it() -> None:
    a, wa = gain("a", 1.0)
    b, wb = gain("b", 4.0)
    made = scales([a, b, node("Concat", ["a", "b"], ["y"], "cat", axis=1)], wa | wb)
    assert one(made, "a", "b", "y") == pytest.approx(4 / 127, abs=1e-6) == pytest.approx(0.031496, abs=1e-6)


def test_groups_are_transitive_through_nested_concats() -> None:
    parts = [gain("a", 1.0), gain("b", 2.0), gain("c", 8.0)]
    nodes = [n for n, _ in parts] + [node("Concat", ["a", "b"], ["ab"], "inner", axis=1), node("Concat", ["ab", "c"], ["y"], "outer", axis=1)]
    made = scales(nodes, {k: v for _, w in parts for k, v in w.items()})
    assert one(made, "a", "b", "ab", "c", "y") == pytest.approx(8 / 127, rel=1e-6)


def test_split_and_swapped_concat_share_one_scale() -> None:
    a, wa = gain("a", 3.0)
    nodes = [a, node("Split", ["a", "two"], ["s", "t"], "split", axis=1), node("Concat", ["t", "s"], ["y"], "cat", axis=1)]
    assert one(scales(nodes, wa, two=np.array([2, 2])), "a", "s", "t", "y") == pytest.approx(3 / 127, rel=1e-6)


PASSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "MaxPool": ({"kernel_shape": [2, 2], "strides": [2, 2]}, {}), "Transpose": ({"perm": [0, 2, 3, 1]}, {}), "Flatten": ({}, {}),
    "Reshape": ({}, {"r": np.array([1, 16, 4])}), "Slice": ({}, {"s": np.array([0]), "e": np.array([2]), "ax": np.array([1])}),
    "Pad": ({}, {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1])}), "Unsqueeze": ({}, {"u": np.array([0])}), "DepthToSpace": ({"blocksize": 2}, {}),
    "Resize": ({"mode": "nearest"}, {"roi": np.zeros(0, np.float32), "up": np.array([1, 1, 2, 2], np.float32)}),
    "Gather": ({"axis": 1}, {"i": np.array([2, 0])}), "Tile": ({}, {"n": np.array([1, 1, 2, 1])}), "Expand": ({}, {"m": np.array([3, 4, 4, 4])})}


@pytest.mark.parametrize("op", PASSES)
def test_operators_that_move_values_add_no_new_scale(op: str) -> None:
    """Their output joins the group, and so does what it is concatenated with."""
    attributes, extra = PASSES[op]
    a, wa = gain("a", 5.0)
    made = scales([a, node(op, ["a", *extra], ["y"], "mover", **attributes), node("Relu", ["a"], ["z"], "other")], wa, ("y", "z"), **extra)
    assert "y" not in made or made["y"] == made["a"]
    assert made["a"] == pytest.approx(5 / 127, rel=1e-6)
    b, wb = gain("b", 9.0)
    joined = [a, b, node(op, ["a", *extra], ["am"], "ma", **attributes), node(op, ["b", *extra], ["bm"], "mb", **attributes),
              node("Concat", ["am", "bm"], ["y"], "cat", axis=1)]
    made = scales(joined, wa | wb, **extra)
    assert one(made, "a", "b", "y") == pytest.approx(9 / 127, rel=1e-6)


@pytest.mark.parametrize(("op", "attributes", "extra"), [
    ("AveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}, {}), ("GlobalAveragePool", {}, {}), ("Sigmoid", {}, {}),
    ("Resize", {"mode": "linear"}, {"roi": np.zeros(0, np.float32), "up": np.array([1, 1, 2, 2], np.float32)}),
    ("Resize", {"mode": "cubic"}, {"roi": np.zeros(0, np.float32), "up": np.array([1, 1, 2, 2], np.float32)}),
    ("Pad", {}, {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "v": np.float32(7.5)})])
def test_operators_that_make_values_have_a_scale_of_their_own(op: str, attributes: dict[str, Any], extra: dict[str, Array]) -> None:
    a, wa = gain("a", 5.0)
    proto = model([a, node(op, ["a", *extra], ["y"], "maker", **attributes)], {"x": [1, 4, 4, 4]}, {"y": None}, wa)
    for name, value in extra.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    groups = prepare(proto).network.group_of
    assert groups["a"].tensors == ("a",) and groups["y"].tensors == ("y",)


@pytest.mark.parametrize("constant_range", [0.5, 20.0])
def test_a_constant_in_a_concat_belongs_to_its_group(constant_range: float) -> None:
    """Also where the Concat is a graph output; a constant beyond everything computed widens the range, as it does not clip in float."""
    a, wa = gain("a", 5.0)
    k = np.linspace(-constant_range, constant_range, 16, dtype=np.float32).reshape(1, 1, 4, 4)
    proto = model([a, node("Concat", ["a", "k"], ["y"], "cat", axis=1)], {"x": [1, 4, 4, 4]}, {"y": None}, wa | {"k": k})
    prepared = prepare(proto)
    found = qdq.write(prepared, plan(prepared, observe(prepared, [X]), schemes=SYMMETRIC))
    before, after = Session(proto.SerializeToString(), 1).run(X)["y"], Session(qdq.to_bytes(found.model), 1).run(X)["y"]
    assert np.abs(before - after).max() <= max(5, constant_range) / 127 * 1.01
    made = {float(n.inputs[1].const_value.numpy()) for n in found.model.graph if n.op_type == "QuantizeLinear" and n.inputs[0] is not None
            and n.inputs[0].name != "x" and n.inputs[1] is not None and n.inputs[1].const_value is not None}
    assert made == {np.float32(max(5, constant_range) / 127)}


def test_scores_beside_boxes_show_the_collapse_of_b16() -> None:
    """One scale of 150/127 for both: scores below 0.59 are zeros, which `qbench analyze` must be able to see in the file."""
    a, wa = gain("a", 1.0)
    nodes = [a, node("Mul", ["a", "k"], ["boxes"], "mul"), node("Sigmoid", ["a"], ["scores"], "sigmoid"),
             node("Concat", ["boxes", "scores"], ["y"], "cat", axis=1)]
    made = scales(nodes, wa | {"k": np.full((1, 1, 1, 1), 150.0, np.float32)})
    assert one(made, "boxes", "scores", "y") == pytest.approx(150 / 127, rel=1e-6)


def select(a: str, b: str) -> list[onnx.NodeProto]:
    return [node("Greater", ["x", "edge"], ["above"], "compare"), node("Where", ["above", a, b], ["y"], "select")]


EDGE = {"edge": np.array(0.1, np.float32)}


def test_what_a_where_selects_from_shares_its_scale() -> None:
    a, wa = gain("a", 1.0)
    b, wb = gain("b", 4.0)
    made = scales([a, b, *select("a", "b")], wa | wb | EDGE)
    assert one(made, "a", "b", "y") == pytest.approx(4 / 127, rel=1e-6)


@pytest.mark.parametrize(("fill", "largest"), [(0.0, 1.0), (3.0, 3.0), (-5.0, 5.0)])
def test_a_constant_that_a_where_selects_is_covered(fill: float, largest: float) -> None:
    a, wa = gain("a", 1.0)
    made = scales([a, *select("a", "fill")], wa | EDGE | {"fill": np.array(fill, np.float32)})
    assert one(made, "a", "y") == pytest.approx(largest / 127, rel=1e-6)


@pytest.mark.parametrize("mark", [1e9, -500.0, np.inf])
def test_a_mark_is_no_neighbour_of_values(mark: float) -> None:
    """An invalid point set to 1e9 would own the scale: the Where stays in float and has a scale group of its own."""
    a, wa = gain("a", 1.0)
    proto = model([a, *select("a", "mark"), node("Softmax", ["y"], ["z"], "soft", axis=1)], {"x": [1, 4, 4, 4]}, {"z": None},
                  wa | EDGE | {"mark": np.array(mark, np.float32)})
    network = prepare(proto).network
    unit = next(u for u in network.units if u.name == "select")
    assert not unit.quantizable and ("a mark that would own the scale" in unit.reason) != bool(np.isinf(mark))
    assert network.group_of["a"].tensors == ("a",) and network.group_of["y"].tensors == ("y",)
