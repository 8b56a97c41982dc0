"""The verdict: what it names, in which order, on which numbers."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from analysis_cases import Case, Feeds, case, chain, detection_head, noise_feeds, residual, weights
from models import model, node, observe, plan, prepare

from qbench.affine import Range
from qbench.analysis import Analysis, Finding, verdict
from qbench.analysis.proposals import FALLS_DB, amplification_db
from qbench.analysis.records import Check, Error, KernelError, TensorError
from qbench.analysis.words import gain
from qbench.network import Precision
from qbench.plan import Granularity


def kinds(findings: tuple[Finding, ...]) -> list[str]:
    return [f.kind for f in findings]


def test_b16_names_group_and_concat_and_proposes_the_cut_first() -> None:
    found = case(detection_head(), noise_feeds((3, 8, 8)), checks=3)
    first = found.findings[0]
    assert (first.kind, first.subject) == ("cut", "boxes")
    whole, scores = (dict(found.analysis.outputs)[n] for n in ("y", "y: scores"))
    for words in ("'boxes'", "'scores'", "Concat 'join'", "4 of its 4 channels exactly zero", f"'y' as a whole shows {whole:.1f} dB",
                  "comes out at 0.0 dB", "(a) Cut the graph before 'join'", "(b) Or keep the graph and raise unit 'scale'", "to INT16", "to FP16"):
        assert words in first.text, words
    assert scores == pytest.approx(0.0, abs=1e-6)
    assert first.gain_db == next(c.gain_db for c in found.analysis.checks if c.kind == "cut")
    assert first.gain_db is not None and first.gain_db > 30.0
    assert not any(f.kind == "raise" and f.subject == "scale" for f in found.findings)           # told once


def test_without_checks_the_cut_is_proposed_without_gains() -> None:
    found = case(detection_head(), noise_feeds((3, 8, 8)))
    first = found.findings[0]
    assert (first.kind, first.gain_db) == ("cut", None)
    assert "at the same precision. (b)" in first.text and "to INT16 or FP16" in first.text


def test_where_the_graph_cannot_be_cut_the_reason_is_given_and_the_precision_counts() -> None:
    w = weights(0, w=(4, 3, 3, 3)) | {"factor": np.array([150.0], np.float32)} | weights(1, w2=(2, 8, 1, 1))
    w["w2"][:, :4] /= 150.0
    nodes = [node("Conv", ["x", "w"], ["c"], "conv", pads=[1] * 4), node("Mul", ["c", "factor"], ["boxes"], "scale"),
             node("Sigmoid", ["c"], ["scores"], "gate"), node("Concat", ["boxes", "scores"], ["j"], "join", axis=1),
             node("Conv", ["j", "w2"], ["y"], "after")]
    found = case(model(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 2, 8, 8]}, w), noise_feeds((3, 8, 8)), checks=1)
    cut = next(f for f in found.findings if f.kind == "cut")
    assert "no way out: Conv 'after' computes with the joined tensor" in cut.text
    assert not any(c.kind == "cut" for c in found.analysis.checks)


@pytest.mark.parametrize(("outlier", "granularity"), [(300.0, Granularity.PER_CHANNEL), (40.0, Granularity.PER_CHANNEL)])
def test_the_layer_with_a_huge_channel_is_named_first(outlier: float, granularity: Granularity) -> None:
    found = case(chain(outlier), noise_feeds((3, 10, 10)), checks=3, granularity=granularity)
    first = found.findings[0]
    assert first.kind == "raise" and "conv2" in first.subject.split(", ")
    assert f"{first.gain_db:+.1f} dB" in first.text
    gains = [f.gain_db for f in found.findings if f.gain_db is not None and f.kind not in ("together", "leave")]
    assert gains == sorted(gains, reverse=True)


def test_weights_with_one_scale_and_a_huge_channel_are_named_with_the_codes_they_keep() -> None:
    w = weights(6, w=(8, 3, 3, 3), w2=(4, 8, 1, 1))
    w["w"][5] *= 60.0
    w["w2"][:, 5] /= 60.0
    nodes = [node("Conv", ["x", "w"], ["h"], "wide"), node("Conv", ["h", "w2"], ["y"], "back")]
    proto = model(nodes, {"x": ["N", 3, 6, 6]}, {"y": ["N", 4, 4, 4]}, w)
    tried = case(proto, noise_feeds((3, 6, 6)), checks=3, granularity=Granularity.PER_LAYER).findings
    named = next(f for f in tried if f.kind == "granularity")
    assert "per-channel scales instead of per-layer" in named.text and "channel 5" in named.text
    assert named.gain_db is not None and named.gain_db > 0.5
    untried = next(f for f in case(proto, noise_feeds((3, 6, 6)), granularity=Granularity.PER_LAYER).findings if f.kind == "weights")
    assert untried.subject == "wide" and "per-channel" in untried.text and "cle" in untried.text and untried.gain_db is None
    fine = case(proto, noise_feeds((3, 6, 6)), checks=3).findings
    assert not {"granularity", "weights"} & set(kinds(fine))


def test_a_calibrator_that_clips_too_much_is_told_with_its_share_of_the_noise() -> None:
    found = case(chain(), noise_feeds((3, 10, 10)), checks=1)
    ranges = {**found.plan.ranges, "b": Range(0.0, found.plan.ranges["b"].high * 0.3)}
    found = replace(found, plan=replace(found.plan, ranges=ranges))
    first = next(f for f in found.findings if f.kind == "range")
    assert first.subject == "b" and "minmax clips 'b' too much" in first.text
    assert re.search(r"\d+ % of the values lie beyond and make (9\d|100) % of the noise", first.text)
    assert first.gain_db is not None and first.gain_db > 10.0
    assert f"Try the range of 'b' first: it alone gains {first.gain_db:+.1f} dB" in next(f for f in found.findings if f.kind == "raise").text


def test_a_range_made_on_other_data_is_too_wide() -> None:
    found = case(chain(), noise_feeds((3, 10, 10)), checks=1)
    ranges = {k: Range(r.low * 6.0, r.high * 6.0) for k, r in found.plan.ranges.items()}
    found = replace(found, plan=replace(found.plan, ranges=ranges))
    told = [f for f in found.findings if f.kind == "range"]
    assert any("too wide" in f.text and "while these data stay within" in f.text for f in told)
    every = next(f for f in told if f.subject == f"{len(ranges)} tensors")
    assert f"leaves the range of {len(ranges)} tensors too wide" in every.text and "qbench compare" in every.text
    assert all("too much:" not in f.text for f in told)


def test_a_range_stretched_by_few_values_is_too_wide_for_them() -> None:
    found = case(chain(), noise_feeds((3, 10, 10))).analysis
    b = next(s for s in found.stored if s.tensor == "b")
    stretched = replace(b, best_high=b.high / 3, best_db=b.noise_db + 9.0)
    told = verdict(replace(found, stored=(stretched,), checks=(Check("range", "b", "0 to 1", (("y", 20.0, 27.0),)),)))[0]
    assert told.kind == "range" and "too wide" in told.text and "for a few values far out" in told.text and f"{stretched.step:.3g}" in told.text


def test_hidden_channels_are_counted_listed_and_told_once_a_scale_group() -> None:
    """Through a pooling that only passes them on."""
    w = weights(9, w=(6, 3, 1, 1))
    w["w"][1:3] /= 2000.0
    nodes = [node("Conv", ["x", "w"], ["c"], "conv"), node("MaxPool", ["c"], ["y"], "pool", kernel_shape=[2, 2], strides=[2, 2])]
    found = case(model(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 6, 4, 4]}, w), noise_feeds((3, 8, 8)))
    told = [f for f in found.findings if f.kind == "collapse"]
    assert len(told) == 1 and told[0].subject == "c"
    assert "2 of 6 channels of 'c' (Conv 'conv') come out constant zero" in told[0].text and told[0].text.count(": 1, 2.") == 1
    assert "one step is" in told[0].text and "hides it" in told[0].text


def test_constant_and_unobserved_tensors_are_told() -> None:
    proto = residual()
    feeds = noise_feeds((3, 8, 8))
    still: Feeds = [{"x": np.zeros_like(f["x"])} for f in feeds]
    prepared = prepare(proto)
    found = Case(prepared, plan(prepared, observe(prepared, feeds)), still)
    told = next(f for f in found.findings if f.kind == "constant")
    assert "'x' (0)" in told.text and "6 calibration samples" in told.text
    lost = replace(found.analysis, unobserved={"r": "never observed: no sample reached it"})
    assert any(f.kind == "unobserved" and "'r' (never observed" in f.text for f in verdict(lost))


@pytest.mark.parametrize("base", [Precision.FP16, Precision.FP32])
def test_a_plan_in_float_has_no_findings(base: Precision) -> None:
    found = case(chain(300.0), noise_feeds((3, 10, 10)), checks=3, base=base)
    assert found.findings == ()
    assert all(t.accumulated.sqnr_db == 200.0 for k in found.analysis.kernels for t in k.tensors)
    assert found.analysis.outputs == (("y", 200.0),)


def test_a_sound_plan_is_called_fine_with_its_numbers() -> None:
    found = case(chain(), noise_feeds((3, 10, 10)), base=Precision.INT16)
    assert kinds(found.findings) == ["fine"]
    db = dict(found.analysis.outputs)["y"]
    assert db > 60.0 and f"'y' {db:.1f} dB" in found.findings[0].text and "4 integer units" in found.findings[0].text


def kernel(name: str, alone: float, whole: float, arrives: float, reads: str, op: str = "Conv") -> KernelError:
    error = TensorError(name, "output", name, None, Error(alone, 1.0, 0.0), Error(whole, 1.0, 0.0))
    return KernelError(name, op, name, "int8", "", 0.25, arrives, (error,), (reads,))


def built(*kernels: KernelError, checks: tuple[Check, ...] = (), outputs: tuple[tuple[str, float], ...] = (("y", 20.0),)) -> Analysis:
    base = case(chain(), noise_feeds((3, 10, 10))).analysis
    return replace(base, kernels=kernels, outputs=outputs, stored=(), weights=(), mixed=(), checks=checks)


def test_a_kernel_that_amplifies_is_told_apart_from_one_that_is_noisy() -> None:
    """A difference of near equals: its own error is small, what comes in is not."""
    noisy, quiet, subtract = kernel("a", 38.0, 38.0, 200.0, "x"), kernel("b", 41.0, 36.0, 38.0, "a"), kernel("d", 45.0, 14.0, 36.0, "b", "Sub")
    assert amplification_db(subtract) > FALLS_DB > amplification_db(quiet)
    told = next(f for f in verdict(built(noisy, quiet, subtract)) if f.kind == "amplifies")
    assert told.subject == "d" and "('b')" in told.text
    assert "inputs arrive with 36.0 dB, alone it leaves 45.0 dB, yet its output shows 14.0 dB" in told.text
    tried = verdict(built(noisy, quiet, subtract, checks=(Check("raise", "b", "fp16", (("y", 14.0, 19.0),), ("b",)),)))
    assert (tried[0].kind, tried[0].gain_db) == ("amplifies", 5.0)


def test_a_poor_output_without_a_culprit_is_called_spread() -> None:
    kernels = [kernel(n, 20.0, 12.0, 12.0, "x") for n in "abcdefgh"]
    checks = (Check("raise", "a", "int16", (("y", 10.0, 10.1),), ("a",)),
              Check("noisiest", "3 noisiest units", "int16", (("y", 10.0, 13.0),), ("a", "b", "c")),
              Check("noisiest", "6 noisiest units", "int16", (("y", 10.0, 22.0),), tuple("abcdef")))
    found = verdict(built(*kernels, checks=checks, outputs=(("y", 10.0),)))
    assert kinds(found) == ["spread"]
    assert found[0].gain_db == 12.0
    assert "3 noisiest units (75 % of the MACs) to INT16: output 'y' goes from 10.0 to 13.0 dB (+3.0 dB)" in found[0].text
    single = replace(built(*kernels, checks=(*checks, Check("raise", "b", "int16", (("y", 10.0, 15.0),), ("b",))), outputs=(("y", 10.0),)))
    assert "spread" not in kinds(verdict(single))


def test_a_noisy_layer_that_does_not_matter_is_left_alone() -> None:
    check = Check("raise", "a", "int16", (("y", 35.0, 35.1),), ("a",))
    found = verdict(built(kernel("a", 15.0, 15.0, 200.0, "x"), kernel("b", 40.0, 35.0, 15.0, "a"), checks=(check,), outputs=(("y", 35.0),)))
    assert kinds(found) == ["leave", "fine"]
    assert "on its own it shows 15.0 dB, but at INT16 the output gains +0.1 dB only" in found[0].text


def test_together_follows_the_single_raises_and_says_when_it_adds_nothing() -> None:
    a, b = (Check("raise", n, "int16", (("y", 20.0, 24.0 + i),), (n,)) for i, n in enumerate("ab"))
    kernels = [*(kernel(n, 20.0, 20.0, 200.0, "x") for n in "ab"), kernel("c", 38.0, 38.0, 200.0, "x")]
    for after, word in ((25.2, "no more than the best"), (31.0, "(+11.0 dB).")):
        found = verdict(built(*kernels, checks=(a, b, Check("together", "a, b", "int16", (("y", 20.0, after),), ("a", "b")))))
        assert kinds(found) == ["raise", "raise", "together", "fine"]
        assert [f.subject for f in found[:2]] == ["b", "a"]
        assert word in found[2].text


def test_units_are_called_fine_by_their_own_error_never_by_default() -> None:
    kernels = (kernel("a", 14.0, 14.0, 200.0, "x"), kernel("b", 30.0, 14.0, 14.0, "a"), kernel("c", 20.0, 12.0, 14.0, "b"))
    untried = verdict(built(*kernels, outputs=(("y", 12.0),)))
    assert kinds(untried) == ["untried", "fine"]
    assert untried[0].subject.startswith("a") and "'a' (14.0 dB alone)" in untried[0].text
    assert untried[1].subject == "b" and "1 of 3 integer units are fine as they are: on their own they leave 30.0 dB or more" in untried[1].text
    useless = (Check("raise", "a", "int16", (("y", 12.0, 12.0),), ("a",)), Check("raise", "c", "int16", (("y", 12.0, 15.5),), ("c",)))
    tried = verdict(built(*kernels, checks=useless, outputs=(("y", 12.0),)))
    assert kinds(tried) == ["raise", "leave", "fine"]
    assert "'y' 12.0 dB" in tried[-1].text and "Nothing is worth" not in tried[-1].text


def test_a_cost_elsewhere_is_told_with_the_gain() -> None:
    check = Check("raise", "a", "int16", (("y", 20.0, 26.0), ("z", 30.0, 27.0)), ("a",))
    found = verdict(built(kernel("a", 20.0, 20.0, 200.0, "x"), checks=(check,)))
    assert "at the cost of 'z', 30.0 to 27.0 dB" in found[0].text


def test_an_output_is_not_named_as_its_own_cost() -> None:
    assert gain(Check("raise", "a", "int16", (("y", 28.0, 23.0),), ("a",))) == "output 'y' goes from 28.0 to 23.0 dB (-5.0 dB)"


def test_an_output_that_is_not_finite_comes_before_all() -> None:
    broken = kernel("n", 30.0, -200.0, 35.0, "a", "Div")
    check = Check("raise", "a", "int16", (("y", -200.0, 30.0),), ("a",))
    found = verdict(built(kernel("a", 35.0, 35.0, 200.0, "x"), broken, checks=(check,), outputs=(("y", -200.0),)))
    assert found[0].kind == "nonfinite" and "Div 'n' writes NaN or infinity" in found[0].text


def test_the_verdict_is_pure_and_the_record_is_json() -> None:
    found = case(detection_head(), noise_feeds((3, 8, 8)), checks=2)
    assert verdict(found.analysis) == verdict(found.analysis)
    body = json.loads(json.dumps(found.analysis.to_dict(), allow_nan=False))
    assert {"model", "plan_key", "samples", "layers", "outputs", "kernels", "stored", "mixed", "weights", "checks", "coverage", "constant",
            "unobserved", "warnings"} <= set(body)
    assert body["outputs"][0] == {"part": "y", "sqnr_db": pytest.approx(dict(found.analysis.outputs)["y"])}
    assert {"part", "before_db", "after_db"} == set(body["checks"][0]["parts"][0])
    assert body["samples"] == 6 and len(body["kernels"]) == 4 and body["coverage"]["rows"]
