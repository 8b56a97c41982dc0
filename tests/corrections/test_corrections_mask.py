"""BUG case B13: attention masks with huge negative constants, in every form that exporters write."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from masked_attention import CAUSAL, FORMS, FROM_INPUT, HUGE, TOKENS, attention, data, feeds_of
from models import NPU, Array, model, node, prepare, sqnr_db
from onnx import numpy_helper

from qbench import qdq, targets
from qbench.affine import Scheme
from qbench.corrections.mask import finite_masks, masking
from qbench.corrections.mask_pattern import masked
from qbench.corrections.steps import Mask
from qbench.data import ArrayDataset
from qbench.graph import PreparedModel
from qbench.network import Precision
from qbench.plan import Granularity, Plan
from qbench.qdq import quantized_tensors, to_bytes
from qbench.runtime import Session
from qbench.statistics import collect
from qbench.target import QuantScheme
from qbench.workbench import statistics_of
from qbench.workbench.correcting import Corrected, Recipe, corrected

SCHEMES = {"int8": NPU["int8"], "int16": QuantScheme(Scheme(16, False, False), Scheme(16, True, True, True), True)}
LEAST_DB = {Precision.INT8: 30.0, Precision.INT16: 40.0}
WHERE = {"where", "taken", "kept", "twice", "guarded"}
"""A Where on the logits shares their scale, once its constant is of their size."""
MULTIPLIED = {"one-minus", "minus-one", "integers"}
"""0 times infinity is not a number, in float already."""


def recipe(precision: Precision = Precision.INT8, calibrator: str = "minmax") -> Recipe:
    target = targets.load("rk3588")
    return Recipe(target, target.toolkit(None), SCHEMES, precision, calibrator, Granularity.PER_CHANNEL)


def calibration(form: str, **changed: Array) -> ArrayDataset:
    return ArrayDataset(feeds_of(form, data(0, 24) | changed), None, "tokens")


def made(proto: onnx.ModelProto, form: str, steps: tuple[str, ...] = (), precision: Precision = Precision.INT8, **changed: Array) -> tuple[PreparedModel, Corrected]:
    prepared = prepare(proto)
    return prepared, corrected(prepared, recipe(precision), steps, dataset=calibration(form, **changed), threads=1)


def run(model_: Any, feeds: dict[str, Array]) -> Array:
    return next(iter(Session(to_bytes(model_), 1).run(feeds).values()))


def quantized(prepared: PreparedModel, plan: Plan, feeds: dict[str, Array]) -> Array:
    return run(qdq.write(prepared, plan).model, feeds)


def largest_scale(prepared: PreparedModel, plan: Plan) -> float:
    """Of everything that the file stores."""
    graph = qdq.write(prepared, plan).model.graph
    scales = [n.inputs[1] for n in graph if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    return max(float(s.const_value.numpy().max()) for s in scales if s is not None and s.const_value is not None)


def family() -> list[Any]:
    return [pytest.param(form, huge, id=f"{form} {huge:.3g}") for form in (*FORMS, *FROM_INPUT) for huge in HUGE
            if (form in ("add", "one-minus", "where", "taken", "of-itself") or huge in (-np.inf, -3.4028235e38, -1e4)) and not (form in MULTIPLIED and np.isinf(huge))]


@pytest.mark.parametrize(("form", "huge"), family())
def test_masked_attention_keeps_its_signal(form: str, huge: float) -> None:
    """uint8 >= 30 dB and uint16 >= 40 dB at the Softmax, the float model changes by less than 1e-8, and no scale is out of proportion."""
    proto, feeds = attention(form, huge), dict(next(iter(calibration(form).batches(24))).feeds)
    for precision, least in LEAST_DB.items():
        prepared, found = made(proto, form, precision=precision)
        before = run(prepared.model, feeds)
        assert np.abs(run(found.prepared.model, feeds) - before).max() < 1e-8
        assert sqnr_db(before, quantized(prepared, found.plan, feeds)) >= least
        assert "mask" in found.plan.corrections and found.plan.model_key.endswith("+mask")
        assert largest_scale(prepared, found.plan) < 1.0
        softmax = found.prepared.network.unit_of_kernel["attend"]
        assert found.plan.precision[softmax] is precision                     # in integers, and not in float by a fallback
        if form in WHERE:
            assert found.plan.precision[found.prepared.network.unit_of_kernel["apply"]] is precision


@pytest.mark.parametrize("opset", [11, 13, 21])
@pytest.mark.parametrize("form", ["add", "one-minus", "selected"])
def test_every_opset(form: str, opset: int) -> None:
    prepared, found = made(attention(form, -3.4028235e38, opset), form)
    feeds = dict(next(iter(calibration(form).batches(24))).feeds)
    assert sqnr_db(run(prepared.model, feeds), quantized(prepared, found.plan, feeds)) >= 30


@pytest.mark.parametrize("huge", HUGE)
def test_the_minimal_input_of_the_bug_case(huge: float) -> None:
    """MatMul(8x8) -> Add(mask) -> Softmax: product and mask are one kernel. The constant becomes -(hi - lo) - 20, and -inf no longer
    keeps the layer in float."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(8, 8)).astype(np.float32), "mask": np.where(CAUSAL, 0, huge).astype(np.float32)}
    nodes = [node("MatMul", ["x", "w"], ["a"], "product"), node("Add", ["a", "mask"], ["b"], "apply"), node("Softmax", ["b"], ["y"], "attend")]
    prepared = prepare(model(nodes, {"x": ["N", 8, 8]}, {"y": ["N", 8, 8]}, weights))
    x = rng.normal(size=(16, 8, 8)).astype(np.float32)
    for precision, least in LEAST_DB.items():
        found = corrected(prepared, recipe(precision), dataset=ArrayDataset({"x": x}, None, "x"), threads=1)
        logits = x @ weights["w"]
        constant = found.plan.tensors["constant:mask"].array
        assert constant.min() == pytest.approx(-(logits.max() - logits.min()) - 20, rel=1e-5) and (constant[CAUSAL] == 0).all()
        before = run(prepared.model, {"x": x})
        assert np.abs(run(found.prepared.model, {"x": x}) - before).max() < 1e-8
        assert sqnr_db(before, quantized(prepared, found.plan, {"x": x})) >= least
        assert all(p is precision for p in found.plan.precision.values())
    assert any(not u.quantizable for u in prepared.network.units) == bool(np.isinf(huge))


