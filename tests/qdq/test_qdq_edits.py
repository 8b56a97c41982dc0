"""The arrays of a plan: new constants, added biases and rounding, each against the same change made by hand; misfits are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from layers import LAYERS, Layer
from models import Array, model, node, observe, plan, prepare, sqnr_db

from qbench import qdq
from qbench.errors import PlanError
from qbench.graph import PreparedModel
from qbench.network import Precision
from qbench.packed import Packed
from qbench.plan import Plan
from qbench.runtime import Session

RNG = np.random.default_rng(3)


def with_tensors(made: Plan, **arrays: Array) -> Plan:
    """Keys as `constant__w` for "constant:w"."""
    return replace(made, tensors={k.replace("__", ":"): Packed.of(v) for k, v in arrays.items()})


def floats(prepared: PreparedModel) -> Plan:
    return plan(prepared, {}, floats=[u.name for u in prepared.network.units])


def run(model_: Any, feeds: Mapping[str, Array], simulate: bool = True) -> Array:
    data = qdq.to_bytes(model_)
    onnx.checker.check_model(data, full_check=True)
    return next(iter(Session(data, 1, simulate).run(feeds).values()))


def channels_of(layer: Layer, output: Array) -> tuple[int, int]:
    """(axis of the output, number) of the channels that a bias is added to."""
    if layer.op.startswith("Conv"):
        return 1, output.shape[1]
    if layer.axis is None:
        return output.ndim - 1, 1
    axis = output.ndim - (2 if layer.left else 1)
    return axis, output.shape[axis]


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("integer", [False, True])
def test_a_bias_is_added_to_every_kind_of_layer(layer: Layer, integer: bool) -> None:
    """Of float layers, too; a layer without a bias gets one, a MatMul an Add behind it."""
    prepared = prepare(layer.proto())
    before = Session(layer.proto().SerializeToString(), 1).run(layer.feeds())["y"]
    axis, count = channels_of(layer, before)
    extra = RNG.normal(0, 2.0, count).astype(np.float32)
    wanted = before + extra.reshape([count if a == axis else 1 for a in range(before.ndim)])
    ranges = observe(prepared, [layer.feeds()])
    ranges["y"] = type(ranges["y"])(float(min(wanted.min(), 0)), float(wanted.max()))
    made = plan(prepared, ranges) if integer else floats(prepared)
    found = qdq.write(prepared, with_tensors(made, bias__layer=extra))
    after = run(found.model, layer.feeds())
    assert sqnr_db(wanted, after) > (33 if integer else 120)
    assert set(found.raw) == set(found.stored) == {"x", "y"}
    if integer:
        assert sqnr_db(wanted, run(found.model, layer.feeds(), simulate=False)) > 33
        assert sum(n.op_type == "QuantizeLinear" for n in found.model.graph) == 2


def test_an_added_bias_of_a_matmul_is_the_bias_of_its_add() -> None:
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(8, 6)).astype(np.float32), "b": rng.normal(size=(1, 6)).astype(np.float32)}
    proto = model([node("MatMul", ["x", "w"], ["p"], "mm"), node("Add", ["p", "b"], ["t"], "add"), node("Relu", ["t"], ["y"], "relu")],
                  {"x": [2, 5, 8]}, {"y": None}, weights)
    prepared, feeds = prepare(proto), {"x": rng.normal(size=(2, 5, 8)).astype(np.float32)}
    extra = rng.normal(size=6).astype(np.float32)
    found = qdq.write(prepared, with_tensors(plan(prepared, observe(prepared, [feeds])), bias__mm=extra))
    wanted = np.maximum(feeds["x"] @ weights["w"] + weights["b"] + extra, 0)
    assert [n.op_type for n in found.model.graph].count("Add") == 1
    assert sqnr_db(np.minimum(wanted, float(run(found.model, feeds).max())), run(found.model, feeds)) > 30


def test_a_gemm_that_ignores_its_bias_still_takes_an_added_one() -> None:
    """beta = 0: what the Gemm had there stays ignored."""
    layer = Layer("zero", "Gemm", (5, 8), (8, 6), {"beta": 0.0}, bias=(6,))
    prepared = prepare(layer.proto())
    before = Session(layer.proto().SerializeToString(), 1).run(layer.feeds())["y"]
    extra = np.arange(6, dtype=np.float32)
    assert np.abs(run(qdq.write(prepared, with_tensors(floats(prepared), bias__layer=extra)).model, layer.feeds()) - (before + extra)).max() < 1e-5
    found = qdq.write(prepared, plan(prepared, observe(prepared, [layer.feeds()])))
    assert found.float_bias == {"b": "alpha or beta is 0"} and sqnr_db(before, run(found.model, layer.feeds())) > 30


def test_a_bias_behind_a_matmul_that_leaves_the_graph() -> None:
    """The Add takes over the name of the product, also as a graph output and for every other reader."""
    w = np.eye(4, dtype=np.float32)
    proto = model([node("MatMul", ["x", "w"], ["p"], "mm"), node("Sigmoid", ["p"], ["y"], "s")], {"x": [2, 4]}, {"p": None, "y": None}, {"w": w})
    prepared, feeds = prepare(proto), {"x": np.ones((2, 4), np.float32)}
    for made in (floats(prepared), plan(prepared, observe(prepared, [feeds]))):
        found = qdq.write(prepared, with_tensors(made, bias__mm=np.full(4, -1.0, np.float32)))
        values = Session(qdq.to_bytes(found.model), 1, True).run(feeds)
        assert np.abs(values["p"]).max() < 0.01 and values["y"] == pytest.approx(0.5, abs=0.01)


def test_a_shared_bias_is_corrected_for_one_layer_only() -> None:
    w, b = np.eye(4, dtype=np.float32).reshape(4, 4, 1, 1), np.ones(4, np.float32)
    nodes = [node("Conv", ["x", "w", "b"], ["t"], "one"), node("Conv", ["t", "w", "b"], ["y"], "two")]
    proto = model(nodes, {"x": [1, 4, 2, 2]}, {"y": None}, {"w": w, "b": b})
    prepared = prepare(proto)
    found = qdq.write(prepared, with_tensors(floats(prepared), bias__two=np.array([0, 1, 2, 3], np.float32)))
    assert run(found.model, {"x": np.zeros((1, 4, 2, 2), np.float32)})[0, :, 0, 0].tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize("integer", [False, True])
def test_new_constants_take_the_place_of_the_old(integer: bool) -> None:
    layer = LAYERS["conv"]
    other = {k: v * np.float32(1.7) + np.float32(0.01) for k, v in layer.arrays().items()}
    prepared, changed = prepare(layer.proto()), prepare(layer.proto(arrays=other))
    ranges = observe(changed, [layer.feeds()])
    made, wanted = (plan(p, ranges) if integer else floats(p) for p in (prepared, changed))
    found = qdq.write(prepared, with_tensors(made, constant__w=other["w"], constant__b=other["b"]))
    assert np.array_equal(run(found.model, layer.feeds()), run(qdq.write(changed, wanted).model, layer.feeds()))
    assert np.array_equal(prepared.model.graph.initializers["w"].const_value.numpy(), layer.arrays()["w"])      # type: ignore[union-attr]


def test_rounding_moves_codes_and_stays_in_their_range() -> None:
    layer = LAYERS["conv"]
    prepared = prepare(layer.proto())
    made = plan(prepared, observe(prepared, [layer.feeds()]))
    deltas = RNG.integers(-1, 2, layer.weight).astype(np.int8)

    def codes(found: qdq.Written) -> Array:
        value = found.model.graph.initializers["w_q"].const_value
        assert value is not None
        return value.numpy().astype(int)

    nearest, moved = codes(qdq.write(prepared, made)), codes(qdq.write(prepared, with_tensors(made, round__w=deltas)))
    assert np.array_equal(moved, np.clip(nearest + deltas, -127, 127)) and not np.array_equal(moved, nearest)
    assert np.array_equal(codes(qdq.write(prepared, with_tensors(made, round__w=np.zeros_like(deltas)))), nearest)


def test_rounding_of_a_layer_that_is_in_float_changes_nothing() -> None:
    layer = LAYERS["conv"]
    prepared = prepare(layer.proto())
    found = qdq.write(prepared, with_tensors(floats(prepared), round__w=np.ones(layer.weight, np.int8)))
    assert np.array_equal(run(found.model, layer.feeds()), Session(layer.proto().SerializeToString(), 1).run(layer.feeds())["y"])


@pytest.mark.parametrize(("name", "array", "message"), [
    ("constant:nothing", np.zeros(3, np.float32), r"holds 'constant:nothing', but the model has no float32 initializer 'nothing'"),
    ("constant:w", np.zeros((6, 8, 3), np.float32), r"'constant:w' is float32 \[6, 8, 3\]; expected float32 \[6, 8, 3, 3\]"),
    ("constant:w", np.zeros((6, 8, 3, 3), np.int8), r"'constant:w' is int8 \[6, 8, 3, 3\]; expected float32"),
    ("bias:nothing", np.zeros(6, np.float32), r"holds 'bias:nothing', but the model has no such node"),
    ("bias:layer", np.zeros(5, np.float32), r"'bias:layer' is float32 \[5\]; expected float32 \[6\]"),
    ("bias:act", np.zeros(6, np.float32), r"'bias:act', but that Relu has no constant float32 weight"),
    ("round:nothing", np.zeros(3, np.int8), r"holds 'round:nothing', but the model has no float32 initializer"),
    ("round:b", np.zeros(6, np.int8), r"holds 'round:b', but 'b' is no weight of a Conv"),
    ("round:w", np.zeros((6, 8, 3, 3), np.int16), r"'round:w' is int16 \[6, 8, 3, 3\]; expected int8"),
    ("colour:w", np.zeros(3, np.int8), r"array 'colour:w'; known kinds: constant:INITIALIZER, bias:NODE, round:INITIALIZER"),
])
@pytest.mark.parametrize("integer", [False, True])
def test_what_does_not_fit_is_refused_by_name(name: str, array: Array, message: str, integer: bool) -> None:
    layer = LAYERS["conv"]
    prepared = prepare(layer.proto("Relu"))
    made = plan(prepared, observe(prepared, [layer.feeds()])) if integer else floats(prepared)
    with pytest.raises(PlanError, match=message):
        qdq.write(prepared, replace(made, tensors={name: Packed.of(array)}))


def test_a_computed_bias_cannot_be_added_to() -> None:
    proto = model([node("Gemm", ["x", "w", "c"], ["y"], "layer")], {"x": [5, 8], "c": [6]}, {"y": [5, 6]}, {"w": np.zeros((8, 6), np.float32)})
    prepared = prepare(proto)
    with pytest.raises(PlanError, match="the bias of that Gemm is computed in the model"):
        qdq.write(prepared, with_tensors(floats(prepared), bias__layer=np.zeros(6, np.float32)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("name", "what"), [("w", "weight 'w' of node 'conv'"), ("b", "bias 'b' of node 'conv'"), ("k", "constant 'k' of node 'mul'")])
def test_constants_that_no_scale_covers_are_refused_by_name(name: str, what: str, value: float) -> None:
    """A model cannot hold them in an integer unit; new constants of a plan are checked as well."""
    weights = {"w": np.ones((3, 3, 1, 1), np.float32), "b": np.ones(3, np.float32), "k": np.ones((1, 3, 1, 1), np.float32)}
    nodes = [node("Conv", ["x", "w", "b"], ["t"], "conv"), node("Relu", ["t"], ["r"], "relu"), node("Mul", ["r", "k"], ["y"], "mul")]
    feeds = {"x": np.ones((1, 3, 2, 2), np.float32)}
    bad = weights[name].copy()
    bad.flat[1] = value
    prepared = prepare(model(nodes, {"x": [1, 3, 2, 2]}, {"y": None}, weights))
    made = plan(prepared, observe(prepared, [feeds]))
    with pytest.raises(PlanError, match=f"{what} holds NaN or infinity.*keep its unit in float"):
        qdq.write(prepared, replace(made, tensors={f"constant:{name}": Packed.of(bad)}))
    broken = prepare(model(nodes, {"x": [1, 3, 2, 2]}, {"y": None}, weights | {name: bad}))
    unit = broken.network.unit_of_kernel["mul" if name == "k" else "conv"]
    with pytest.raises(PlanError, match=f"unit '{unit}' cannot be int8: .*'{name}' holds infinity or NaN"):
        qdq.write(broken, replace(made, model_key=broken.network.model_key, precision={u.name: Precision.INT8 for u in broken.network.units}))


def test_half_precision_rounds_an_added_bias_too() -> None:
    layer = LAYERS["matmul"]
    prepared = prepare(layer.proto())
    extra = np.full(6, 1.0 + 2.0**-14, np.float32)
    found = qdq.write(prepared, with_tensors(floats(prepared), bias__layer=extra), emulate_fp16=True)
    assert 1.0 in [float(v.const_value.numpy().flat[0]) for v in found.model.graph.initializers.values() if v.const_value is not None]
