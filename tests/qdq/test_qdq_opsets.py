"""B17 and B18: whatever opset a model comes in, the written file passes the checker and runs, with 8 and 16 bits, per channel and in blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from models import Array, conv_relu, model, node, observe, plan, prepare, sqnr_db
from onnx import numpy_helper

from qbench import qdq
from qbench.errors import PlanError
from qbench.network import Precision
from qbench.plan import Granularity, make_plan
from qbench.qdq.opset import raised
from qbench.runtime import Session
from qbench.schemes import quant_scheme

SCHEMES = {"int8": quant_scheme("uint8", "int8:symmetric,narrow", weight_block=2), "int16": quant_scheme("uint16", "int16:symmetric,narrow", weight_block=2)}
W8A16 = {"int16": quant_scheme("uint16", "int8:symmetric,narrow")}
X = {"x": np.random.default_rng(1).normal(size=(1, 4, 8, 8)).astype(np.float32)}


def mixed_network(opset: int) -> onnx.ModelProto:
    """Operators whose form changed between opsets: Clip, Pad, Split, Squeeze, Resize, Softmax, ReduceMean, Dropout, BatchNormalization."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(0, 0.5, (6, 4, 3, 3)).astype(np.float32), "b": rng.normal(0, 0.5, 6).astype(np.float32),
               "g": rng.uniform(0.5, 1.5, 6).astype(np.float32), "m": rng.normal(size=6).astype(np.float32), "v": rng.uniform(0.5, 2, 6).astype(np.float32)}
    integers: dict[str, Array] = {}

    def operand(op: str, since: int, ins: list[str], attributes: dict[str, Any], names: dict[str, Array]) -> onnx.NodeProto:
        """`names` are inputs since opset `since`, attributes before."""
        if opset >= since:
            integers.update(names)
            return node(op, [*ins, *names], [op.lower()], op, **attributes)
        return node(op, ins, [op.lower()], op, **attributes, **{k.split("_")[1]: v.tolist() for k, v in names.items()})

    nodes = [node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1]), node("BatchNormalization", ["c", "g", "b", "m", "v"], ["bn"], "bn"),
             operand("Clip", 11, ["bn"], {}, {"clip_min": np.array(0, np.float32), "clip_max": np.array(6, np.float32)}),
             operand("Pad", 11, ["clip"], {"mode": "constant"}, {"pad_pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])}),
             node("MaxPool", ["pad"], ["pool"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
             node("Dropout", ["pool"], ["drop"], "drop")]
    if opset >= 13:
        integers["sizes"] = np.array([3, 3])
        nodes.append(node("Split", ["drop", "sizes"], ["s", "t"], "split", axis=1))
    else:
        nodes.append(node("Split", ["drop"], ["s", "t"], "split", axis=1, split=[3, 3]))
    nodes.append(node("Concat", ["t", "s"], ["cat"], "cat", axis=1))
    nodes.append(operand("ReduceMean", 18, ["cat"], {"keepdims": 1}, {"reducemean_axes": np.array([2, 3])}))
    nodes.append(operand("Squeeze", 13, ["reducemean"], {}, {"squeeze_axes": np.array([2, 3])}))
    nodes.append(node("Softmax", ["squeeze"], ["y"], "softmax", axis=1))
    proto = model(nodes, {"x": ["N", 4, 8, 8]}, {"y": ["N", 6]}, weights, opset, ir_version=3 if opset == 7 else 8)
    proto.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in integers.items())
    if opset == 7:                                                  # IR version 3: initializers are inputs too
        proto.graph.input.extend(onnx.helper.make_tensor_value_info(i.name, i.data_type, list(i.dims)) for i in proto.graph.initializer)
    return proto


@pytest.mark.parametrize("base", [Precision.INT8, Precision.INT16])
@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 12, 13, 15, 17, 18, 19, 20, 21, 22])
def test_any_opset_at_any_granularity(opset: int, base: Precision) -> None:
    proto = mixed_network(opset)
    onnx.checker.check_model(proto)
    before = Session(proto.SerializeToString(), 1).run(X)["y"]
    prepared = prepare(proto)
    ranges = observe(prepared, [X])
    for granularity in Granularity:
        found = qdq.write(prepared, plan(prepared, ranges, base, granularity=granularity, schemes=SCHEMES)).model
        data = qdq.to_bytes(found)
        onnx.checker.check_model(data, full_check=True)
        after = Session(data, 1).run(X)["y"]
        assert sqnr_db(before, after) > (75 if base is Precision.INT16 else 25 if granularity is Granularity.GLOBAL else 35)
        at_least = 21 if granularity is Granularity.PER_GROUP else 17 if opset < 13 else opset
        assert found.opset_imports[""] == max(at_least, opset)
        in_microsoft = any(n.domain == "com.microsoft" for n in found.graph)
        assert in_microsoft == ("com.microsoft" in found.opset_imports) == (base is Precision.INT16 and found.opset_imports[""] < 21)