@pytest.mark.parametrize("form", ["add", "where", "added-where", "one-minus", "stacked", "filled", "compared", "taken", "twice", "of-itself"])
def test_without_the_step_the_attention_stays_in_float_and_says_why(form: str) -> None:
    """Never a scale of 1e36, whichever way."""
    prepared, found = made(attention(form, -3.4028235e38), form, ("none",))
    plan = found.plan
    assert not plan.corrections and not plan.tensors
    assert plan.precision[prepared.network.unit_of_kernel["attend"]].is_float and plan.precision[prepared.network.unit_of_kernel["apply"]].is_float
    assert "'attend' stays" in plan.notes["attend"] and '"mask" is not applied' in plan.notes["attend"]
    assert plan.precision[prepared.network.unit_of_kernel["query"]] is Precision.INT8
    assert largest_scale(prepared, plan) < 1.0


@pytest.mark.parametrize("calibrator", ["percentile:p=99.9", "kl", "mse"])
def test_any_calibrator(calibrator: str) -> None:
    prepared = prepare(attention("add", -np.inf))
    found = corrected(prepared, recipe(calibrator=calibrator), dataset=calibration("add"), threads=1)
    feeds = dict(next(iter(calibration("add").batches(24))).feeds)
    assert sqnr_db(run(prepared.model, feeds), quantized(prepared, found.plan, feeds)) >= 25


# -- rows that are masked entirely

def whole_row(huge: float) -> onnx.ModelProto:
    """Row 3 of the causal mask leaves nothing."""
    proto = attention("add", huge)
    held = next(i for i in proto.graph.initializer if i.name == "mask")
    changed = numpy_helper.to_array(held).copy()
    changed[3] = huge
    held.CopyFrom(numpy_helper.from_array(changed, "mask"))
    return proto


@pytest.mark.parametrize("huge", [-np.inf, -3.4028235e38, -1e4])
def test_a_row_that_is_masked_entirely_keeps_what_float_makes_of_it(huge: float) -> None:
    """Uniform, or NaN: the mask stays, in float, unless the user says that nobody reads such rows."""
    prepared, found = made(whole_row(huge), "add")
    assert "constant:mask" not in found.plan.tensors
    assert "1 rows of 'mask' mask everything" in found.gains[0].remarks[0] and "mask:rows=any" in found.plan.notes["attend"]
    feeds = dict(next(iter(calibration("add").batches(24))).feeds)
    before, after = run(prepared.model, feeds), quantized(prepared, found.plan, feeds)
    assert np.array_equal(np.isnan(before), np.isnan(after)) and np.isnan(before).any() == np.isinf(huge)
    keep = np.arange(TOKENS) != 3
    assert sqnr_db(before[:, keep], after[:, keep]) >= 30
    prepared, found = made(whole_row(huge), "add", ("mask:rows=any",))
    assert "mask:rows=any" in found.plan.corrections and found.plan.precision["attend"] is Precision.INT8
    assert sqnr_db(before[:, keep], quantized(prepared, found.plan, feeds)[:, keep]) >= 30


