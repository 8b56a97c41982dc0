"""Normalisations spelled in primitive operators, and other divisions by small values (BUG case B14)."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models import Array, node, sqnr_db
from norm_models import Spelling, alone, between, layer, spellings
from odd_models import info, odd_model, prepared_of, reference, trip

from qbench.graph.delicate import delicate
from qbench.network import Network, Precision, Unit

SPELLINGS = spellings()
RNG = np.random.default_rng(0)


def tokens(shape: tuple[int, ...], amplitudes: Array) -> Array:
    """Normal noise, one amplitude for each slice that is normalised (the second axis, or the first of two)."""
    x = np.random.default_rng(1).normal(size=shape)
    axis = 0 if len(shape) == 2 else 1
    sizes = [1] * len(shape)
    sizes[axis] = shape[axis]
    return np.asarray(x * np.resize(amplitudes, shape[axis]).reshape(sizes), np.float32)


def unit_of(network: Network, node_name: str) -> Unit:
    kernel = next(k.name for k in network.kernels if node_name in k.nodes)
    return next(u for u in network.units if kernel in u.kernels)


@pytest.mark.parametrize("name", SPELLINGS)
def test_each_spelling_is_one_unit_that_stays_float(name: str) -> None:
    spelling = SPELLINGS[name]
    network = prepared_of(between(spelling, "Sigmoid" if not spelling.guarded else "MatMul")).network
    unit = unit_of(network, "most" if name == "softmax" else "quotient" if name != "tensorflow" else "sum")
    assert not unit.quantizable
    assert f"written as {spelling.chain} operators" in unit.reason
    assert ("softmax" if name == "softmax" else "small variances vanish") in unit.reason
    members = {n for k in unit.kernels for n in network.kernel[k].nodes}
    assert members - {"join_groups"} == {n.name for n in spelling.nodes} - {"split_groups", "join_groups"}
    assert unit_of(network, "before").quantizable == spelling.guarded
    assert unit_of(network, "after").quantizable


@pytest.mark.parametrize("name", SPELLINGS)
def test_alone_it_equals_float(name: str) -> None:
    """B14's input: nothing around it is an integer, so nothing may change."""
    spelling = SPELLINGS[name]
    x = tokens(spelling.shape, np.array([0.01, 1, 10, 50]))
    found = trip(alone(spelling), {"x": x})
    assert np.array_equal(found.quantized["y"], found.float["y"])
    if name != "softmax":                                       # exp of 100 leaves float32's comfort
        assert np.allclose(found.float["y"], spelling.exact(x.astype(np.float64)), atol=2e-2 if "less" in name else 2e-4)


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT16])
@pytest.mark.parametrize("name", SPELLINGS)
@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_amplitude_makes_it_infinite(name: str, precision: Precision, data: st.DataObject) -> None:
    spelling = SPELLINGS[name]
    powers = data.draw(st.lists(st.floats(-3, 3), min_size=4, max_size=4))
    before = data.draw(st.sampled_from(["MatMul", "Relu", "Tanh", "Neg"]))
    x = tokens(spelling.shape, 10.0 ** np.array(powers))
    if before == "Relu":
        x = np.abs(x)                                           # a token of zeros is not finite in float either
    found = trip(between(spelling, before), {"x0": x}, precision=precision)
    assert np.isfinite(found.float["z"]).all()
    assert np.isfinite(found.quantized["z"]).all()
    if before == "Neg" and name != "softmax":                   # a float kernel made x: every token must come out well
        axis = 0 if x.ndim == 2 else 1
        for reference, got in zip(np.moveaxis(found.float["z"], axis, 0), np.moveaxis(found.quantized["z"], axis, 0), strict=True):
            if name != "tensorflow" and np.abs(reference).max() > 0.1 * np.abs(found.float["z"]).max():
                assert sqnr_db(reference, got) > 25


