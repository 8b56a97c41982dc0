"""The Q/DQ model as onnxruntime-qnn takes it: a pair before every clamp that cuts codes, which changes no value, and one behind a Resize."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import models
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from export_cases import job
from export_forms import enlarged, joined

from qbench.export import Job
from qbench.qdq import to_bytes
from qbench.runtime import Session
from qbench.targets import load
from qbench.targets.exporters.qnn_layers import cut
from qbench.targets.exporters.qnn_model import handed, kept_scales

SCHEMES = {str(p.precision): p.scheme for p in load("hexagon-8gen3").precisions if p.scheme is not None}


def hexagon_job(proto: onnx.ModelProto | None = None, precision: Mapping[str, str] | None = None) -> Job:
    return dataclasses.replace(job(precision, proto, schemes=SCHEMES), target=load("hexagon-8gen3"), toolkit="2.42")


def outputs(model: ir.Model, made: Job) -> list[models.Array]:
    session = Session(to_bytes(model), 1, simulate=True)
    return [session.run(s)["y"] for s in made.samples]


@pytest.mark.parametrize(("clamp", "bounds"), [("Relu", ()), ("Clip", ()), ("Clip", (1,))])
def test_a_clamp_that_cuts_codes_gets_a_pair_and_no_value_changes(clamp: str, bounds: tuple[int, ...]) -> None:
    """Bounds of shape [1], which onnxruntime takes too, are in networks converted from TFLite."""
    made = hexagon_job(joined(clamp, bounds))
    model = handed(made)
    node = next(n for n in model.graph if n.op_type == clamp)
    assert node.inputs[0] is not None and node.inputs[0].producer().op_type == "DequantizeLinear"           # type: ignore[union-attr]
    for want, got in zip(outputs(made.written.model, made), outputs(model, made), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_clamp_that_cuts_nothing_stays_with_its_convolution() -> None:
    made = hexagon_job()
    assert [n.op_type for n in handed(made).graph] == [n.op_type for n in made.written.model.graph]


@pytest.mark.parametrize(("precision", "opened_at"), [("int8", {"x:int8", "c:int8", "y:int8"}), ("int16", {"x:int16", "y:int16"})])
def test_codes_of_16_bits_that_a_transpose_reads_are_not_opened(precision: str, opened_at: set[str]) -> None:
    weights = {"w": np.random.default_rng(2).normal(0, 0.3, (8, 3, 3, 3)).astype(np.float32)}
    nodes = [models.node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]), models.node("Transpose", ["c"], ["y"], "turn", perm=[0, 2, 3, 1])]
    opened = cut(hexagon_job(models.model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 8, 8, 8]}, weights), {"conv": precision, "turn": precision}))
    assert set(opened.pairs) == opened_at
    kinds = {str(v.name).removesuffix("_given"): v.dtype for v in opened.open.graph.inputs}
    assert {kinds[name] for name in (p.codes for p in opened.pairs.values())} == {ir.DataType.FLOAT if precision == "int8" else ir.DataType.UINT16}


def test_a_resize_keeps_its_codes_and_is_converted_behind() -> None:
    made = hexagon_job(enlarged())
    model = handed(made)
    resize = next(n for n in model.graph if n.op_type == "Resize")
    before, behind = resize.inputs[0].producer(), next(r for r, _ in resize.outputs[0].uses())          # type: ignore[union-attr]
    assert before is not None and [v.const_value.numpy() for v in before.inputs[1:]] == [v.const_value.numpy() for v in behind.inputs[1:]]     # type: ignore[union-attr]
    step = made.demanded.tensors["r:int8"].scale[0]
    for want, got in zip(outputs(made.written.model, made), outputs(model, made), strict=True):
        assert np.abs(got - want).max() <= step
    assert kept_scales(model) == {"r": "r_on_codes_q"} and {"r:int8", "r, before it is converted:int8"} < set(cut(made).pairs)


@pytest.mark.parametrize("mode", ["nearest", "cubic"])
def test_a_resize_between_equal_scales_or_with_values_beyond_stays_as_it_is(mode: str) -> None:
    made = hexagon_job(enlarged(mode))
    assert [n.op_type for n in handed(made).graph] == [n.op_type for n in made.written.model.graph]


@pytest.mark.parametrize("shape", [(8,), (1, 8), (1, 1, 8)])
def test_the_bias_of_a_product_has_one_axis_and_no_value_changes(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(4)
    weights = {"w": rng.normal(0, 0.3, (6, 8)).astype(np.float32), "b": rng.normal(0, 1, shape).astype(np.float32)}
    nodes = [models.node("MatMul", ["x", "w"], ["p"], "product"), models.node("Add", ["p", "b"], ["y"], "sum")]
    made = hexagon_job(models.model(nodes, {"x": [1, 5, 6]}, {"y": [1, 5, 8]}, weights))
    model = handed(made)
    pair = next(n for n in model.graph if n.op_type == "Add").inputs[1].producer()                                     # type: ignore[union-attr]
    assert pair is not None and pair.inputs[0] is not None and list(pair.inputs[0].const_value.shape) == [8]            # type: ignore[union-attr]
    for want, got in zip(outputs(made.written.model, made), outputs(model, made), strict=True):
        np.testing.assert_array_equal(got, want)
