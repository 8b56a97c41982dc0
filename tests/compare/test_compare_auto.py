"""The choice of calibrators by the output of the layers behind each tensor, and its guard at the network's output."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from compare_cases import Ready, chain, pictures, ready
from hypothesis import given
from hypothesis import strategies as st
from models import Array, model, node, prepare

from qbench import qdq
from qbench.affine import Range, Scheme, affine, dequantize, quantize
from qbench.data import ArrayDataset
from qbench.errors import InputError
from qbench.graph import PreparedModel
from qbench.metrics import make
from qbench.plan import Granularity, Plan
from qbench.runtime import Session
from qbench.walk import Walk
from qbench.workbench import auto
from qbench.workbench.auto import CAREFUL, MIXED, Choice, Judge, calibration_samples, choose, choose_on, mixed, spread
from qbench.workbench.readers import fake_quantized, ratio, reading_errors

CANDIDATES = ("minmax", "percentile:p=99.0", "percentile:p=90.0", "mse")
SCHEMES = [Scheme(8, False, False), Scheme(8, True, True, True), Scheme(16, True, True, True, True), Scheme(4, False, False)]
RNG = np.random.default_rng(5)


def singles(feeds: dict[str, Array]) -> list[dict[str, Array]]:
    return [{k: v[i:i + 1] for k, v in feeds.items()} for i in range(len(next(iter(feeds.values()))))]


def chosen(made: Ready, feeds: dict[str, Array], granularity: Granularity = Granularity.PER_CHANNEL, judge: Judge | None = None) -> Choice:
    return choose(made.prepared, made.plans, singles(feeds), made.precision, granularity, CANDIDATES, judge=judge)


def final_plan(made: Ready, choice: Choice, granularity: Granularity = Granularity.PER_CHANNEL) -> Plan:
    return replace(made.plans, choices=choice.by_group)(made.precision, auto.AUTO, granularity, "")


def sample_dbs(made: Ready, plan: Plan, feeds: dict[str, Array], output: str = "y") -> Array:
    """SQNR at the network's output of each sample, by onnxruntime and numpy alone."""
    floats, integers = Session(qdq.to_bytes(made.prepared.model), 1), Session(qdq.to_bytes(qdq.write(made.prepared, plan).model), 1)
    found = []
    for sample in singles(feeds):
        r, q = (s.run(sample)[output].astype(np.float64) for s in (floats, integers))
        found.append(10 * np.log10((r**2).sum() / ((q - r) ** 2).sum()))
    return np.array(found)


def two_branches() -> tuple[PreparedModel, dict[str, Array]]:
    """Convolutions of two inputs: one with a far outlier in a single sample, one whose rare large values are the signal."""
    w = {k: RNG.normal(0, 0.4, (4, 1, 3, 3)).astype(np.float32) for k in ("wa", "wb")}
    nodes = [node("Conv", ["a", "wa"], ["ya"], "outlier"), node("Conv", ["b", "wb"], ["yb"], "spikes")]
    prepared = prepare(model(nodes, {"a": ["N", 1, 16, 16], "b": ["N", 1, 16, 16]}, {"ya": ["N", 4, 14, 14], "yb": ["N", 4, 14, 14]}, w))
    a = RNG.normal(size=(16, 1, 16, 16)).astype(np.float32)
    a[3, 0, 5, 5] = 300.0
    b = RNG.normal(0, 0.01, (16, 1, 16, 16)).astype(np.float32)
    b[RNG.random(b.shape) < 0.02] = 10.0
    return prepared, {"a": a, "b": b}


def test_an_outlier_is_clipped_and_a_signal_is_not() -> None:
    prepared, feeds = two_branches()
    choice = chosen(ready(prepared, feeds), feeds)
    assert choice.winner == MIXED
    assert choice.by_group["a"] != "minmax" and choice.errors["a"][choice.by_group["a"]] < 0.05 * choice.errors["a"]["minmax"]
    assert choice.by_group["b"] not in ("percentile:p=99.0", "percentile:p=90.0")
    assert choice.errors["b"]["percentile:p=90.0"] > 100 * choice.errors["b"]["minmax"]
    assert "least error at the output of the layers that read it" in choice.reasons["a"]
    assert set(choice.scores) == {*CANDIDATES, MIXED, CAREFUL} and choice.scores[MIXED] == max(choice.scores.values())


