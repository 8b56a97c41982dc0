"""Which precisions a unit may take: FP16 only where the statistics prove it (BUG case B22), integers only where all was seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models import Array, node
from odd_models import BOOL, INT64, Samples, info, odd_model, prepared_of, reference
from onnx import helper

from qbench import qdq, targets
from qbench.errors import InputError, PrecisionUnavailable
from qbench.graph import PreparedModel
from qbench.network import Network, Precision
from qbench.plan import Granularity, make_plan
from qbench.runtime import Session
from qbench.statistics import Statistics
from qbench.target import PrecisionSupport, Target
from qbench.workbench import allowed_precisions, statistics_of
from qbench.workbench.precisions import precision_of

RNG = np.random.default_rng(0)
FP16, FP32, INT8 = Precision.FP16, Precision.FP32, Precision.INT8


def chip() -> Target:
    """RK3588 with an FP32 besides, so that a unit without FP16 has somewhere to go."""
    found = targets.load("rk3588")
    return replace(found, precisions=(*found.precisions, PrecisionSupport(FP32, 64.0, None, source="made up for this test")))


def allowed(model: onnx.ModelProto, feeds: Mapping[str, Array], target: Target | None = None) -> tuple[dict[str, tuple[Precision, ...]], dict[str, str]]:
    """By name of a node: what its unit may be, and why not more."""
    prepared = prepared_of(model)
    return by_node(prepared, statistics_of(prepared, Samples(feeds)), target or chip())


def by_node(prepared: PreparedModel, statistics: Statistics, target: Target) -> tuple[dict[str, tuple[Precision, ...]], dict[str, str]]:
    network = prepared.network
    options, reasons = allowed_precisions(network, statistics, target, None)
    unit = {n: network.unit_of_kernel[k.name] for k in network.kernels for n in k.nodes}
    return {n: options[u] for n, u in unit.items()}, {n: reasons.get(u, "") for n, u in unit.items()}


def one(value: float, shape: tuple[int, ...] = (1, 4)) -> Array:
    return np.full(shape, value, np.float32)


@pytest.mark.parametrize(("peak", "offered"), [(32752.0, True), (32753.0, False), (80000.0, False)])
def test_a_value_that_does_not_fit_twice_rules_fp16_out(peak: float, offered: bool) -> None:
    """B22: MatMul whose activations reach 80,000; the safety factor is 2, so 65504 / 2 is the last that passes."""
    model = odd_model([node("MatMul", ["x", "w"], ["y"], "mm")], [info("x", [1, 4])], [info("y", [1, 4])], {"w": np.eye(4, dtype=np.float32) * 32})
    options, reasons = allowed(model, {"x": one(peak / 32)})
    assert (FP16 in options["mm"]) == offered and INT8 in options["mm"]
    assert offered or f"tensor 'y' reaches {peak:g}" in reasons["mm"]


@pytest.mark.parametrize(("op", "value", "kept"), [("Exp", 10.9, False), ("Exp", 10.0, True), ("Softplus", 40000.0, False), ("Sign", 70000.0, False),
                                                   ("Reciprocal", 1e-5, False), ("Reciprocal", 1.0, True)])
def test_tensors_of_units_that_stay_float_are_seen_too(op: str, value: float, kept: bool) -> None:
    model = odd_model([node(op, ["x"], ["h"], "it"), node("Mul", ["h", "tiny"], ["y"], "after")], [info("x", [1, 4])], [info("y", [1, 4])],
                      {"tiny": np.float32(1e-4)})
    options, _ = allowed(model, {"x": one(value)})
    assert (FP16 in options["it"]) == kept


def test_a_copy_is_as_large_as_its_source() -> None:
    """The reader of a reshaped tensor: only the source is in the statistics."""
    model = odd_model([node("MatMul", ["x", "w"], ["a"], "mm"), node("Reshape", ["a", "shape"], ["b"], "move"), node("MatMul", ["b", "small"], ["y"], "reader")],
                      [info("x", [1, 4])], [info("y", [2, 2])],
                      {"w": np.eye(4, dtype=np.float32) * 1e4, "shape": np.array([2, 2]), "small": np.eye(2, dtype=np.float32) * 1e-5})
    options, reasons = allowed(model, {"x": one(10)})
    assert all(FP16 not in options[n] for n in ("mm", "move", "reader"))
    assert "tensor 'a' reaches 100000" in reasons["reader"]


def test_a_tensor_between_fused_operators_counts() -> None:
    """x @ w + z is small, x @ w is not; both are inside one kernel."""
    model = odd_model([node("MatMul", ["x", "w"], ["a"], "mm"), node("Add", ["a", "z"], ["y"], "add")], [info("x", [1, 4]), info("z", [1, 4])],
                      [info("y", [1, 4])], {"w": np.eye(4, dtype=np.float32) * 100})
    prepared = prepared_of(model)
    assert prepared.network.kernel["mm"].inner == ("a",)
    options, reasons = by_node(prepared, statistics_of(prepared, Samples({"x": one(400), "z": one(-20000)})), chip())
    assert FP16 not in options["mm"] and "'a' reaches 40000" in reasons["mm"]


@pytest.mark.parametrize(("clamp", "bounds"), [("Relu", []), ("Clip", ["low", "high"])])
def test_what_a_clamp_cuts_may_overflow(clamp: str, bounds: list[str]) -> None:
    """-inf becomes 0 there, +inf the upper bound: as it would in float32."""
    model = odd_model([node("MatMul", ["x", "w"], ["a"], "mm"), node(clamp, ["a", *bounds], ["y"], "clamp")], [info("x", [1, 4])], [info("y", [1, 4])],
                      {"w": np.eye(4, dtype=np.float32) * 1e4, "low": np.float32(0), "high": np.float32(6)})
    options, _ = allowed(model, {"x": one(-100)})
    assert FP16 in options["mm"]


@pytest.mark.parametrize(("value", "offered"), [(1e30, False), (65520.0, False), (65519.99, True), (65504.0, True), (-7e4, False)])
def test_a_constant_that_rounds_to_infinity_rules_fp16_out(value: float, offered: bool) -> None:
    """B22: 65519.99 rounds to 65504, 65520 to infinity. Seen activations stay small, so it is the constant that decides."""
    model = odd_model([node("Where", ["m", "x", "c"], ["y"], "it")], [info("m", [1, 4], BOOL), info("x", [1, 4])], [info("y", [1, 4])],
                      {"c": np.full((1, 4), value, np.float32)})
    options, reasons = allowed(model, {"m": np.ones((1, 4), bool), "x": one(1)})
    assert (FP16 in options["it"]) == offered
    assert offered or f"constant 'c' of Where 'it' reaches {abs(value):g}" in reasons["it"]


def test_a_huge_constant_times_zero_stays_finite() -> None:
    """B22: Add 1e30, then Mul by 0. Neither unit is offered FP16; forced into it, the constant is cut to 65504 and the product is 0."""
    model = odd_model([node("Add", ["x", "c"], ["a"], "add"), node("Mul", ["a", "zero"], ["y"], "mul")], [info("x", [1, 4])], [info("y", [1, 4])],
                      {"c": np.float32(1e30), "zero": np.float32(0)})
    feeds = {"x": one(1)}
    options, reasons = allowed(model, feeds)
    assert FP16 not in options["add"] and FP16 not in options["mul"]
    assert "constant 'c'" in reasons["add"] and "tensor 'a' reaches 1e+30" in reasons["mul"]
    assert np.array_equal(forced(prepared_of(model), feeds)["y"], one(0))


def forced(prepared: PreparedModel, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Everything in FP16, its rounding emulated."""
    plan = make_plan(prepared.network, dict.fromkeys((u.name for u in prepared.network.units), FP16), {}, {}, calibrator="minmax",
                     granularity=Granularity.PER_LAYER)
    return Session(qdq.to_bytes(qdq.write(prepared, plan, emulate_fp16=True).model), 1).run(dict(feeds))


