"""Models in float16, bfloat16 and float64 are read as float32, and say so."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from models import Array, node, sqnr_db
from odd_models import DOUBLE, FLOAT, HALF, INT64, info, odd_model, prepared_of, reference, trip
from onnx import TensorProto, helper, numpy_helper

from qbench.network import Precision

NUMPY: dict[int, np.dtype[Any]] = {FLOAT: np.dtype(np.float32), HALF: np.dtype(np.float16), DOUBLE: np.dtype(np.float64)}
X = np.random.default_rng(0).normal(0, 0.5, (2, 3, 8, 8))


def net(dtype: int, inner_only: bool = False, opset: int = 17) -> onnx.ModelProto:
    """A little of everything that names a type: weights, a Constant node, ConstantOfShape, Cast, and value types.

    inner_only   inputs and outputs are float32, with Casts behind and before them
    """
    rng = np.random.default_rng(1)
    kind = NUMPY[dtype]
    weights = {"w": rng.normal(0, 0.5, (4, 3, 3, 3)).astype(kind), "b": rng.normal(0, 0.5, 4).astype(kind), "fw": rng.normal(0, 0.5, (4, 5)).astype(kind)}
    quarter, two = numpy_helper.from_array(np.array([0.25], kind)), numpy_helper.from_array(np.array(2, kind))
    nodes = [node("Cast", ["x"], ["xt"], "enter", to=dtype)] if inner_only else []
    nodes += [
        node("Conv", ["xt" if inner_only else "x", "w", "b"], ["c"], "conv"), node("Relu", ["c"], ["r"], "relu"), node("Shape", ["r"], ["sh"], "shape"),
        node("ConstantOfShape", ["sh"], ["k"], "fill", value=quarter), node("Add", ["r", "k"], ["a"], "add"), node("Constant", [], ["two"], "const", value=two),
        node("Mul", ["a", "two"], ["m"], "mul"), node("GlobalAveragePool", ["m"], ["g"], "pool"), node("Flatten", ["g"], ["f"], "flat"),
        node("MatMul", ["f", "fw"], ["z"], "fc"), node("Softmax", ["z"], ["s"], "soft"), node("ArgMax", ["s"], ["best"], "best", axis=1, keepdims=0),
        node("Cast", ["s"], ["y"], "leave", to=FLOAT) if inner_only else node("Identity", ["s"], ["y"], "leave")]
    ends = FLOAT if inner_only else dtype
    return odd_model(nodes, [info("x", ["N", 3, 8, 8], ends)], [info("y", ["N", 5], ends), info("best", ["N"], INT64)], weights, opset=opset)


@pytest.mark.parametrize("opset", [11, 17, 21])
@pytest.mark.parametrize("inner_only", [False, True])
def test_float16_reads_as_float32(inner_only: bool, opset: int) -> None:
    """Equal to the float16 model within float16's rounding: 2**-11 of each value, a dozen operators deep."""
    proto = net(HALF, inner_only, opset)
    x = X.astype(np.float32 if inner_only else np.float16)
    expected = reference(proto, {"x": x})
    found = trip(proto, {"x": x.astype(np.float32)})
    assert found.float["y"].dtype == np.float32
    assert np.abs(found.float["y"] - expected["y"]).max() < 12 * 2.0 ** -11
    assert np.array_equal(found.float["best"], expected["best"])
    assert sqnr_db(found.float["y"], found.quantized["y"]) > 35
    (note,) = found.prepared.notes
    assert note.startswith("4 float16 weights read as float32" if opset > 11 else "")
    assert ("inputs and outputs in float16 are float32 now" in note) != inner_only


@pytest.mark.parametrize("inner_only", [False, True])
def test_its_casts_are_gone_and_its_layers_can_be_quantized(inner_only: bool) -> None:
    network = prepared_of(net(HALF, inner_only)).network
    same = prepared_of(net(FLOAT)).network
    assert [k.op for k in network.kernels] == [k.op for k in same.kernels]
    assert [u.quantizable for u in network.units] == [u.quantizable for u in same.units]
    assert {s.dtype for s in network.tensors.values()} == {"float32", "int64"}


def test_float64_reads_as_float32() -> None:
    """onnxruntime has no float64 convolution at all, so the reference is the float32 twin of the same numbers."""
    found = trip(net(DOUBLE), {"x": X.astype(np.float32)})
    twin = reference(net(FLOAT), {"x": X.astype(np.float32)})
    assert np.allclose(found.float["y"], twin["y"], rtol=1e-6)
    assert "float64" in found.prepared.notes[0]