@pytest.mark.parametrize("opset", [13, 16, 19, 21, 22])
def test_the_decibels_of_b18(opset: int) -> None:
    """(a) all activations 16 bit with 8-bit weights: about 46 dB; all 16 bit: about 90 dB."""
    prepared = prepare(conv_relu(opset))
    x = {"x": np.random.default_rng(1).normal(size=(4, 3, 8, 8)).astype(np.float32)}
    before = Session(conv_relu(opset).SerializeToString(), 1).run(x)["y"]
    for schemes, low, high in ((W8A16, 42, 55), ({"int16": quant_scheme("int16:symmetric", "int16:symmetric,narrow")}, 85, 105)):
        made = plan(prepared, observe(prepared, [x]), Precision.INT16, schemes=schemes)
        data = qdq.to_bytes(qdq.write(prepared, made).model)
        for simulate in (True, False):
            assert low <= sqnr_db(before, Session(data, 1, simulate).run(x)["y"]) <= high


@pytest.mark.parametrize("opset", [13, 17, 20, 21])
def test_one_tensor_of_sixteen_bits(opset: int) -> None:
    """(b) a single INT16 unit between INT8 ones, at every opset."""
    rng = np.random.default_rng(0)
    proto = model([node("Conv", ["x", f"w{i}"] if i == 0 else [f"t{i}", f"w{i}"], [f"t{i + 1}" if i < 2 else "y"], f"c{i}") for i in range(3)],
                  {"x": [1, 4, 8, 8]}, {"y": None}, {f"w{i}": rng.normal(0, 0.5, (4, 4, 1, 1)).astype(np.float32) for i in range(3)}, opset)
    prepared = prepare(proto)
    precision = {"c0": Precision.INT8, "c1": Precision.INT16, "c2": Precision.INT8}
    made = make_plan(prepared.network, precision, observe(prepared, [X]), SCHEMES, calibrator="minmax", granularity=Granularity.PER_CHANNEL)
    found = qdq.write(prepared, made)
    data = qdq.to_bytes(found.model)
    onnx.checker.check_model(data, full_check=True)
    assert ("com.microsoft" in found.model.opset_imports) == (opset < 21)
    assert sqnr_db(Session(proto.SerializeToString(), 1).run(X)["y"], Session(data, 1).run(X)["y"]) > 30


@pytest.mark.parametrize("opset", [11, 13, 17, 20])
def test_raising_keeps_names_and_values(opset: int) -> None:
    prepared = prepare(mixed_network(opset))
    up = raised(prepared.model)
    assert up.opset_imports[""] == 21 and prepared.model.opset_imports[""] < 21
    assert raised(prepared.model) is up                             # once a model, not once a plan
    names = {str(n.name): n.op_type for n in up.graph}
    assert all(names[str(n.name)] == n.op_type for n in prepared.model.graph)
    before, after = (Session(qdq.to_bytes(m), 1).run(X)["y"] for m in (prepared.model, up))
    assert np.abs(before - after).max() < 1e-6


def test_a_model_that_cannot_be_raised_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxscript import version_converter

    def fails(*arguments: object, **options: object) -> None:
        raise RuntimeError("no adapter for Conv")

    prepared = prepare(conv_relu(14))
    made = plan(prepared, observe(prepared, [{"x": X["x"][:, :3]}]), granularity=Granularity.PER_GROUP, schemes=SCHEMES)
    monkeypatch.setattr(version_converter, "convert_version", fails)
    with pytest.raises(PlanError, match=r"per-group weights need opset 21, and the model's opset 14 cannot be raised: no adapter for Conv.*per-channel"):
        qdq.write(prepared, made)
    monkeypatch.setattr(version_converter, "convert_version", lambda *arguments, **options: None)
    with pytest.raises(PlanError, match="the converter stops at 14"):
        qdq.write(prepared, made)


def test_a_target_without_blocks_refuses_a_per_group_plan() -> None:
    prepared = prepare(conv_relu())
    ranges = observe(prepared, [{"x": X["x"][:, :3]}])
    with pytest.raises(PlanError, match=r"granularity is per-group, but none of its schemes \(int8\) has a weight_block.*use per-channel"):
        qdq.write(prepared, plan(prepared, ranges, granularity=Granularity.PER_GROUP))
    floats = plan(prepared, {}, floats=[u.name for u in prepared.network.units], granularity=Granularity.PER_GROUP)
    assert [n.op_type for n in qdq.write(prepared, floats).model.graph] == ["Conv", "Relu"]
