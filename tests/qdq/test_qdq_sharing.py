"""B10: one initializer with several readers is stored once where they agree, and once per role where they do not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from models import Array, model, node, observe, plan, prepare, sqnr_db

from qbench import qdq
from qbench.network import Precision
from qbench.plan import Granularity, make_plan
from qbench.runtime import Session
from qbench.schemes import quant_scheme

NPU = {"int8": quant_scheme("uint8", "int8:symmetric,narrow", weight_block=2), "int16": quant_scheme("int16:symmetric", "int16:symmetric,narrow")}
RNG = np.random.default_rng(0)
W = RNG.normal(0, 0.5, (4, 4, 1, 1)).astype(np.float32)
V = RNG.normal(0, 0.5, (4, 4)).astype(np.float32)
B = RNG.normal(0, 0.5, 4).astype(np.float32)
X = RNG.normal(size=(1, 4, 8, 8)).astype(np.float32)


def stored(found: qdq.Written, dims: int, kind: str = "int8") -> list[Array]:
    """The integer arrays of the file with so many axes, scales and zero points left out."""
    return [a for k, v in found.model.graph.initializers.items() if v.const_value is not None and k.endswith(("_q", "_q_1", "_q_2"))
            and (a := v.const_value.numpy()).ndim == dims and a.dtype.name == kind]


def written(proto: onnx.ModelProto, x: Array, granularity: Granularity = Granularity.PER_CHANNEL, least_db: float = 30) -> qdq.Written:
    prepared = prepare(proto)
    found = qdq.write(prepared, plan(prepared, observe(prepared, [{"x": x}]), granularity=granularity, schemes=NPU))
    before = Session(proto.SerializeToString(), 1).run({"x": x})["y"]
    for simulate in (True, False):
        assert sqnr_db(before, Session(qdq.to_bytes(found.model), 1, simulate).run({"x": x})["y"]) > least_db
    return found


@pytest.mark.parametrize("granularity", Granularity)
def test_two_convolutions_in_series_share_one_quantized_weight(granularity: Granularity) -> None:
    nodes = [node("Conv", ["x", "w"], ["a"], "one"), node("Conv", ["a", "w", "b"], ["y"], "two")]
    tied = model(nodes, {"x": [1, 4, 8, 8]}, {"y": None}, {"w": W, "b": B})
    found = written(tied, X, granularity)
    dims = 2 if granularity is Granularity.PER_GROUP else 4
    assert len(stored(found, dims)) == 1 and "w" not in found.model.graph.initializers
    untied = model([nodes[0], node("Conv", ["a", "w2", "b"], ["y"], "two")], {"x": [1, 4, 8, 8]}, {"y": None}, {"w": W, "w2": W, "b": B})
    apart = written(untied, X, granularity)
    assert len(stored(apart, dims)) == 2
    results = [Session(qdq.to_bytes(f.model), 1).run({"x": X})["y"] for f in (found, apart)]
    assert np.array_equal(results[0], results[1])


def test_layers_that_need_another_axis_get_a_copy_of_their_own() -> None:
    """The rows of one are the columns of the other: per tensor they agree, per channel they cannot."""
    nodes = [node("Gemm", ["x", "v"], ["a"], "plain"), node("Gemm", ["a", "v"], ["y"], "turned", transB=1)]
    proto = model(nodes, {"x": [5, 4]}, {"y": None}, {"v": V})
    assert len(stored(written(proto, X.reshape(-1, 4)[:5], Granularity.PER_LAYER), 2)) == 1
    assert len(stored(written(proto, X.reshape(-1, 4)[:5]), 2)) == 2


def test_a_guarded_layer_does_not_widen_the_scale_of_its_twin() -> None:
    small = W * np.float32(1e-8)
    nodes = [node("Conv", ["x", "w"], ["a"], "one"), node("Conv", ["x", "w", "b"], ["c"], "two"), node("Mul", ["a", "k"], ["d"], "up"),
             node("Add", ["c", "d"], ["y"], "add")]
    proto = model(nodes, {"x": [1, 4, 8, 8]}, {"y": None}, {"w": small, "b": B * 10, "k": np.full((1, 1, 1, 1), 1e8, np.float32)})
    found = written(proto, X)
    assert len(stored(found, 4)) == 2 and found.widened["w"] > 10


def test_one_tensor_as_bias_and_as_operand() -> None:
    nodes = [node("Conv", ["x", "w", "b"], ["c"], "conv"), node("Relu", ["c"], ["r"], "relu"), node("Transpose", ["r"], ["t"], "turn", perm=[0, 2, 3, 1]), node("Add", ["t", "b"], ["y"], "add")]
    found = written(model(nodes, {"x": [1, 4, 8, 8]}, {"y": None}, {"w": W, "b": B}), X)
    assert len(stored(found, 1, "int32")) == 1 and len(stored(found, 1, "uint8")) == 1 and "b" not in found.model.graph.initializers


def test_one_tensor_as_weight_and_as_operand() -> None:
    nodes = [node("MatMul", ["x", "v"], ["a"], "mm"), node("Add", ["a", "v"], ["y"], "add")]
    found = written(model(nodes, {"x": [4, 4]}, {"y": None}, {"v": V}), X.reshape(-1, 4)[:4])
    assert len(stored(found, 2, "int8")) == 1 and len(stored(found, 2, "uint8")) == 1


def test_one_weight_at_two_precisions_and_in_float() -> None:
    nodes = [node("Conv", ["x", "w"], ["a"], "eight"), node("Conv", ["a", "w"], ["b"], "sixteen"), node("Conv", ["b", "w"], ["y"], "half")]
    proto = model(nodes, {"x": [1, 4, 8, 8]}, {"y": None}, {"w": W})
    prepared = prepare(proto)
    precision = {"eight": Precision.INT8, "sixteen": Precision.INT16, "half": Precision.FP16}
    found = qdq.write(prepared, make_plan(prepared.network, precision, observe(prepared, [{"x": X}]), NPU, calibrator="minmax",
                                          granularity=Granularity.PER_CHANNEL))
    assert len(stored(found, 4, "int8")) == len(stored(found, 4, "int16")) == 1 and "w" in found.model.graph.initializers
    before = Session(proto.SerializeToString(), 1).run({"x": X})["y"]
    assert sqnr_db(before, Session(qdq.to_bytes(found.model), 1).run({"x": X})["y"]) > 30


def test_a_weight_that_is_a_graph_output_of_nobody_else_stays_one() -> None:
    """The same constant in two Adds of equal precision is stored once."""
    k = RNG.normal(size=(1, 4, 1, 1)).astype(np.float32)
    nodes = [node("Conv", ["x", "w"], ["a"], "conv"), node("Relu", ["a"], ["r"], "relu"), node("Add", ["r", "k"], ["b"], "one"), node("Mul", ["b", "k"], ["y"], "two")]
    assert len(stored(written(model(nodes, {"x": [1, 4, 8, 8]}, {"y": None}, {"w": W, "k": k}), X), 4, "uint8")) == 1