def test_bfloat16_reads_as_float32() -> None:
    proto = odd_model([node("Cast", ["x"], ["xb"], "enter", to=TensorProto.BFLOAT16), node("MatMul", ["xb", "w"], ["m"], "mm"),
                       node("Cast", ["m"], ["y"], "leave", to=FLOAT)], [info("x", [4, 8])], [info("y", [4, 8])])
    weight = np.random.default_rng(2).normal(size=(8, 8)).astype(ml_dtypes.bfloat16)
    proto.graph.initializer.append(helper.make_tensor("w", TensorProto.BFLOAT16, [8, 8], weight.reshape(-1).astype(np.float32).tolist()))
    onnx.checker.check_model(proto, full_check=True)
    x = np.random.default_rng(3).normal(size=(4, 8)).astype(np.float32)
    found = trip(proto, {"x": x})
    assert np.allclose(found.float["y"], x @ weight.astype(np.float32), atol=1e-5)
    assert found.prepared.notes == ("1 bfloat16 weight read as float32: qbench decides what runs in FP16",)


def test_shape_arithmetic_in_float64_is_left_alone() -> None:
    """Rounded to float32, 3 * 0.7 / 0.1 may floor to another size."""
    proto = odd_model([node("Cast", ["x"], ["d"], "up", to=DOUBLE), node("Mul", ["d", "k"], ["e"], "scale"), node("Floor", ["e"], ["f"], "floor"),
                       node("Cast", ["f"], ["y"], "down", to=FLOAT)], [info("x", [1, 4])], [info("y", [1, 4])], {"k": np.array(0.1, np.float64)})
    prepared = prepared_of(proto)
    assert prepared.notes == () and prepared.network.tensors["e"].dtype == "float64"
    x = np.arange(4, dtype=np.float32)[None] * 10
    assert np.array_equal(trip(proto, {"x": x}).quantized["y"], reference(proto, {"x": x})["y"])


@pytest.mark.parametrize(("dtype", "value", "expected"), [(HALF, -65504.0, -65504.0), (HALF, -np.inf, -np.inf), (DOUBLE, -1.7e308, -3.4028235e38),
                                                          (DOUBLE, np.inf, np.inf), (DOUBLE, 1e-300, 0.0)])
def test_what_is_finite_stays_finite(dtype: int, value: float, expected: float) -> None:
    """Masks hold the lowest float64; as float32 that would be minus infinity."""
    proto = odd_model([node("Max", ["x", "c"], ["y"], "it")], [info("x", [1, 4], dtype)], [info("y", [1, 4], dtype)], {"c": np.array(value, NUMPY[dtype])})
    held = prepared_of(proto).model.graph.initializers["c"].const_value
    assert held is not None and held.numpy().dtype == np.float32 and float(held.numpy()) == pytest.approx(expected)


def test_halves_inside_bodies_and_functions() -> None:
    weight: Array = np.random.default_rng(4).normal(size=(4, 4)).astype(np.float16)
    then = helper.make_graph([node("Mul", ["h", "k"], ["t"], "double")], "then", [], [onnx.ValueInfoProto(name="t")],
                             [numpy_helper.from_array(np.array(2, np.float16), "k")])
    other = helper.make_graph([node("Cast", ["x"], ["e"], "again", to=HALF)], "other", [], [onnx.ValueInfoProto(name="e")])
    function = helper.make_function("mine", "Times", ["a", "b"], ["o"], [node("MatMul", ["a", "b"], ["o"], "inside")], [helper.make_opsetid("", 17)])
    proto = odd_model([node("Cast", ["x"], ["h"], "enter", to=HALF), node("If", ["c"], ["i"], "choice", then_branch=then, else_branch=other),
                       helper.make_node("Times", ["i", "w"], ["p"], domain="mine"), node("Cast", ["p"], ["y"], "leave", to=FLOAT)],
                      [info("x", [2, 4]), info("c", [], TensorProto.BOOL)], [info("y", [2, 4])], {"w": weight}, domains=["mine"], functions=[function])
    x = np.random.default_rng(5).normal(size=(2, 4)).astype(np.float32)
    for taken in (True, False):
        feeds = {"x": x, "c": np.array(taken)}
        found = trip(proto, feeds)
        assert np.allclose(found.float["y"], (2 if taken else 1) * x @ weight.astype(np.float32), atol=1e-5)
        assert found.prepared.notes[0].startswith("2 float16 weights")


@pytest.mark.parametrize(("op", "attributes", "inputs"), [
    ("RandomNormalLike", {"dtype": HALF}, ["x"]), ("EyeLike", {"dtype": HALF}, ["x"]), ("LayerNormalization", {"stash_type": 1}, ["x", "g"]),
    ("CastLike", {}, ["x", "g"])])
def test_other_attributes_that_name_a_type(op: str, attributes: dict[str, int], inputs: list[str]) -> None:
    proto = odd_model([node(op, inputs, ["t"], "it", **attributes), node("Mul", ["t", "g"], ["y"], "mul")], [info("x", [4, 4], HALF)], [info("y", [4, 4], HALF)],
                      {"g": np.full(4, 0.5, np.float16)})
    found = trip(proto, {"x": np.ones((4, 4), np.float32)}, precision=Precision.INT16)
    assert found.quantized["y"].shape == (4, 4) and found.quantized["y"].dtype == np.float32


def test_a_float32_model_has_nothing_to_note() -> None:
    assert prepared_of(net(FLOAT)).notes == () and prepared_of(net(FLOAT, True)).notes == ()
