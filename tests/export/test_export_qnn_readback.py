"""Reading the HTP compiler's graph back. Graph and trace are recorded: onnxruntime-qnn 2.7.0 (2026, QAIRT 2.51), `three_convs`, a INT8, b INT16, c FP16."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from export_cases import job

from qbench.errors import ToolError
from qbench.export import Contents, Difference, Layer, StoredTensor, differences
from qbench.network import Precision
from qbench.targets import load
from qbench.targets.exporters.qnn_readback import CHANNELS, Reader, on_codes

RECORDED = Path(__file__).parent / "recorded"
SCHEMES = {str(p.precision): p.scheme for p in load("hexagon-8gen3").precisions if p.scheme is not None}
MADE = job({"b": "int16", "c": "fp16"}, schemes=SCHEMES)


@pytest.fixture
def graph() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / "qnn_graph.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture
def trace() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / "qnn_trace.json").read_text(encoding="utf-8"))
    return found


def found_in(graph: dict[str, Any], trace: dict[str, Any]) -> tuple[Difference, ...]:
    return differences(MADE.demanded, Reader(graph, trace, MADE).contents())


def test_what_was_compiled_is_the_plan(graph: dict[str, Any], trace: dict[str, Any]) -> None:
    read = Reader(graph, trace, MADE).contents()
    assert differences(MADE.demanded, read) == ()
    assert {k: (v.precision, v.placement) for k, v in read.layers.items()} == {
        "a": (Precision.INT8, "NPU"), "b": (Precision.INT16, "NPU"), "c": (Precision.FP16, "NPU")}
    assert set(read.tensors) == {"x:int8", "a1:int8", "a1:int16", "b1:int16"}                 # both widths of a1
    assert read.tensors["b1:int16"].dtype == "uint16"
    assert read.silent == {"weight:wa": CHANNELS, "weight:wb": CHANNELS}


def test_the_offset_is_the_zero_points_negative(graph: dict[str, Any], trace: dict[str, Any]) -> None:
    """BUG case B11; the graph says -131 for the input."""
    assert graph["tensors"]["x_int8_q"]["quant_params"]["scale_offset"]["offset"] == -131
    assert Reader(graph, trace, MADE).contents().tensors["x:int8"] == StoredTensor("uint8", MADE.demanded.tensors["x:int8"].scale, (131,))


def test_one_changed_scale_is_found_and_named(graph: dict[str, Any], trace: dict[str, Any]) -> None:
    graph["tensors"]["a1_int8_QuantizeLinear"]["quant_params"]["scale_offset"]["scale"] *= 1.0001
    (only,) = found_in(graph, trace)
    assert (only.name, only.what) == ("a1:int8", "scale")


def test_one_moved_zero_point_is_found_and_named(graph: dict[str, Any], trace: dict[str, Any]) -> None:
    graph["tensors"]["x_int8_q"]["quant_params"]["scale_offset"]["offset"] += 1
    (only,) = found_in(graph, trace)
    assert (only.name, only.what) == ("x:int8", "zero point")


def test_one_flipped_layer_is_found_and_named(graph: dict[str, Any], trace: dict[str, Any]) -> None:
    """What onnxruntime's WeightBiasQuantization does to a float layer between integer ones."""
    graph["tensors"]["c"] = copy.deepcopy(graph["tensors"]["a1_int8_QuantizeLinear"])
    assert [str(d) for d in found_in(graph, trace)] == ["c: precision fp16 -> int8"]


def test_an_integer_layer_in_float_is_found_and_named(graph: dict[str, Any], trace: dict[str, Any]) -> None:
    graph["tensors"]["b1_int16_QuantizeLinear"] = copy.deepcopy(graph["tensors"]["c"])
    assert [(d.name, d.what, d.actual) for d in found_in(graph, trace)] == [("b", "precision", "fp16"), ("b1:int16", "missing", "not in the artefact")]


def test_a_narrower_tensor_is_found_and_named(graph: dict[str, Any], trace: dict[str, Any]) -> None:
    graph["tensors"]["b1_int16_QuantizeLinear"]["data_type"] = 0x0408
    assert {(d.name, d.what) for d in found_in(graph, trace)} == {("b", "precision"), ("b1:int16", "dtype")}


def test_a_weight_of_another_type_is_found_and_named(graph: dict[str, Any], trace: dict[str, Any]) -> None:
    graph["tensors"]["wa_q"]["data_type"] = 0x0316
    found = found_in(graph, trace)
    assert {d.name for d in found} == {"weight:wa"} and ("dtype", "int8", "int16") in {(d.what, d.plan, d.actual) for d in found}
    graph["tensors"]["wa_q"] |= {"data_type": 0x0308}
    graph["tensors"]["wa_q"]["quant_params"]["scale_offset"]["offset"] = 1
    assert ("weight:wa", "scale", "8 scales", "1 scales") in {(d.name, d.what, d.plan, d.actual) for d in found_in(graph, trace)}


def test_one_layer_on_the_cpu_is_found_and_named(graph: dict[str, Any], trace: dict[str, Any]) -> None:
    trace["unsupported_nodes"] = [{"node_name": "a_token_1", "op_type": "Conv", "reason": "injected"}]
    assert [str(d) for d in found_in(graph, trace)] == ["a: placement NPU -> CPU"]


def test_a_matmul_that_onnxruntime_made_a_gemm_of_is_found(graph: dict[str, Any], trace: dict[str, Any]) -> None:
    for part in trace["subgraph_traces"]:
        for row in part["op_mappings"]:
            for source in row["sources"]:
                source["name"] = source["name"].replace("a_token_1", "a/MatMulAddFusion")
    assert found_in(graph, trace) == ()


def test_a_float_layer_without_weights_between_pairs_may_be_computed_on_codes() -> None:
    """As Abs of MobileFaceNet is; one with weights in another precision stays a fault."""
    weights = {"w": np.random.default_rng(0).normal(0, 0.3, (8, 3, 1, 1)).astype(np.float32), "v": np.random.default_rng(1).normal(0, 0.3, (8, 8, 1, 1)).astype(np.float32)}
    nodes = [models.node("Conv", ["x", "w"], ["c"], "first"), models.node("Abs", ["c"], ["m"], "abs"), models.node("Conv", ["m", "v"], ["y"], "second")]
    made = job({"abs": "fp16"}, models.model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 8, 8, 8]}, weights), schemes=SCHEMES)
    assert {"c:int8", "m:int8"} <= set(made.demanded.tensors) and made.demanded.layers["abs"].precision is Precision.FP16
    actual = Contents({k: Layer(Precision.INT8, "NPU") for k in made.demanded.layers}, made.demanded.tensors, "stand-in")
    assert differences(made.demanded, actual, consent=on_codes(made, actual)) == ()
    weighted = dataclasses.replace(made, demanded=dataclasses.replace(made.demanded, layers={**made.demanded.layers, "second": Layer(Precision.FP16, "NPU")}))
    assert [str(d) for d in differences(weighted.demanded, actual, consent=on_codes(weighted, actual))] == ["second: precision fp16 -> int8"]


def test_a_layer_that_nobody_compiled_is_missing(graph: dict[str, Any], trace: dict[str, Any]) -> None:
    del graph["nodes"]["c_token_13"], graph["nodes"]["add"]
    assert [(d.name, d.what) for d in found_in(graph, trace)] == [("c", "missing")]


def test_a_trace_of_another_version_is_refused(graph: dict[str, Any]) -> None:
    with pytest.raises(ToolError, match=r"cannot be followed \(KeyError\('subgraph_traces'\) is missing\)"):
        Reader(graph, {"schema_version": 9}, MADE)