def classifier(seed: int) -> PreparedModel:
    rng = np.random.default_rng(seed)
    w = {"w0": rng.standard_t(3, (8, 3, 3, 3)).astype(np.float32) * 0.3, "w1": rng.standard_t(3, (8, 8, 3, 3)).astype(np.float32) * 0.2,
         "b1": rng.normal(size=8).astype(np.float32), "fc": rng.normal(0, 0.5, (8, 6)).astype(np.float32)}
    nodes = [node("Conv", ["x", "w0"], ["a"], "c0", pads=[1] * 4), node("Relu", ["a"], ["ar"]),
             node("Conv", ["ar", "w1", "b1"], ["b"], "c1", pads=[1] * 4), node("Add", ["b", "ar"], ["s"], "add"), node("Relu", ["s"], ["sr"]),
             node("MaxPool", ["sr"], ["m"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
             node("GlobalAveragePool", ["m"], ["g"]), node("Flatten", ["g"], ["f"]), node("Gemm", ["f", "fc"], ["y"], "head")]
    return prepare(model(nodes, {"x": ["N", 3, 12, 12]}, {"y": ["N", 6]}, w))


def heavy(seed: int, count: int = 12) -> dict[str, Array]:
    return {"x": np.random.default_rng(seed).standard_t(2.5, (count, 3, 12, 12)).astype(np.float32)}


@pytest.mark.parametrize("granularity", [Granularity.GLOBAL, Granularity.PER_LAYER, Granularity.PER_CHANNEL])
@pytest.mark.parametrize("seed", range(3))
def test_no_candidate_on_its_own_is_better_than_auto(seed: int, granularity: Granularity) -> None:
    feeds = heavy(seed)
    made = ready(classifier(seed), feeds)
    choice = chosen(made, feeds, granularity)
    alone = {s: sample_dbs(made, made.plans(made.precision, s, granularity, ""), feeds) for s in CANDIDATES}
    assert {s: choice.scores[s] for s in CANDIDATES} == pytest.approx({s: v.mean() for s, v in alone.items()}, abs=1e-6)
    assert max(v.mean() for v in alone.values()) <= sample_dbs(made, final_plan(made, choice, granularity), feeds).mean() + 1e-6
    assert (choice.errors == {}) is (granularity is Granularity.GLOBAL)


@pytest.mark.parametrize(("mix", "careful", "base", "winner"), [
    ([10.0, 12.0, 11.0, 11.0], [0.0] * 4, [9.0, 11.0, 10.0, 10.2], "mix"),           # leads by about 1 dB on every sample
    ([10.0, 16.0, 9.0, 11.0], [0.0] * 4, [10.0, 12.0, 11.0, 11.0], "base"),          # leads by 0.5 dB, of which a standard error is 1.1 dB
    ([10.0, 12.0, 11.0, 11.0], [10.5, 12.4, 11.7, 11.3], [9.0, 11.0, 10.0, 10.2], "careful"),
    ([10.0, 12.0, 11.0, 11.0], [0.0] * 4, [10.0, 16.0, 9.0, 11.0], "base"),          # leads by luck, but leads
    ([9.0, 11.0, 10.0, 10.2], [9.0, 11.0, 10.0, 10.2], [9.0, 11.0, 10.0, 10.2], "base"),
    ([7.0], [6.0], [5.0], "mix"),                                                    # one sample: nothing is known of chance
])
def test_a_mix_is_taken_where_it_leads_the_base_beyond_chance(mix: list[float], careful: list[float], base: list[float], winner: str) -> None:
    scored = {k: np.array(v) for k, v in (("mix", mix), ("careful", careful), ("base", base))}
    assert auto._best(scored, tuple(scored), "base") == winner


def test_the_careful_mix_leaves_the_base_for_a_clear_gain_only() -> None:
    errors = {"base": 1.0e-3, "little": 0.6e-3, "dead": 1.0}
    assert auto._leaving("base", errors, 0.0) == "little" and auto._leaving("base", errors, 3.0) == "base"
    assert auto._leaving("base", errors | {"much": 0.4e-3}, 3.0) == "much"
    assert auto._leaving("base", {}, 0.0) == "base"
    assert auto._leaving("base", dict.fromkeys(errors, 0.0), 0.0) == "base"


def with_softmax(old: bool) -> PreparedModel:
    """A classifier that is sure of every sample; `old`: as opset 12 is rewritten, between a Flatten and a Reshape."""
    rng = np.random.default_rng(2)
    w = {"w0": rng.normal(0, 0.2, (8, 3, 3, 3)).astype(np.float32), "fc": np.outer(np.linspace(1.5, 2.5, 8), [1, -1]).astype(np.float32)}
    nodes = [node("Conv", ["x", "w0"], ["a"], "c0"), node("Relu", ["a"], ["r"]), node("GlobalAveragePool", ["r"], ["g"]),
             node("Flatten", ["g"], ["f"]), node("Gemm", ["f", "fc"], ["z"], "head")]
    if not old:
        return prepare(model([*nodes, node("Softmax", ["z"], ["y"], "soft", axis=1)], {"x": ["N", 3, 12, 12]}, {"y": ["N", 2]}, w))
    nodes += [node("Shape", ["z"], ["s"]), node("Flatten", ["z"], ["zf"]), node("Softmax", ["zf"], ["p"], "soft", axis=-1), node("Reshape", ["p", "s"], ["y"])]
    return prepare(model(nodes, {"x": ["N", 3, 12, 12]}, {"y": ["N", 2]}, w))


@pytest.mark.parametrize("old", [False, True])
def test_a_classifier_that_is_sure_is_judged_in_front_of_its_softmax(old: bool) -> None:
    feeds = {"x": np.random.default_rng(6).normal(size=(12, 3, 12, 12)).astype(np.float32)}
    made = ready(with_softmax(old), feeds)
    answers = Session(qdq.to_bytes(made.prepared.model), 1).run(feeds)["y"]
    assert np.all((answers[:, 1] > 0.0) & (answers[:, 1] < 1e-3))             # less than half a code of 1/256
    choice = chosen(made, feeds, judge=Judge.of(make("top1")))
    assert all(40.0 < choice.scores[s] < 119.0 for s in CANDIDATES)           # one code of 1/256 is 24 dB
    assert len({round(choice.scores[s], 3) for s in CANDIDATES}) == len(CANDIDATES)


def test_for_classifiers_the_divergence_decides() -> None:
    feeds = heavy(7)
    made = ready(classifier(7), feeds)
    choice = chosen(made, feeds, judge=Judge.of(make("top1")))
    floats = Session(qdq.to_bytes(made.prepared.model), 1)

    def log_softmax(x: Array) -> Array:
        x = x.astype(np.float64) - x.max()
        return np.asarray(x - np.log(np.exp(x).sum()))

    def score(plan: Plan) -> float:
        integers = Session(qdq.to_bytes(qdq.write(made.prepared, plan).model), 1)
        pairs = [(log_softmax(floats.run(s)["y"]), log_softmax(integers.run(s)["y"])) for s in singles(feeds)]
        return float(np.mean([-10 * np.log10(max((np.exp(r) * (r - q)).sum(), 1e-6)) for r, q in pairs]))

    alone = {s: score(made.plans(made.precision, s, Granularity.PER_CHANNEL, "")) for s in CANDIDATES}
    assert {s: choice.scores[s] for s in CANDIDATES} == pytest.approx(alone, abs=1e-3)


def test_the_same_question_gets_the_same_answer() -> None:
    feeds = heavy(1)
    made = ready(classifier(1), feeds)
    assert chosen(made, feeds) == chosen(made, feeds)


def test_the_choice_is_what_plans_with_choices_make() -> None:
    feeds = heavy(2)
    made = ready(classifier(2), feeds)
    choice = chosen(made, feeds)
    uniform = {s: made.plans(made.precision, s, Granularity.PER_CHANNEL, "") for s in CANDIDATES}
    assert mixed(uniform, choice.by_group).key == final_plan(made, choice).key


def test_errors_behind_a_tensor_are_those_of_numpy() -> None:
    """One convolution: its input rounded by hand, its weights taken out of the Q/DQ model, its output by a plain float run."""
    w = RNG.normal(0, 0.4, (4, 3, 3, 3)).astype(np.float32)
    nodes = [node("Conv", ["x", "w"], ["c"], "conv"), node("Relu", ["c"], ["y"])]
    prepared = prepare(model(nodes, {"x": ["N", 3, 12, 12]}, {"y": ["N", 4, 10, 10]}, {"w": w}))
    feeds = heavy(3, 5)
    made = ready(prepared, feeds)
    plans = {s: made.plans(made.precision, s, Granularity.PER_CHANNEL, "") for s in CANDIDATES}
    found = reading_errors(Walk(prepared, plans["minmax"], singles(feeds)), {s: p.ranges for s, p in plans.items()})
    scheme = plans["minmax"].schemes["int8"]
    scales = np.abs(w).max(axis=(1, 2, 3), keepdims=True) / 127
    coded = (np.rint(w / scales) * scales).astype(np.float32)
    rounded = prepare(model(nodes, {"x": ["N", 3, 12, 12]}, {"y": ["N", 4, 10, 10]}, {"w": coded}))
    floats, integers = (Session(qdq.to_bytes(p.model), 1) for p in (prepared, rounded))
    for spec, plan in plans.items():
        a = affine(plan.ranges["x"], scheme.activation)
        shares = []
        for sample in singles(feeds):
            want = floats.run(sample)["y"].astype(np.float64)
            got = integers.run({"x": dequantize(quantize(sample["x"], a), a)})["y"]
            shares.append(((got - want) ** 2).sum() / (want**2).sum())
        assert found["x"][spec] == pytest.approx(np.exp(np.mean(np.log(shares))), rel=1e-3)
    # the output leaves the network: its own codes count
    want = np.concatenate([floats.run(s)["y"] for s in singles(feeds)])
    a = affine(plans["mse"].ranges["y"], scheme.activation)
    own = [((dequantize(quantize(y, a), a).astype(np.float64) - y) ** 2).sum() / (y.astype(np.float64) ** 2).sum() for y in want]
    assert found["y"]["mse"] == pytest.approx(np.exp(np.mean(np.log(own))), rel=1e-4)


def test_every_group_that_is_stored_is_judged_those_inside_a_kernel_too() -> None:
    feeds = heavy(4)
    made = ready(classifier(4), feeds)
    plan = made.plans(made.precision, "minmax", Granularity.PER_CHANNEL, "")
    fused = made.prepared.network.kernel["c1"]
    assert fused.op == "Conv+Add+Relu" and "b" in fused.inner and "b" in plan.ranges
    choice = chosen(made, feeds)
    assert set(choice.errors) == set(plan.ranges) == set(choice.by_group) == set(choice.reasons)
    assert len(set(choice.errors["b"].values())) > 1                  # its range changes what comes out of its own kernel


@given(st.floats(0.01, 100.0), st.floats(0.0, 1.0), st.sampled_from(SCHEMES), st.integers(0, 99))
def test_rounding_is_that_of_the_file(width: float, share: float, scheme: Scheme, seed: int) -> None:
    a = affine(Range(-width * share, width * (1.0 - share)), scheme)
    x = np.random.default_rng(seed).normal(0, width, 64).astype(np.float32)
    np.testing.assert_array_equal(fake_quantized(x, a), dequantize(quantize(x, a), a))


def test_one_spoiled_sample_in_many_does_not_decide() -> None:
    noise, signal = np.full(16, 1e-4), np.ones(16)
    spoiled = noise.copy()
    spoiled[5] = 1.0
    assert ratio(noise, signal) == pytest.approx(1e-4)
    assert ratio(spoiled, signal) == pytest.approx(1e-4 * 1e4 ** (1 / 16))
    assert ratio(np.array([1e-3, 5.0]), np.array([1.0, 0.0])) == pytest.approx(1e-3)
    assert ratio(np.array([1e-3, np.nan]), np.ones(2)) == np.inf
    assert ratio(np.zeros(2), np.zeros(2)) == 0.0


def test_samples_are_spread_over_the_set() -> None:
    data = ArrayDataset({"x": np.arange(100, dtype=np.float32)[:, None, None, None] * np.ones((1, 3, 12, 12), np.float32)})
    assert [float(s["x"][0, 0, 0, 0]) for s in spread(data, 5)] == [0.0, 20.0, 40.0, 60.0, 80.0]
    assert len(spread(data, 1000)) == 100
    assert len(calibration_samples(data, chain().network)) == 64


def test_it_is_asked_by_the_names_of_commands() -> None:
    feeds = {"x": pictures(10)}
    made = ready(chain(), feeds)
    choice = choose_on(ArrayDataset(feeds), made.prepared, made.plans, made.precision, Granularity.PER_CHANNEL, spec="auto:among=minmax/mse",
                       metric=make("sqnr"))
    assert set(choice.scores) == {"minmax", "mse", MIXED, CAREFUL} and choice.samples == 10
    assert f"{choice.scores[choice.winner]:.2f} dB" in choice.text


def test_what_cannot_be_chosen_is_refused() -> None:
    feeds = {"x": pictures(2)}
    made = ready(chain(), feeds)
    with pytest.raises(InputError, match="cannot choose itself"):
        choose(made.prepared, made.plans, singles(feeds), made.precision, Granularity.PER_CHANNEL, ("minmax", "auto"))
    floats = {u: next(p for p in type(v) if p.is_float) for u, v in made.precision.items()}
    with pytest.raises(InputError, match="no range to choose"):
        choose(made.prepared, made.plans, singles(feeds), floats, Granularity.PER_CHANNEL, ("minmax", "mse"))


def test_a_sure_classifier_is_not_punished_for_being_surer() -> None:
    """Floored probabilities can make the divergence a hair negative: that is as good as equal, not as bad as NaN."""
    sure = np.full((3, 10), 1e-9)
    sure[:, 2] = 1.0
    surer = np.zeros((3, 10))
    surer[:, 2] = 1.001
    wrong = np.roll(sure, 1, axis=1)
    judge = Judge(class_axis=1)
    same, better, worse = (judge.score(["p"], {"p": sure}, {"p": made}) for made in (sure, surer, wrong))
    assert np.all(better == same) and np.all(same > 50) and np.all(worse < 0)