@pytest.mark.parametrize("op", ["Clip", "Max", "Min"])
def test_a_bound_beyond_fp16_is_no_obstacle(op: str) -> None:
    """Cut to 65504 it bounds FP16 numbers as before; torch writes clamp(min=...) with an upper bound of 3.4e38."""
    huge = np.float32(-3.4e38 if op == "Max" else 3.4e38)
    names = ["x", "low", "huge"] if op == "Clip" else ["x", "huge"]
    model = odd_model([node(op, names, ["y"], "it")], [info("x", [1, 4])], [info("y", [1, 4])], {"low": np.float32(0), "huge": huge})
    feeds = {"x": np.array([[-1, 0, 2, 3]], np.float32)}
    options, _ = allowed(model, feeds)
    assert FP16 in options["it"]
    assert np.array_equal(forced(prepared_of(model), feeds)["y"], reference(model, feeds)["y"])


@pytest.mark.parametrize(("eps", "offered"), [(1e-12, False), (2.0 ** -25, False), (1e-7, True), (1e-5, True)])
def test_a_guard_that_rounds_to_zero_rules_fp16_out(eps: float, offered: bool) -> None:
    """BERT's 1e-12 is 0 in FP16, and a token of zeros is then divided by 0."""
    nodes = [node("ReduceMean", ["x", "last"], ["m"]), node("Sub", ["x", "m"], ["d"]), node("Mul", ["d", "d"], ["s"]), node("ReduceMean", ["s", "last"], ["v"]),
             node("Add", ["v", "eps"], ["e"]), node("Sqrt", ["e"], ["r"]), node("Div", ["d", "r"], ["y"], "quotient")]
    model = odd_model(nodes, [info("x", [1, 2, 4])], [info("y", [1, 2, 4])], {"last": np.array([-1]), "eps": np.float32(eps)}, opset=18)
    options, reasons = allowed(model, {"x": np.array([[[1, 2, 3, 4], [1, 1, 1, 1]]], np.float32)})
    assert (FP16 in options["quotient"]) == offered
    assert offered or "keeps a divisor away from 0" in reasons["quotient"]


