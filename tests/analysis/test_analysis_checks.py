"""Proposals carried out: their gains against evaluations of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from analysis_cases import Case, case, chain, detection_head, noise_feeds, residual, run, weights
from models import NPU, Array, model, node, sqnr_db

from qbench.affine import Range, affine, dequantize, quantize
from qbench.analysis.ablation import collapsed, without_channels
from qbench.analysis.checks import cut, raised
from qbench.analysis.proposals import noisy_units
from qbench.analysis.records import Check
from qbench.network import Precision
from qbench.packed import Packed
from qbench.plan import Granularity
from qbench.qdq import write

CLOSE_DB = 0.05


def check_of(found: Case, kind: str, units: tuple[str, ...] = (), change: str = "") -> Check:
    return next(c for c in found.analysis.checks if c.kind == kind and c.units == units and change in c.change)


def test_the_baseline_is_the_whole_model_as_it_ships() -> None:
    for proto, shape in ((chain(), (3, 10, 10)), (residual(), (3, 8, 8))):
        found = case(proto, noise_feeds(shape))
        expected = sqnr_db(found.floats(["y"])["y"], found.quantized(found.plan, ["y"])["y"])
        assert dict(found.analysis.outputs)["y"] == pytest.approx(expected, abs=CLOSE_DB)


@pytest.mark.parametrize("change", [Precision.INT16, Precision.FP16])
@pytest.mark.parametrize(("outlier", "granularity", "units"), [
    (60.0, Granularity.PER_LAYER, ("conv2",)), (300.0, Granularity.PER_CHANNEL, ("conv2", "conv3"))])
def test_the_gain_of_a_raise_is_that_of_an_independent_evaluation(change: Precision, outlier: float, granularity: Granularity,
                                                                  units: tuple[str, ...]) -> None:
    found = case(chain(outlier), noise_feeds((3, 10, 10)), checks=3, granularity=granularity)
    check = check_of(found, "raise", units, str(change))
    schemes = dict(NPU) if change is Precision.INT16 else found.plan.schemes
    other = replace(found.plan, precision={**found.plan.precision, **dict.fromkeys(units, change)}, schemes=schemes)
    reference = found.floats(["y"])["y"]
    before, after = (sqnr_db(reference, found.quantized(p, ["y"])["y"]) for p in (found.plan, other))
    assert after > before + 2.0
    assert check.part[0] == "y"
    assert check.gain_db == pytest.approx(after - before, abs=CLOSE_DB)


def test_the_layer_with_the_outlier_channel_is_tried_first_though_its_tensor_looks_fine() -> None:
    found = case(chain(outlier=300.0), noise_feeds((3, 10, 10)))
    by_name = {k.name: k.tensors[0] for k in found.analysis.kernels}
    assert by_name["conv2"].isolated.sqnr_db > 38.0                           # as good as any: only its channels tell
    assert by_name["conv2"].dead_alone and np.median(by_name["conv2"].channels_alone_db) < 5.0
    assert set(noisy_units(found.analysis)[:2]) == {"conv2", "conv3"}


def test_raising_the_unit_of_b16_really_mends_the_scores() -> None:
    """Proposal (b): higher precision for the group, evaluated without any part of the analysis."""
    found = case(detection_head(), noise_feeds((3, 8, 8)), checks=3)
    reference = found.floats(["y"])["y"]
    for change in (Precision.INT16, Precision.FP16):
        schemes = dict(NPU) if change is Precision.INT16 else found.plan.schemes
        made = found.quantized(replace(found.plan, precision={**found.plan.precision, "scale": change}, schemes=schemes), ["y"])["y"]
        scores = sqnr_db(reference[:, 4:], made[:, 4:])
        assert scores > 25.0
        parts = {name: after for name, _, after in check_of(found, "raise", ("scale",), str(change)).parts}
        assert parts["y: scores"] == pytest.approx(scores, abs=CLOSE_DB)


def test_cutting_b16_before_the_concat_gives_each_part_its_own_scale() -> None:
    """Proposal (a), against numpy: the float tensors quantized by hand, each with its own range."""
    found = case(detection_head(), noise_feeds((3, 8, 8)), checks=3)
    check = check_of(found, "cut")
    assert [name for name, _, _ in check.parts] == ["boxes", "scores"]
    c = affine(found.plan.ranges["c"], NPU["int8"].activation)
    conv = found.quantized(found.plan, ["c"])["c"]
    assert conv == pytest.approx(dequantize(quantize(conv, c), c), abs=c.scale / 100)
    floats = found.floats(["boxes", "scores"])
    made: dict[str, Array] = {"boxes": conv * np.float32(150.0), "scores": 1.0 / (1.0 + np.exp(-conv.astype(np.float64)))}
    for name, before, after in check.parts:
        a = affine(Range(float(floats[name].min()), float(floats[name].max())), NPU["int8"].activation)
        expected = sqnr_db(floats[name], dequantize(quantize(made[name].astype(np.float32), a), a))
        assert after == pytest.approx(expected, abs=0.3), name                # the factor 150 is a constant of 8 bits in the model
        assert before == pytest.approx(0.0 if name == "scores" else after, abs=0.5)
    assert check.part[0] == "scores" and check.gain_db > 30.0


def test_a_cut_model_is_the_network_without_the_concat_at_the_same_precisions() -> None:
    found = case(detection_head(), noise_feeds((3, 8, 8)))
    made = cut(found.prepared, found.plan, found.analysis.mixed[0], found.fresh)
    assert made is not None
    assert made.prepared.network.outputs == made.tensors == ("boxes", "scores")
    assert set(made.plan.precision.values()) == {Precision.INT8}
    assert made.plan.ranges["c"] == found.plan.ranges["c"]
    assert made.plan.ranges["scores"].high <= 1.0 < made.plan.ranges["boxes"].high
    floats = run(made.prepared.model, {t: t for t in made.tensors}, found.x)
    for name, value in found.floats(made.tensors).items():
        np.testing.assert_array_equal(floats[name], value)
    assert cut(found.prepared, found.plan, replace(found.analysis.mixed[0], blocked="Conv computes with it"), found.fresh) is None


def test_a_clipping_range_is_mended_and_its_gain_measured() -> None:
    found = case(chain(), noise_feeds((3, 10, 10)), checks=1)
    ranges = {**found.plan.ranges, "b": Range(0.0, found.plan.ranges["b"].high * 0.3)}
    found = replace(found, plan=replace(found.plan, ranges=ranges))
    check = next(c for c in found.analysis.checks if c.kind == "range" and c.subject == "b")
    stored = next(s for s in found.analysis.stored if s.tensor == "b")
    other = replace(found.plan, ranges={**ranges, "b": Range(stored.best_low, stored.best_high)})
    reference = found.floats(["y"])["y"]
    before, after = (sqnr_db(reference, found.quantized(p, ["y"])["y"]) for p in (found.plan, other))
    assert after > before + 5.0
    assert check.gain_db == pytest.approx(after - before, abs=CLOSE_DB)


@pytest.mark.parametrize(("now", "finer"), [(Granularity.PER_LAYER, "per-channel"), (Granularity.GLOBAL, "per-layer")])
def test_finer_scales_are_tried_where_they_may_help(now: Granularity, finer: str) -> None:
    found = case(chain(outlier=300.0), noise_feeds((3, 10, 10)), checks=1, granularity=now)
    check = next(c for c in found.analysis.checks if c.kind == "granularity" and c.change == finer)
    other = replace(found.plan, granularity=Granularity(finer))
    reference = found.floats(["y"])["y"]
    before, after = (sqnr_db(reference, found.quantized(p, ["y"])["y"]) for p in (found.plan, other))
    assert check.gain_db == pytest.approx(after - before, abs=CLOSE_DB)


def test_a_raised_plan_takes_wide_ranges_and_drops_what_was_adjusted_to_the_old_codes() -> None:
    found = case(chain(), noise_feeds((3, 10, 10)))
    tensors = {k: Packed.of(np.zeros(3, np.int8)) for k in ("round:w2", "round:w3", "bias:conv2", "bias:conv3", "constant:w2")}
    cramped = replace(found.plan, tensors=tensors, ranges={**found.plan.ranges, "b": Range(0.0, 0.1), "a": Range(0.0, 0.1)})
    made = raised(cramped, found.prepared.network, found.prepared.model, ["conv2", "conv3"], Precision.INT16, NPU["int16"], found.fresh)
    assert set(made.tensors) == {"constant:w2"}
    assert made.ranges["b"] == Range(0.0, found.statistics["b"].maximum)      # between the two: nobody reads it in 8 bits any more
    assert made.ranges["a"] == Range(0.0, 0.1)                                # conv1 still writes 8 bits
    assert write(found.prepared, replace(made, tensors={})).model is not None


def test_what_counts_as_gain_and_as_loss() -> None:
    check = Check("raise", "u", "fp16", (("y", 39.0, 39.2), ("y: boxes", 80.0, 120.0), ("y: scores", 1.0, 21.0), ("z", 40.0, 35.0)))
    assert check.part == ("y: scores", 1.0, 21.0)                             # beyond 50 dB nobody needs more
    assert check.gain_db == check.useful_db == 20.0
    assert check.loss == ("z", 40.0, 35.0)
    assert Check("raise", "u", "fp16", (("y", 80.0, 70.0),)).loss is None
    fine = Check("raise", "u", "fp16", (("y", 55.0, 90.0),))
    assert (fine.gain_db, fine.useful_db) == (35.0, 0.0)


# -- channels that the plan turns into zeros

@pytest.mark.parametrize(("tensor", "axis"), [("b", 1), ("y", 1), ("a", 3)])
def test_the_float_model_without_some_channels(tensor: str, axis: int) -> None:
    """Against setting them to zero by hand, in the middle and at the output."""
    found = case(chain(), noise_feeds((3, 10, 10)))
    whole_model = found.measured[1].walk.prepared.model
    made = without_channels(whole_model, tensor, axis, (0, 2))
    assert made is not None
    names = {n: n for n in dict.fromkeys((tensor, "y"))}
    cut, whole = run(made, names, found.x), run(whole_model, names, found.x)
    expected = whole[tensor].copy()
    expected[tuple([0, 2] if i == axis else slice(None) for i in range(4))] = 0.0
    np.testing.assert_array_equal(cut[tensor], expected)
    assert (cut["y"] != whole["y"]).any()
    assert without_channels(whole_model, "nobody", axis, (0,)) is None and without_channels(whole_model, tensor, None, (0,)) is None


@pytest.mark.parametrize("needed", [True, False])
def test_dead_channels_are_told_where_the_network_needs_them_only(needed: bool) -> None:
    """Two channels a two-thousandth of the others; the next layer reads them 2000 times as strongly, or not at all."""
    w = weights(9, w=(6, 3, 1, 1), w2=(4, 6, 1, 1))
    w["w"][1:3] /= 2000.0
    w["w2"][:, 1:3] *= 2000.0 if needed else 0.0
    nodes = [node("Conv", ["x", "w"], ["c"], "narrow"), node("Conv", ["c", "w2"], ["y"], "next")]
    found = case(model(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 4, 8, 8]}, w), noise_feeds((3, 8, 8)), checks=1)
    assert [e.tensor for _, e in collapsed(found.analysis)] == ["c"]
    check = next(c for c in found.analysis.checks if c.kind == "without")
    floats = found.floats(["c", "y"])
    kept = floats["c"].copy()
    kept[:, 1:3] = 0.0
    without = np.einsum("nchw,oc->nohw", kept, w["w2"][:, :, 0, 0])
    expected = sqnr_db(floats["y"], without)
    assert min(db for _, _, db in check.parts) == pytest.approx(min(expected, 200.0), abs=0.1 if needed else 200.0)
    told = [f for f in found.findings if f.kind == "collapse"]
    assert bool(told) is needed
    if told:
        assert f"without them float itself is at {expected:.1f} dB in output 'y'" in told[0].text
