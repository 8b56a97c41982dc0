"""The forms in which rknn-toolkit2 takes a plan, checked with onnxruntime: what changes is announced, nothing else moves."""

from __future__ import annotations

from pathlib import Path

import models
import numpy as np
import onnx_ir as ir
import pytest
from export_cases import SCHEMES, TARGET, job
from hypothesis import given
from hypothesis import strategies as st

from qbench.affine import Range, affine
from qbench.errors import InputError, ModelError, PlanError, PrecisionUnavailable
from qbench.export import Job, StoredTensor, export
from qbench.qdq import to_bytes
from qbench.runtime import Session
from qbench.schemes import quant_scheme, scheme_of
from qbench.targets.exporters import for_target, make
from qbench.targets.exporters.rknn_model import MIDDLE, quantized_form, ranged_form, reach


def outputs(model: ir.Model, made: Job) -> list[models.Array]:
    session = Session(to_bytes(model), 1, simulate=True)
    return [session.run(s)["y"] for s in made.samples]


def constant(value: ir.Value | None) -> models.Array:
    assert value is not None and value.const_value is not None
    return value.const_value.numpy()


@pytest.mark.parametrize("precision", [{}, {"b": "fp16"}, {"a": "fp16"}])
def test_the_handed_over_file_computes_the_same(precision: dict[str, str]) -> None:
    made = job(precision)
    adapted = quantized_form(made)
    pairs = [n for n in adapted.model.graph if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert all(len(n.inputs) == 3 for n in pairs)
    for node in pairs:
        zero = constant(node.inputs[2])
        if node.inputs[0] is not None and node.inputs[0].const_value is not None:
            assert zero.dtype == np.int32 or (zero == -1).all()
        else:
            assert int(zero) - int(np.iinfo(zero.dtype).min) != MIDDLE
    assert all(isinstance(d, int) for v in (*adapted.model.graph.inputs, *adapted.model.graph.outputs) for d in v.shape or ("none",))
    assert not adapted.consent
    for a, b in zip(outputs(made.written.model, made), outputs(adapted.model, made), strict=True):
        assert np.array_equal(a, b)


def test_a_symmetric_activation_moves_by_one_code_and_says_so() -> None:
    made = job(schemes={**SCHEMES, "int8": quant_scheme("int8:symmetric", "int8:symmetric,narrow")})
    adapted = quantized_form(made)
    assert set(adapted.consent) == {k for k in made.demanded.tensors if not k.startswith("weight:")}
    for key, consent in adapted.consent.items():
        assert isinstance(consent.instead, StoredTensor) and consent.instead.zero_point == (-1,) and consent.instead.scale == made.demanded.tensors[key].scale
    step = made.demanded.tensors["y:int8"].scale[0]
    for a, b in zip(outputs(made.written.model, made), outputs(adapted.model, made), strict=True):
        assert np.abs(a - b).max() <= 1.5 * step          # only a value on the lowest code can change


def test_integer_and_float_readers_of_a_tensor_get_their_own_dequantizer() -> None:
    """a1 is read by the FP16 convolution b and by the INT8 Add: sharing one makes the toolkit refuse with 'Invalid w_par'."""
    made = job({"b": "fp16"})
    model = quantized_form(made).model
    readers = {n.name: {str(r.name) for r, _ in n.outputs[0].uses()} for n in model.graph if n.op_type == "DequantizeLinear"
               and n.inputs[0] is not None and n.inputs[0].const_value is None}
    assert {"b"} in readers.values() and {"add"} in readers.values()


def test_codes_that_cannot_move_are_refused() -> None:
    made = job(schemes={**SCHEMES, "int8": quant_scheme("uint8", "int8:symmetric")})
    weights = [n for n in made.written.model.graph if n.op_type == "DequantizeLinear" and str(n.inputs[0].name) == "wa_q"]  # type: ignore[union-attr]
    lowest = constant(weights[0].inputs[0]).copy()
    lowest.reshape(-1)[0] = -128
    weights[0].inputs[0].const_value = ir.Tensor(lowest, name="wa_q")  # type: ignore[union-attr]
    with pytest.raises(PlanError, match=r"weight 'wa_q' holds the code -128.*int8:symmetric,narrow"):
        quantized_form(made)


def test_the_float_form_has_weights_on_the_grid_and_ranges_for_every_pair() -> None:
    made = job({"b": "int16", "c": "int16"})
    ranged = ranged_form(made)
    assert not [n for n in ranged.model.graph if "Quantize" in n.op_type] and set(ranged.model.opset_imports) == {""}
    assert str(ranged.model.graph.outputs[0].name) == "y" and ranged.names["y"] == "y"
    stored = {str(n.outputs[0].name): n for n in made.written.model.graph if n.op_type == "DequantizeLinear"}
    for name, (low, high) in ranged.weights.items():
        codes, scale, zero = (constant(v) for v in stored[name.removesuffix("_reals")].inputs)
        shape = (-1, *(1,) * (codes.ndim - 1))
        assert np.array_equal(constant(ranged.model.graph.initializers[name]), ((codes.astype(np.int64) - zero.reshape(shape)) * scale.reshape(shape)).astype(np.float32))
        width = 255 if codes.dtype == np.int8 else 65535
        assert np.allclose((np.array(high) - np.array(low)) / width, scale, rtol=1e-12)      # the toolkit's formula gives our scale again
    assert {f"{t}:{p}" for t in ranged.ranges for p in ("int8", "int16")} >= {k for k in made.demanded.tensors if not k.startswith("weight:")} - {"y:int8", "y:int16"}
    assert ranged.layers["b1"] == "int16" and "a1" not in ranged.layers


@given(st.floats(-8.0, 0.0), st.floats(0.01, 8.0), st.sampled_from(["uint8", "int8", "int16:symmetric,power_of_two"]))
def test_the_toolkits_rule_gives_our_scale_and_zero_point_back(low: float, high: float, scheme: str) -> None:
    """scale = (max - min) / (levels - 1), zero point = round(lowest - min / scale)."""
    a = affine(Range(low, high), scheme_of(scheme))
    least, most = reach(StoredTensor(a.scheme.dtype.name, (a.scale,), (a.zero_point,)))
    kind = np.iinfo(a.scheme.dtype)
    scale = (most - least) / (int(kind.max) - int(kind.min))
    assert scale == pytest.approx(a.scale, rel=1e-12)
    assert round(int(kind.min) - least / scale) == a.zero_point


def test_known_refusals_name_the_node_and_the_rewrite(tmp_path: Path) -> None:
    def cubic(mode: str) -> Job:
        sizes = np.array([1, 3, 32, 32], np.int64)
        nodes = [models.node("Resize", ["x", "", "", "s"], ["y"], "up", mode=mode)]
        return job(proto=models.model(nodes, {"x": [1, 3, 16, 16]}, {"y": [1, 3, 32, 32]}, {"s": sizes}), samples=1)

    rknn = make("rknn")
    with pytest.raises(ModelError, match=r"node 'up' \(Resize\): rknn-toolkit2 2\.5\.0 refuses it \(mode is cubic\); qbench rewrite --allow resize-cubic-to-linear"):
        export(cubic("cubic"), rknn, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    rknn.check(cubic("linear"))


def test_what_the_toolkit_version_lacks_is_refused() -> None:
    """B24: INT16 under 2.3.2."""
    from dataclasses import replace

    made = job({"b": "int16"})
    with pytest.raises(PrecisionUnavailable, match=r"INT16 layers, which rknn-toolkit2 2\.3\.2 does not offer"):
        make("rknn").check(replace(made, toolkit="2.3.2"))
    make("rknn").check(made)
    with pytest.raises(InputError, match="no option 'speed=high'; there is path=a"):
        make("rknn").check(replace(made, options={"speed": "high"}))


def test_a_newer_opset_is_refused() -> None:
    proto = models.conv_relu(opset=21, ir_version=10)
    with pytest.raises(ModelError, match=r"opset 21, rknn-toolkit2 reads 19 at most: export it with opset 19 or lower"):
        make("rknn").check(job(proto=proto))


def test_the_exporter_is_found_by_target() -> None:
    assert for_target(TARGET.name)[0] == "rknn"
    from qbench.errors import UnknownName

    with pytest.raises(UnknownName, match="no exporter for target 'toaster'"):
        for_target("toaster")
    with pytest.raises(UnknownName, match=r"no exporter 'rkn'; known: .*rknn"):
        make("rkn")


def test_a_flat_matmul_and_its_bias_become_one_gemm_with_the_same_values() -> None:
    """Two axes: the toolkit types the MatMul FP16 and refuses. Three axes stay as they are: a Gemm would need Reshapes, which its optimizer never ends on."""
    rng = np.random.default_rng(4)
    weights = {"w": rng.normal(0, 0.3, (6, 5)).astype(np.float32), "b": rng.normal(0, 0.3, 5).astype(np.float32)}
    nodes = [models.node("MatMul", ["x", "w"], ["m"], "product"), models.node("Add", ["m", "b"], ["y"], "bias")]
    flat, deep = (job(proto=models.model(nodes, {"x": shape}, {"y": [*shape[:-1], 5]}, weights)) for shape in ([1, 6], [1, 3, 6]))
    adapted = quantized_form(flat).model
    (gemm,) = [n for n in adapted.graph if n.op_type == "Gemm"]
    assert gemm.name == "product" and not [n for n in adapted.graph if n.op_type in ("MatMul", "Add")]
    for a, b in zip(outputs(flat.written.model, flat), outputs(adapted, flat), strict=True):
        np.testing.assert_array_equal(a, b)
    assert [n.op_type for n in quantized_form(deep).model.graph if n.name in ("product", "bias")] == ["MatMul", "Add"]