def test_two_in_a_row_are_two() -> None:
    def block(source: str, out: str, tag: str) -> list[onnx.NodeProto]:
        return [node("ReduceMean", [source, "last"], [f"m{tag}"], f"mean{tag}"), node("Sub", [source, f"m{tag}"], [f"d{tag}"], f"centre{tag}"),
                node("Mul", [f"d{tag}", f"d{tag}"], [f"s{tag}"], f"square{tag}"), node("ReduceMean", [f"s{tag}", "last"], [f"v{tag}"], f"mean2{tag}"),
                node("Add", [f"v{tag}", "eps"], [f"e{tag}"], f"guard{tag}"), node("Sqrt", [f"e{tag}"], [f"r{tag}"], f"root{tag}"),
                node("Div", [f"d{tag}", f"r{tag}"], [out], f"quotient{tag}")]

    proto = odd_model([*block("x", "h", "a"), node("MatMul", ["h", "w"], ["g"], "between"), node("Add", ["g", "x"], ["i"], "residual"), *block("i", "y", "b")],
                      [info("x", [1, 4, 16])], [info("y", [1, 4, 16])],
                      {"last": np.array([-1]), "eps": np.float32(1e-5), "w": RNG.normal(size=(16, 16)).astype(np.float32)}, opset=18)
    network = prepared_of(proto).network
    assert unit_of(network, "quotienta").kernels != unit_of(network, "quotientb").kernels
    assert all(len(unit_of(network, f"quotient{t}").kernels) == 7 for t in "ab")
    assert unit_of(network, "between").quantizable


def test_its_kernels_are_of_the_kind_norm_but_for_those_that_move_values() -> None:
    network = prepared_of(between(SPELLINGS["group"], "MatMul")).network
    kinds = {n: k.kind for k in network.kernels for n in k.nodes}
    assert {kinds[n] for n in ("mean_m", "centre", "square", "mean_v", "guard", "root", "quotient")} == {"norm"}
    assert kinds["split_groups"] == kinds["join_groups"] == "reshape"


@pytest.mark.parametrize(("nodes", "quantizable"), [
    pytest.param([node("Sigmoid", ["a"], ["b"], "unit"), node("Log", ["b"], ["y"], "reader")], False, id="log"),
    pytest.param([node("Relu", ["a"], ["b"], "unit"), node("Sqrt", ["b"], ["y"], "reader")], False, id="sqrt"),
    pytest.param([node("Relu", ["a"], ["b"], "unit"), node("Reciprocal", ["b"], ["y"], "reader")], False, id="reciprocal"),
    pytest.param([node("Sigmoid", ["a"], ["b"], "unit"), node("Div", ["x", "b"], ["y"], "reader")], False, id="divisor"),
    pytest.param([node("Sigmoid", ["a"], ["b"], "unit"), node("Pow", ["b", "third"], ["y"], "reader")], False, id="broken power"),
    pytest.param([node("Sigmoid", ["a"], ["b"], "unit"), node("Pow", ["b", "minus"], ["y"], "reader")], False, id="negative power"),
    pytest.param([node("Tanh", ["a"], ["b"], "unit"), node("Acos", ["b"], ["y"], "reader")], False, id="arc: a grid reaches past 1"),
    pytest.param([node("Sigmoid", ["a"], ["b"], "unit"), node("Transpose", ["b"], ["t"]), node("Log", ["t"], ["y"], "reader")], False, id="through a move"),
    pytest.param([node("Sigmoid", ["a"], ["b"], "unit"), node("Add", ["b", "small"], ["t"]), node("Div", ["x", "t"], ["y"], "reader")], False, id="guarded"),
    pytest.param([node("Sigmoid", ["a"], ["b"], "unit"), node("Pow", ["b", "two"], ["y"], "reader")], True, id="square"),
    pytest.param([node("Sigmoid", ["a"], ["b"], "unit"), node("Div", ["b", "two"], ["y"], "reader")], True, id="constant divisor"),
    pytest.param([node("Relu", ["a"], ["b"], "unit"), node("Exp", ["b"], ["e"]), node("Div", ["x", "e"], ["y"], "reader")], True, id="behind an exponential"),
    pytest.param([node("Relu", ["a"], ["b"], "unit"), node("Mul", ["b", "b"], ["s"]), node("Add", ["s", "small"], ["t"]), node("Sqrt", ["t"], ["r"]),
                  node("Div", ["x", "r"], ["y"], "reader")], True, id="behind a guarded square")])