@pytest.mark.parametrize("op", ["Loop", "If"])
def test_bodies_that_nobody_watched_prove_nothing(op: str) -> None:
    if op == "If":
        branches = [helper.make_graph([node("Mul", ["x", k], [f"{k}t"]), node("Mul", [f"{k}t", "small"], [f"{k}o"])], k, [], [onnx.ValueInfoProto(name=f"{k}o")])
                    for k in ("k", "l")]
        nodes = [node("ReduceMax", ["x"], ["most"], keepdims=0), node("Greater", ["most", "small"], ["c"]),
                 node("If", ["c"], ["y"], "it", then_branch=branches[0], else_branch=branches[1])]
    else:
        body = helper.make_graph([node("Mul", ["v", "k"], ["w"]), node("Mul", ["w", "small"], ["u"]), node("Identity", ["on"], ["still"])], "body",
                                 [info("i", [], INT64), info("on", [], BOOL), info("v", [1, 4])], [info("still", [], BOOL), info("u", [1, 4])])
        nodes = [node("Loop", ["turns", "", "x"], ["y"], "it", body=body)]
    model = odd_model(nodes, [info("x", [1, 4])], [info("y", [1, 4])],
                      {"k": np.float32(1e6), "l": np.float32(1e6), "small": np.float32(1e-6), "turns": np.array(2)})
    options, reasons = allowed(model, {"x": one(1)})
    assert FP16 not in options["it"]
    assert f"FP16 is not proved: what the bodies of {op} 'it' compute was not watched" in reasons["it"]


def test_a_tensor_that_was_never_seen_proves_nothing() -> None:
    """The branch not taken gives nothing to its reader."""
    model = odd_model([node("NonZero", ["x"], ["n"]), node("Transpose", ["n"], ["t"]), node("GatherND", ["x", "t"], ["g"]), node("Relu", ["g"], ["y"], "it")],
                      [info("x", [2, 4])], [info("y", ["n"])])
    options, reasons = allowed(model, {"x": np.zeros((2, 4), np.float32)})
    assert options["it"] == (FP32,)
    assert "FP16 is not proved: tensor 'g': never observed" in reasons["it"] and "tensor 'g': never observed" in reasons["it"].split(";")[0]


def test_statistics_of_an_earlier_pass_that_watched_less_prove_nothing() -> None:
    model = odd_model([node("Exp", ["x"], ["h"], "exp"), node("Mul", ["h", "c"], ["y"], "mul")], [info("x", [1, 4])], [info("y", [1, 4])], {"c": np.float32(2)})
    prepared = prepared_of(model)
    full = statistics_of(prepared, Samples({"x": one(1)}))
    part = replace(full, tensors={k: v for k, v in full.tensors.items() if k != "x"})
    options, reasons = by_node(prepared, part, chip())
    assert FP16 not in options["exp"] and "tensor 'x': it was not asked for in the pass" in reasons["exp"]
    assert FP16 in options["mul"]


