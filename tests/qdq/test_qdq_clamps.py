"""B07: a clamp folded into the range of its output never lets a value through, whatever the codes, and folding needs its reasons."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from models import Array, model, node, observe, plan, prepare, sqnr_db

from qbench import qdq
from qbench.network import Precision
from qbench.runtime import Session
from qbench.schemes import quant_scheme

CLAMPS = {"Relu": (0.0, np.inf), "Clip 0 6": (0.0, 6.0), "Clip -1 1": (-1.0, 1.0), "Clip 0.5 2": (0.5, 2.0), "LeakyRelu": (-np.inf, np.inf)}
ACTIVATIONS = ("int8", "uint8", "int8:symmetric", "uint8:symmetric", "int8:symmetric,narrow", "int16", "uint16", "int16:symmetric", "uint16:symmetric",
               "int8:symmetric,power_of_two")
ANCHORS = {"Conv": ((1, 3, 8, 8), (4, 3, 3, 3)), "ConvTranspose": ((1, 3, 8, 8), (3, 4, 3, 3)), "Gemm": ((5, 8), (8, 4)), "MatMul": ((5, 8), (8, 4))}


def clamped(clamp: str, anchor: str = "Conv", second_reader: bool = False, scale: float = 3.0) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    x, w = ANCHORS[anchor]
    name, *ends = clamp.split()
    weights = {"w": rng.normal(0, 0.5, w).astype(np.float32) * np.float32(scale), "b": rng.normal(0, 0.5, 4).astype(np.float32)}
    weights |= {f"end{i}": np.array(v, np.float32) for i, v in enumerate(ends)}
    nodes = [node(anchor, ["x", "w"] if anchor == "MatMul" else ["x", "w", "b"], ["t"], "anchor"),
             node(name, ["t", *(f"end{i}" for i in range(len(ends)))], ["y"], "clamp")]
    if anchor == "MatMul":
        nodes = [node("MatMul", ["x", "w"], ["p"], "anchor"), node("Add", ["p", "b"], ["t"], "bias"), nodes[1]]
    outputs: dict[str, None] = {"y": None}
    if second_reader:
        nodes.append(node("Sigmoid", ["t"], ["z"], "other"))
        outputs["z"] = None
    return model(nodes, {"x": x}, outputs, weights)


def feeds(anchor: str = "Conv") -> dict[str, Array]:
    return {"x": np.random.default_rng(1).normal(size=ANCHORS[anchor][0]).astype(np.float32)}


@pytest.mark.parametrize("second_reader", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("clamp", CLAMPS)
def test_the_output_never_leaves_the_clamp(clamp: str, activation: str, second_reader: bool) -> None:
    """A lower end of 0 is exact, other ends are met to half a step; without a second reader the anchor's output has no pair."""
    proto, wide = clamped(clamp, second_reader=second_reader), "16" in activation
    prepared = prepare(proto)
    scheme = quant_scheme(activation, "int16:symmetric,narrow" if wide else "int8:symmetric,narrow")
    precision = Precision.INT16 if wide else Precision.INT8
    found = qdq.write(prepared, plan(prepared, observe(prepared, [feeds()]), precision, schemes={str(precision): scheme}))
    assert any(n.op_type == clamp.split()[0] for n in found.model.graph)
    folded = clamp != "LeakyRelu" and not second_reader
    assert (found.raw["t"] == found.stored["t"]) == folded
    low, high = CLAMPS[clamp]
    before = Session(proto.SerializeToString(), 1).run(feeds())
    step = float(np.ptp(before["y"])) / (200 if not wide else 60000) * (2 if "sym" in activation else 1) * (2 if "power" in activation else 1)
    for simulate in (True, False):
        after = Session(qdq.to_bytes(found.model), 1, simulate).run(feeds())
        assert after["y"].min() >= (low if low == 0.0 else low - step / 2) and after["y"].max() <= high + step / 2
        if low == 0.0:
            assert after["y"].min() == 0.0
        for name in before:
            assert sqnr_db(before[name], after[name]) > (75 if wide else 26 if "power" in activation else 31)


@pytest.mark.parametrize("anchor", ANCHORS)
@pytest.mark.parametrize("activation", ["uint8", "int8:symmetric"])
def test_every_anchor_folds_its_relu_without_losing_it(anchor: str, activation: str) -> None:
    proto = clamped("Relu", anchor)
    prepared = prepare(proto)
    found = qdq.write(prepared, plan(prepared, observe(prepared, [feeds(anchor)]), schemes={"int8": quant_scheme(activation, "int8:symmetric")}))
    before = Session(proto.SerializeToString(), 1).run(feeds(anchor))["y"]
    for simulate in (True, False):
        after = Session(qdq.to_bytes(found.model), 1, simulate).run(feeds(anchor))["y"]
        assert after.min() == 0.0 and sqnr_db(before, after) > 31


def test_a_clamp_in_another_precision_than_its_anchor_is_no_fold() -> None:
    """The Relu is a kernel of its own when its anchor has another reader: in float it must still see all of the anchor's output."""
    proto = clamped("Relu", second_reader=True)
    prepared = prepare(proto)
    found = qdq.write(prepared, plan(prepared, observe(prepared, [feeds()]), floats=["clamp"]))
    assert found.raw["t"] != found.stored["t"] and found.raw["y"] == found.stored["y"]
    after = Session(qdq.to_bytes(found.model), 1, True).run(feeds())
    before = Session(proto.SerializeToString(), 1).run(feeds())
    assert after["y"].min() == 0.0 and sqnr_db(before["y"], after["y"]) > 31


def test_a_relu_of_a_clipped_range_still_saturates_at_its_top() -> None:
    """A calibrator that clips cuts the top, never the zero."""
    proto = clamped("Relu")
    prepared = prepare(proto)
    ranges = observe(prepared, [feeds()])
    ranges["y"] = type(ranges["y"])(0.0, ranges["y"].high / 4)
    found = qdq.write(prepared, plan(prepared, ranges))
    for simulate in (True, False):
        after = Session(qdq.to_bytes(found.model), 1, simulate).run(feeds())["y"]
        assert after.min() == 0.0 and after.max() == pytest.approx(ranges["y"].high, rel=1e-5)


@pytest.mark.parametrize("activation", ["uint8", "int8"])
def test_integer_convolutions_are_still_reached(activation: str) -> None:
    """onnxruntime fuses the pairs of an int8 plan into QLinearConv, the Relu included where the zero point is the lowest code."""
    proto = clamped("Relu")
    prepared = prepare(proto)
    data = qdq.to_bytes(qdq.write(prepared, plan(prepared, observe(prepared, [feeds()]), schemes={"int8": quant_scheme(activation, "int8:symmetric")})).model)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        ops = [n.op_type for n in onnx.load(options.optimized_model_filepath).graph.node]
    assert "QLinearConv" in ops and not {"Conv", "FusedConv", "Relu"} & set(ops)