def test_who_makes_what_is_divided_by_stays_float(nodes: list[onnx.NodeProto], quantizable: bool) -> None:
    proto = odd_model([node("MatMul", ["x", "w"], ["a"], "first"), *nodes], [info("x", [4, 4])], [info("y", [4, 4])],
                      {"w": np.eye(4, dtype=np.float32), "third": np.float32(1 / 3), "minus": np.float32(-2), "two": np.float32(2), "small": np.float32(1e-6)})
    network = prepared_of(proto).network
    unit = unit_of(network, "unit")
    assert unit.quantizable == quantizable
    if not quantizable:
        assert "'reader' depends on near 0" in unit.reason


def test_a_gelu_spelled_with_erf_keeps_its_integers() -> None:
    nodes = [node("Div", ["x", "root2"], ["a"], "scale"), node("Erf", ["a"], ["e"], "erf"), node("Add", ["e", "one"], ["s"], "shift"),
             node("Mul", ["x", "s"], ["p"], "product"), node("Mul", ["p", "half"], ["y"], "halve")]
    network = prepared_of(odd_model(nodes, [info("x", [1, 8])], [info("y", [1, 8])],
                                    {"root2": np.float32(2 ** 0.5), "one": np.float32(1), "half": np.float32(0.5)})).network
    assert all(u.quantizable for u in network.units)


@pytest.mark.parametrize(("divisor", "quantizable"), [([1.0, 2.0, 4.0], True), ([1e-3, 1.0, 100.0], False), ([-1.0, 0.001, 1.0], False), ([0.25], True)])
def test_a_constant_divisor_that_one_grid_cannot_hold_stays_float(divisor: list[float], quantizable: bool) -> None:
    proto = odd_model([node("Div", ["x", "c"], ["y"], "ratio")], [info("x", [4, 3])], [info("y", [4, 3])], {"c": np.array(divisor, np.float32)})
    x = RNG.normal(size=(4, 3)).astype(np.float32)
    found = trip(proto, {"x": x})
    assert found.prepared.network.units[0].quantizable == quantizable
    assert np.isfinite(found.quantized["y"]).all()
    if not quantizable:
        assert "constant divisor 'c' reaches from 0.001" in found.prepared.network.units[0].reason


def test_a_float_kernel_does_not_hold_a_concat_back() -> None:
    """basic-pitch joins convolutions with negated copies: the Neg stays float, the convolutions need not."""
    weight = RNG.normal(size=(4, 3, 1, 1)).astype(np.float32)
    proto = odd_model([node("Conv", ["x", "w"], ["a"], "conv"), node("Neg", ["x"], ["b"], "negate"), node("Concat", ["a", "b"], ["c"], "cat", axis=1),
                       node("Relu", ["c"], ["y"], "relu")], [info("x", [1, 3, 4, 4])], [info("y", [1, 7, 4, 4])], {"w": weight})
    x = RNG.normal(size=(1, 3, 4, 4)).astype(np.float32)
    found = trip(proto, {"x": x})
    network = found.prepared.network
    assert unit_of(network, "conv").quantizable and not unit_of(network, "negate").quantizable
    assert unit_of(network, "cat") is unit_of(network, "conv")
    step = (max(found.statistics[t].maximum for t in ("a", "b")) - min(found.statistics[t].minimum for t in ("a", "b"))) / 255
    assert np.abs(found.quantized["y"] - found.float["y"]).max() < 3 * step


DIVISIONS = ("DivMean", "DivAbs", "DivSigmoid", "SqrtAbs", "SqrtRelu", "LogSoftplus", "LogSoftmax", "RecSigmoid", "PowHalf", "PowMinus")
OTHERS = ("Relu", "Sigmoid", "Tanh", "Exp", "Neg", "Square", "Scale", "Shift", "Transpose", "Softmax", "MatMul")


