"""Plan and artefact compared: equal when they are, and every fault found and named (BUG case B29)."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
import pytest
from export_cases import TARGET, job, with_layer, with_scale
from hypothesis import given
from hypothesis import strategies as st

from qbench import qdq
from qbench.affine import Range, affine
from qbench.export import Consent, Layer, StoredTensor, differences, read_qdq
from qbench.export.planned import demanded_placement
from qbench.network import Precision
from qbench.schemes import scheme_of

MIXED = job({"b": "fp16"})


def test_what_a_rule_puts_on_the_cpu_is_not_demanded_of_the_npu() -> None:
    """By the same verdicts as the price: at the precision of the plan only."""
    conv = next(k for k in MIXED.prepared.network.kernels if k.name == "b")
    judged = dataclasses.replace(TARGET, on_cpu={Precision.INT8: {"b": 1.0}, Precision.FP16: {}})
    assert demanded_placement(conv, Precision.INT8, TARGET) == "NPU"
    assert demanded_placement(conv, Precision.INT8, judged) == ""
    assert demanded_placement(conv, Precision.FP16, judged) == "NPU"


@pytest.mark.parametrize("precision", [{}, {"b": "fp16"}, {"a": "int16", "b": "fp16"}, {"a": "fp16", "b": "fp16", "c": "fp16"}])
def test_the_file_that_was_written_holds_the_plan(precision: dict[str, str]) -> None:
    made = job(precision)
    read = read_qdq(ir.from_proto(ir.to_proto(made.written.model)), made.prepared, made.written, made.demanded)
    assert differences(made.demanded, read) == ()
    assert set(read.layers) == {k.name for k in made.prepared.network.kernels}


def test_what_the_plan_demands_is_computed_from_its_ranges() -> None:
    made = job()
    for group, found in made.plan.ranges.items():
        want = affine(found, made.plan.schemes["int8"].activation)
        stored = made.demanded.tensors[f"{group}:int8"]
        assert (stored.scale, stored.zero_point) == ((want.scale,), (want.zero_point,))
    assert len(made.demanded.tensors["weight:wa"].scale) == 8


def test_a_changed_scale_is_named_with_both_values() -> None:
    (only,) = differences(MIXED.demanded, with_scale(MIXED.demanded, "a1:int8", 1.001))
    assert (only.name, only.what) == ("a1:int8", "scale")
    old = MIXED.demanded.tensors["a1:int8"].scale[0]
    assert float(only.plan) == pytest.approx(old, rel=1e-8) and float(only.actual) == pytest.approx(old * 1.001, rel=1e-8)


def test_the_channel_of_a_changed_weight_scale_is_named() -> None:
    old = MIXED.demanded.tensors["weight:wa"]
    scales = tuple(s * (2.0 if i == 5 else 1.0) for i, s in enumerate(old.scale))
    (only,) = differences(MIXED.demanded, dataclasses.replace(MIXED.demanded, tensors={**MIXED.demanded.tensors, "weight:wa": dataclasses.replace(old, scale=scales)}))
    assert only.name == "weight:wa" and "channel 5" in only.plan


def test_a_flipped_precision_is_named() -> None:
    (only,) = differences(MIXED.demanded, with_layer(MIXED.demanded, "b", precision=Precision.INT8))
    assert str(only) == "b: precision fp16 -> int8"


def test_a_layer_on_the_cpu_is_named() -> None:
    (only,) = differences(MIXED.demanded, with_layer(MIXED.demanded, "c", placement="CPU"))
    assert str(only) == "c: placement NPU -> CPU"


def test_what_is_missing_and_what_nobody_planned_is_named_unless_the_artefact_is_silent() -> None:
    tensors = {k: v for k, v in MIXED.demanded.tensors.items() if k != "a1:int8"} | {"b0:int8": StoredTensor("int8", (0.5,), (0,))}
    broken = dataclasses.replace(MIXED.demanded, tensors=tensors)
    found = {d.name: d.what for d in differences(MIXED.demanded, broken)}
    assert found == {"a1:int8": "missing", "b0:int8": "unplanned"}
    assert "a1:int8" not in {d.name for d in differences(MIXED.demanded, dataclasses.replace(broken, silent={"a1:int8": "fused"}))}


def test_an_announced_change_is_compared_with_what_was_announced() -> None:
    old = MIXED.demanded.tensors["a1:int8"]
    moved = dataclasses.replace(old, zero_point=(old.zero_point[0] + 1,))
    actual = dataclasses.replace(MIXED.demanded, tensors={**MIXED.demanded.tensors, "a1:int8": moved})
    assert [d.what for d in differences(MIXED.demanded, actual)] == ["zero point"]
    consent = {"a1:int8": Consent(moved, "the toolkit's rule")}
    assert differences(MIXED.demanded, actual, consent=consent) == ()
    assert [d.what for d in differences(MIXED.demanded, MIXED.demanded, consent=consent)] == ["zero point"]
    half = {"b": Consent(Layer(Precision.INT8), "no FP16 there")}
    assert [d.what for d in differences(MIXED.demanded, MIXED.demanded, consent=half)] == ["precision"]


def test_a_recomputed_scale_passes_within_the_tolerance_and_not_beyond() -> None:
    assert differences(MIXED.demanded, with_scale(MIXED.demanded, "a1:int8", 1 + 5e-7), scale_tolerance=1e-6) == ()
    assert len(differences(MIXED.demanded, with_scale(MIXED.demanded, "a1:int8", 1 + 5e-6), scale_tolerance=1e-6)) == 1


@given(st.floats(-10.0, 0.0), st.floats(0.01, 10.0))
def test_signed_and_unsigned_codes_of_one_mapping_are_equal(low: float, high: float) -> None:
    """B11: uint8 z and int8 z - 128 map alike; their reals prove it."""
    unsigned, signed = (affine(Range(low, high), scheme_of(t)) for t in ("uint8", "int8"))
    a, b = (StoredTensor(x.scheme.dtype.name, (x.scale,), (x.zero_point,)) for x in (unsigned, signed))
    assert a.steps == b.steps and a.bits == b.bits
    codes = np.arange(256)
    assert np.array_equal((codes - unsigned.zero_point) * unsigned.scale, (codes - 128 - signed.zero_point) * signed.scale)


def test_a_scale_that_was_changed_in_the_file_is_found(tmp_path_factory: pytest.TempPathFactory) -> None:
    made = job()
    model = made.written.model.clone()
    scale = next(n for n in model.graph if n.op_type == "QuantizeLinear" and str(n.inputs[0].name) == made.written.raw["a1"]).inputs[1]  # type: ignore[union-attr]
    assert scale is not None and scale.const_value is not None
    scale.const_value = ir.Tensor(np.asarray(scale.const_value.numpy() * np.float32(1.01)), name=scale.name)
    path = tmp_path_factory.mktemp("spoiled") / "net.onnx"
    qdq.save(model, path)
    found = differences(made.demanded, read_qdq(ir.load(path), made.prepared, made.written, made.demanded))
    assert {(d.name, d.what) for d in found} == {("a1:int8", "scale")}