def test_rows_that_an_input_masks_entirely_are_found_on_the_data() -> None:
    keep = data(0, 24)["keep"]
    keep[5] = 0
    _, found = made(attention("one-minus", -3.4028235e38), "one-minus", keep=keep)
    assert "mask" not in found.plan.corrections and found.plan.precision["attend"].is_float
    assert "some row is masked entirely" in found.plan.notes["attend"]
    _, found = made(attention("one-minus", -3.4028235e38), "one-minus", ("mask:rows=any",), keep=keep)
    assert "mask:rows=any" in found.plan.corrections and found.plan.precision["attend"] is Precision.INT8


def test_a_refused_mask_of_computed_shape_leaves_a_plan_of_the_network_as_it_is() -> None:
    """With the diagonal masked too, the first row has nothing left; the plan must still fit the user's model."""
    proto = attention("filled", -np.inf)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), "nought"))
    next(n for n in proto.graph.node if n.op_type == "Trilu").input[1] = "nought"
    prepared, found = made(proto, "filled")
    assert "some row is masked entirely" in found.plan.notes["attend"] and "mask" not in found.plan.corrections
    assert found.plan.model_key == prepared.network.model_key and largest_scale(prepared, found.plan) < 1.0


# -- masks that cannot be replaced

def test_a_mask_of_fractions_is_no_switch() -> None:
    keep = data(0, 24)["keep"]
    keep[:, 6] = 0.5
    _, found = made(attention("one-minus", -1e4), "one-minus", keep=keep)
    assert "holds other values than 0 and 1" in found.plan.notes["attend"] and found.plan.precision["attend"].is_float


def test_a_constant_with_another_reader_stays() -> None:
    proto = attention("selected", -1e4)
    proto.graph.node.append(node("Add", ["y", "huge"], ["z"], "elsewhere"))
    del proto.graph.output[:]
    proto.graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, ["N", TOKENS, TOKENS]))
    _, found = made(proto, "selected")
    assert "also serves Add 'elsewhere'" in found.plan.notes["attend"]


def test_an_unrecognised_mask_is_seen_by_its_span() -> None:
    """Divided by a tiny number: not a form that is known, but the logits span 1e9."""
    proto = attention("one-minus", -1e4)
    weigh = next(n for n in proto.graph.node if n.name == "weigh")
    weigh.op_type = "Div"
    proto.graph.initializer.remove(next(i for i in proto.graph.initializer if i.name == "huge"))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(-1e-9, np.float32), "huge"))
    prepared, found = made(proto, "one-minus")
    assert found.plan.precision["attend"].is_float and "no mask that is recognised explains" in found.plan.notes["attend"]
    assert largest_scale(prepared, found.plan) < 1.0