def _step(kind: str, source: str, other: str, number: int) -> list[onnx.NodeProto]:
    """Operators from `source`; the last one's output is "t<number>"."""
    def op(name: str, *inputs: str, **attributes: Any) -> onnx.NodeProto:
        out = f"t{number}_{len(made)}"
        made.append(node(name, inputs, [out], f"n{number}_{len(made)}", **attributes))
        return made[-1]

    made: list[onnx.NodeProto] = []
    if kind in ("DivMean", "DivAbs", "DivSigmoid"):
        if kind == "DivMean":
            op("Mul", other, other)
            op("ReduceMean", made[-1].output[0], "last")
        else:
            op(kind[3:], other)
        if kind != "DivSigmoid":
            op("Add", made[-1].output[0], "eps")
        op("Div", source, made[-1].output[0])
    elif kind in ("SqrtAbs", "SqrtRelu", "LogSoftplus", "LogSoftmax", "RecSigmoid"):
        outer, inner = {"S": ("Sqrt", kind[4:]), "L": ("Log", kind[3:]), "R": ("Reciprocal", kind[3:])}[kind[0]]
        op(inner, source)
        op(outer, made[-1].output[0])
    elif kind in ("PowHalf", "PowMinus"):
        op("Softplus", source)
        op("Pow", made[-1].output[0], "half" if kind == "PowHalf" else "minus_half")
    else:
        inputs = {"Square": ("Mul", source, source), "Scale": ("Mul", source, "three"), "Shift": ("Add", source, "three"), "MatMul": ("MatMul", source, "w")}
        turned: dict[str, Any] = {"perm": [0, 2, 1]} if kind == "Transpose" else {}
        op(*inputs.get(kind, (kind, source)), **turned)
    made[-1].output[0] = f"t{number}"
    return made


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), precision=st.sampled_from([Precision.INT8, Precision.INT16]), seed=st.integers(0, 99))
def test_no_division_becomes_infinite_anywhere(data: st.DataObject, precision: Precision, seed: int) -> None:
    """Random graphs with at least one operator that is unbounded near 0, tokens of amplitudes 1e-3 to 1e2."""
    kinds = [*data.draw(st.lists(st.sampled_from(OTHERS + DIVISIONS), min_size=1, max_size=5)), data.draw(st.sampled_from(DIVISIONS))]
    ready, nodes = ["x"], []
    for number, kind in enumerate(kinds):
        nodes += _step(kind, data.draw(st.sampled_from(ready[-2:])), data.draw(st.sampled_from(ready)), number)
        ready.append(f"t{number}")
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(2, 8, 8)) * 10.0 ** rng.uniform(-3, 2, (2, 8, 1))).astype(np.float32)
    constants = {"last": np.array([-1]), "eps": np.asarray(1e-6, np.float32), "three": np.asarray(3, np.float32), "half": np.asarray(0.5, np.float32),
                 "minus_half": np.asarray(-0.5, np.float32), "w": np.random.default_rng(7).normal(0, 0.4, (8, 8)).astype(np.float32)}
    used = {i for n in nodes for i in n.input}
    model = odd_model(nodes, [info("x", [2, 8, 8])], [info(ready[-1], [2, 8, 8])], {k: v for k, v in constants.items() if k in used}, opset=18)
    expected = reference(model, {"x": x})[ready[-1]]
    if not np.isfinite(expected).all() or np.abs(expected).max() > 1e8:
        return
    assert np.isfinite(trip(model, {"x": x}, precision=precision, policy="ignore").quantized[ready[-1]]).all()


def test_guards_are_found() -> None:
    model = ir.serde.deserialize_model(alone(SPELLINGS["by hand"]))
    assert delicate(model.graph).guards == {"guard"}


def test_the_reference_formulas_are_right() -> None:
    x = RNG.normal(size=(2, 3, 16))
    assert np.allclose(layer(x).mean(-1), 0, atol=1e-12) and np.allclose(layer(x).std(-1), 1, atol=1e-4)


def test_spellings_differ() -> None:
    assert isinstance(SPELLINGS["torch"], Spelling) and len(SPELLINGS) > 15