def test_where_there_is_nothing_else_fp16_is_offered_with_the_reason() -> None:
    model = odd_model([node("Exp", ["x"], ["y"], "it")], [info("x", [1, 4])], [info("y", [1, 4])])
    options, reasons = allowed(model, {"x": one(11)}, targets.load("rk3588"))
    assert options["it"] == (FP16,) and "Exp: its range grows" in reasons["it"] and "FP16 could overflow" in reasons["it"]


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_are_not_offered_integers(op: str) -> None:
    """B23."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op] * 5
    weights = {"w": RNG.normal(size=(1, gates, 3)).astype(np.float32), "r": RNG.normal(size=(1, gates, 5)).astype(np.float32)}
    model = odd_model([node(op, ["x", "w", "r"], ["y"], "it", hidden_size=5)], [info("x", [4, 1, 3])], [info("y", [4, 1, 1, 5])], weights)
    options, reasons = allowed(model, {"x": RNG.normal(size=(4, 1, 3)).astype(np.float32)})
    assert options["it"] == (FP16, FP32) and reasons["it"].startswith(f"{op}: recurrent state")
    with pytest.raises(PrecisionUnavailable, match="must stay in float"):
        network = prepared_of(model).network
        allowed_precisions(network, statistics_of(prepared_of(model), Samples({"x": one(1, (4, 1, 3))})), chip(), None, (INT8,))


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_is_offered_fp16_is_finite_in_it(data: st.DataObject) -> None:
    """Random chains of growing and shrinking operators: with FP16 wherever it is offered, the calibration data stay finite and near."""
    pool = ["Exp", "Square", "Scale", "Shrink", "Shift", "Relu", "Tanh", "Softplus", "Sqrt"]
    steps = data.draw(st.lists(st.sampled_from(pool), min_size=2, max_size=6))
    nodes, weights, source = [], {"up": np.float32(90), "down": np.float32(0.01), "two": np.float32(2)}, "x"
    for i, step in enumerate(steps):
        goal = "y" if i == len(steps) - 1 else f"t{i}"
        operator, others = {"Square": ("Pow", ["two"]), "Scale": ("Mul", ["up"]), "Shrink": ("Mul", ["down"]), "Shift": ("Add", ["up"])}.get(step, (step, []))
        nodes.append(node(operator, [source, *others], [goal], f"n{i}"))
        source = goal
    x = np.abs(np.random.default_rng(data.draw(st.integers(0, 9))).normal(size=(1, 32))).astype(np.float32)
    model = odd_model(nodes, [info("x", [1, 32])], [info("y", [1, 32])], weights)
    expected = reference(model, {"x": x})["y"]
    if not np.isfinite(expected).all():
        return
    prepared = prepared_of(model)
    options, _ = allowed_precisions(prepared.network, statistics_of(prepared, Samples({"x": x})), chip(), None)
    plan = make_plan(prepared.network, {u: FP16 if FP16 in p else FP32 for u, p in options.items()}, {}, {}, calibrator="minmax",
                     granularity=Granularity.PER_LAYER)
    got = Session(qdq.to_bytes(qdq.write(prepared, plan, emulate_fp16=True).model), 1).run({"x": x})["y"]
    assert np.isfinite(got).all()


def test_the_pass_leaves_out_what_cannot_be_larger_than_what_goes_in() -> None:
    model = odd_model([node("Exp", ["x"], ["a"], "exp"), node("ReduceSum", ["a", "last"], ["s"], "sum"), node("Sqrt", ["s"], ["r"], "root"),
                       node("Div", ["a", "r"], ["y"], "ratio")], [info("x", [1, 4])], [info("y", [1, 4])], {"last": np.array([-1])})
    network: Network = prepared_of(model).network
    assert qdq.watched_tensors(network) == ("x", "a", "s", "y")
    assert qdq.quantized_tensors(network) == ()


def test_texts_of_precisions() -> None:
    assert precision_of("INT8") is INT8
    with pytest.raises(InputError, match="known: int8, int16, fp16, fp32"):
        precision_of("int4")
    assert ir.DataType.FLOAT16.itemsize == FP16.activation_bytes