def two_heads(second_scale: float) -> onnx.ModelProto:
    """Two attentions share one mask; the logits of the second are larger."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(8, 8)).astype(np.float32), "v": (second_scale * rng.normal(size=(8, 8))).astype(np.float32),
               "mask": np.where(CAUSAL, 0, -1e30).astype(np.float32)}
    nodes = []
    for head, w in (("a", "w"), ("b", "v")):
        nodes += [node("MatMul", ["x", w], [f"{head}0"], f"{head}_product"), node("Add", [f"{head}0", "mask"], [f"{head}1"], f"{head}_apply"),
                  node("Softmax", [f"{head}1"], [f"{head}2"], f"{head}_attend")]
    nodes.append(node("Add", ["a2", "b2"], ["y"], "both"))
    return model(nodes, {"x": ["N", 8, 8]}, {"y": ["N", 8, 8]}, weights)


def test_a_shared_mask_is_negative_enough_for_all() -> None:
    prepared = prepare(two_heads(4.0))
    x = np.random.default_rng(1).normal(size=(16, 8, 8)).astype(np.float32)
    found = corrected(prepared, recipe(), dataset=ArrayDataset({"x": x}, None, "x"), threads=1)
    v = prepared.model.graph.initializers["v"].const_value
    assert v is not None
    logits = x @ v.numpy()
    assert found.plan.tensors["constant:mask"].array.min() == pytest.approx(-(logits.max() - logits.min()) - 20, rel=1e-5)
    assert np.abs(run(found.prepared.model, {"x": x}) - run(prepared.model, {"x": x})).max() < 1e-8
    stays = masking(prepared, found.statistics, Mask(), {"a_attend": "as a test"})
    assert not stays.constants and "it shares 'mask' with 'a_attend'" in stays.refused["b_attend"]


# -- from statistics alone

def test_statistics_alone_suffice_but_the_rows_are_not_looked_at() -> None:
    prepared = prepare(attention("one-minus", -3.4028235e38))
    seen = collect(finite_masks(prepared).model, quantized_tensors(prepared.network), calibration("one-minus"), model_key=prepared.network.model_key)
    found = corrected(prepared, recipe(), statistics=seen, threads=1)
    assert "mask" in found.plan.corrections and found.plan.precision["attend"] is Precision.INT8
    assert any("not looked at on samples" in r for r in found.gains[0].remarks) and found.gains[0].sqnr_after_db is None
    feeds = dict(next(iter(calibration("one-minus").batches(24))).feeds)
    assert sqnr_db(run(prepared.model, feeds), quantized(prepared, found.plan, feeds)) >= 29


def test_logits_that_were_not_observed_stay_in_float() -> None:
    prepared = prepare(attention("add", -3.4028235e38))
    names = [t for t in quantized_tensors(prepared.network) if t != "logits"]
    seen = collect(prepared.model, names, calibration("add"), model_key=prepared.network.model_key)
    found = masking(prepared, seen, Mask())
    assert not found.constants and "tensor 'logits' was not observed" in found.refused["attend"]
    assert {"apply", "attend"} <= set(found.floats)


def test_a_network_without_masks_is_left_alone() -> None:
    """A learned bias of -16 in front of a Softmax is one, and not a mask: nothing beyond the span of the logits."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(8, 8)).astype(np.float32), "bias": np.full((8, 8), -16, np.float32)}
    nodes = [node("MatMul", ["x", "w"], ["a"], "product"), node("Add", ["a", "bias"], ["b"], "apply"), node("Softmax", ["b"], ["y"], "attend")]
    prepared = prepare(model(nodes, {"x": ["N", 8, 8]}, {"y": ["N", 8, 8]}, weights))
    assert finite_masks(prepared) is prepared
    found = corrected(prepared, recipe(), dataset=ArrayDataset({"x": rng.normal(size=(8, 8, 8)).astype(np.float32)}, None, "x"), threads=1)
    assert found.gains[0].remarks == ("no attention mask",) and not found.plan.tensors and found.prepared is prepared
    assert found.plan.model_key == prepared.network.model_key


def test_what_decides_is_found() -> None:
    prepared = prepare(attention("one-minus", -1e4))
    (one,) = masked(prepared.model.graph)
    assert [name for name, _ in one.chain] == ["masked"] and one.tree == ["mask"] and [(v.name, s) for v, s in one.gates] == [("drop", 1)]


def test_the_margin_is_an_option() -> None:
    prepared = prepare(attention("add", -1e4))
    found = corrected(prepared, recipe(), ("mask:margin=30",), dataset=calibration("add"), threads=1)
    usual = corrected(prepared, recipe(), dataset=calibration("add"), threads=1)
    assert found.plan.tensors["constant:mask"].array.min() == pytest.approx(usual.plan.tensors["constant:mask"].array.min() - 10, rel=1e-5)
    assert replace(found.plan, tensors={}, corrections=(), ranges={}) == replace(usual.plan, tensors={}, corrections=(), ranges={})


def test_statistics_of_a_model_with_infinite_masks_can_be_collected() -> None:
    """`qbench stats` sees finite numbers behind a mask of -inf, with the policy that stops at anything else."""
    rng = np.random.default_rng(0)
    mask = np.triu(np.full((8, 8), -np.inf, np.float32), 1)
    nodes = [node("MatMul", ["x", "w"], ["l"], "mm"), node("Add", ["l", "mask"], ["s"], "add"), node("Softmax", ["s"], ["y"], "softmax", axis=-1)]
    prepared = prepare(model(nodes, {"x": ["N", 8, 8]}, {"y": ["N", 8, 8]}, {"w": rng.normal(size=(8, 8)).astype(np.float32), "mask": mask}))
    found = statistics_of(prepared, ArrayDataset({"x": rng.normal(size=(4, 8, 8)).astype(np.float32)}))
    assert found.model_key == prepared.network.model_key and all(not t.non_finite for t in found.values())
