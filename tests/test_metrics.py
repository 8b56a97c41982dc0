"""Metrics against scikit-learn and scipy, laws that every metric keeps, and intervals whose coverage is counted."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import scipy.stats
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st

from qbench.errors import DataError, InputError, UnknownName
from qbench.metrics import Fidelity, class_axis, interval, make, names, paired_drop, paired_shares, wilson
from qbench.metrics.base import RowMetric
from qbench.metrics.classification import best_threshold
from qbench.metrics.segmentation import highest
from qbench.protocols import Array, Metric

SPECS = ("top1", "topk:k=2", "auc:output=y,column=1", "accuracy:threshold=float", "accuracy:threshold=0.25", "dice", "dice:classes=1/2",
         "miou", "miou:classes=0/3,ignore=2", "sqnr", "cosine", "kl", "kl:axis=-1")


def outputs_and_labels(metric: Metric, n: int, rng: np.random.Generator) -> tuple[dict[str, Array], dict[str, Array], Array]:
    """Rounded outputs (so that ties occur), the float model's, and labels that fit the metric."""
    maps = metric.name.startswith(("dice", "miou"))
    reference = rng.normal(size=(n, 4, 5, 6) if maps else (n, 4)).astype(np.float32)
    output = np.round((reference + rng.normal(size=reference.shape) * 0.4) * 2).astype(np.float32) / 2
    best = reference.argmax(1)
    noisy = np.where(rng.random(best.shape) < 0.3, rng.integers(0, 4, best.shape), best)
    labels = (noisy > 1).astype(np.int64) if metric.name.startswith(("auc", "accuracy")) else noisy
    return {"y": output}, {"y": reference}, labels


def rows_of(metric: Metric, n: int, seed: int) -> tuple[Array, Array]:
    """Rows of the rounded outputs and of the float model."""
    output, reference, labels = outputs_and_labels(metric, n, np.random.default_rng(seed))
    return metric.statistics(output, labels, reference), metric.statistics(reference, labels, reference)


# laws that every metric keeps

@pytest.mark.parametrize("spec", SPECS)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(2, 12))
def test_weights_mean_repetition(spec: str, seed: int, n: int) -> None:
    metric = make(spec)
    assert isinstance(metric, RowMetric)
    rows, _ = rows_of(metric, n, seed)
    counts = np.random.default_rng(seed).integers(0, 4, (3, n))
    counts[:, 0] += 1
    if spec == "accuracy:threshold=float":                    # the threshold belongs to the rows as given, not to a resample
        want = [float(np.repeat(np.asarray(metric.hits(rows)), c).mean()) for c in counts]
    else:
        want = [metric.value(np.repeat(rows, c, axis=0)) for c in counts]
    np.testing.assert_allclose(metric.weighted(rows, counts.astype(np.float64)), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("spec", SPECS)
def test_batches_do_not_matter_and_inputs_stay_untouched(spec: str) -> None:
    metric = make(spec)
    output, reference, labels = outputs_and_labels(metric, 11, np.random.default_rng(1))
    kept = [x.copy() for x in (output["y"], reference["y"], labels)]
    whole = metric.statistics(output, labels, reference)
    parts = [metric.statistics({"y": output["y"][i:i + 4]}, labels[i:i + 4], {"y": reference["y"][i:i + 4]}) for i in range(0, 11, 4)]
    assert whole.dtype == np.float64 and whole.shape[0] == 11
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-12)
    assert all(np.array_equal(a, b) for a, b in zip(kept, (output["y"], reference["y"], labels), strict=True))


@pytest.mark.parametrize("spec", SPECS)
def test_the_float_model_itself_is_best_at_keeping_itself(spec: str) -> None:
    metric = make(spec)
    rows, reference = rows_of(metric, 60, 2)
    if not metric.needs_labels:
        assert metric.value(reference) > metric.value(rows)
    drop, low, high = paired_drop(metric, reference, reference)
    assert drop == 0.0 and low <= 0.0 <= high


@pytest.mark.parametrize("spec", SPECS)
def test_interval_holds_the_value_and_shrinks_with_samples(spec: str) -> None:
    metric = make(spec)
    small, large = (interval(metric, rows_of(metric, n, 3)[0]) for n in (25, 2500))
    for value, low, high in (small, large):
        assert low <= value <= high
    assert 0 < large[2] - large[1] < 0.35 * (small[2] - small[1])           # 100 times the samples: about a tenth of the width


@pytest.mark.parametrize("spec", SPECS)
def test_same_seed_same_interval_and_drop_is_antisymmetric(spec: str) -> None:
    metric = make(spec)
    rows, reference = rows_of(metric, 40, 4)
    assert interval(metric, rows, seed=7) == interval(metric, rows, seed=7)
    forward, back = paired_drop(metric, reference, rows, seed=7), paired_drop(metric, rows, reference, seed=7)
    np.testing.assert_allclose(forward, (-back[0], -back[2], -back[1]), atol=1e-12)
    assert forward[1] <= forward[0] <= forward[2]


@pytest.mark.parametrize("spec", SPECS)
def test_name_makes_the_same_metric(spec: str) -> None:
    assert make(make(spec).name) == make(spec)


def test_every_metric_is_under_test() -> None:
    assert {s.partition(":")[0] for s in SPECS} == set(names())


@pytest.mark.parametrize("spec", SPECS)
def test_one_candidate_of_2000_samples_costs_under_a_tenth_of_a_second(spec: str) -> None:
    metric = make(spec)
    rows, reference = rows_of(metric, 2000, 5)

    def once() -> float:
        began = time.perf_counter()
        interval(metric, rows)
        paired_drop(metric, reference, rows)
        return time.perf_counter() - began

    once()                                                                  # the resamples are drawn once for all candidates
    assert min(once() for _ in range(3)) < 0.1


# oracles

def test_topk_agrees_with_scikit_learn_and_ties_go_to_the_lower_class() -> None:
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(500, 10)), rng.integers(0, 10, 500)
    for k in (1, 2, 5):
        rows = make(f"topk:k={k}").statistics({"y": scores}, labels, {})
        assert rows[:, 0].mean() == pytest.approx(sklearn.metrics.top_k_accuracy_score(labels, scores, k=k), abs=1e-12)
    coarse = np.round(scores)
    rows = make("top1").statistics({"y": coarse}, labels, {})
    assert np.array_equal(rows[:, 0] > 0, coarse.argmax(1) == labels)
    trailing = make("top1").statistics({"y": coarse[:, :, None, None].astype(np.int8)}, labels, {})
    assert np.array_equal(trailing, rows)


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=40))
def test_auc_agrees_with_scikit_learn(pairs: list[tuple[int, bool]]) -> None:
    scores, labels = np.array([p[0] for p in pairs], np.float64), np.array([p[1] for p in pairs], np.int64)
    metric = make("auc")
    found = metric.value(metric.statistics({"y": scores[:, None]}, labels, {"y": scores[:, None]}))
    if labels.min() == labels.max():
        assert np.isnan(found)
    else:
        assert found == pytest.approx(sklearn.metrics.roc_auc_score(labels, scores), abs=1e-12)


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=30))
def test_best_threshold_agrees_with_trying_each(pairs: list[tuple[int, bool]]) -> None:
    scores, yes = np.array([p[0] for p in pairs], np.float64), np.array([p[1] for p in pairs])
    shares = {t: float(((scores >= t) == yes).mean()) for t in sorted(set(scores))}
    assert best_threshold(scores, yes) == max(shares, key=lambda t: (shares[t], -t))


def test_accuracy_keeps_the_threshold_of_the_float_model() -> None:
    scores, labels = np.array([[0.1], [0.4], [0.6], [0.9]]), np.array([0, 0, 1, 1])
    metric = make("accuracy")
    assert metric.value(metric.statistics({"y": scores}, labels, {"y": scores})) == 1.0
    shifted = metric.statistics({"y": scores - 0.25}, labels, {"y": scores})        # 0.35 falls below 0.6: the threshold stays
    assert metric.value(shifted) == 0.75


@given(st.integers(0, 2**32 - 1))
def test_overlap_agrees_with_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, labels = rng.normal(size=(3, 4, 5, 6)), rng.integers(0, 4, (3, 5, 6))
    found = scores.argmax(1)
    for classes in ((), (1, 2), (3,)):
        said = f":classes={'/'.join(map(str, classes))}" if classes else ""
        wanted = {"labels": list(classes or range(4)), "average": "macro", "zero_division": 0.0}
        for name, oracle in (("dice", sklearn.metrics.f1_score), ("miou", sklearn.metrics.jaccard_score)):
            metric = make(name + said)
            value = metric.value(metric.statistics({"y": scores}, labels, {}))
            assert value == pytest.approx(oracle(labels.ravel(), found.ravel(), **wanted), abs=1e-12)


def test_overlap_leaves_out_absent_classes_and_ignored_pixels() -> None:
    scores = np.zeros((1, 3, 1, 4))
    scores[0, [0, 1, 1, 0], 0, range(4)] = 1.0                               # map 0 1 1 0
    labels = np.array([[[0, 1, 0, 255]]])
    metric = make("dice:ignore=255")
    assert metric.value(metric.statistics({"y": scores}, labels, {})) == pytest.approx((2 / 3 + 2 / 3) / 2)   # class 2 is nowhere
    last = make("dice:ignore=255,axis=-1")
    assert last.value(last.statistics({"y": np.moveaxis(scores, 1, -1)}, labels, {})) == pytest.approx(2 / 3)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2))
def test_highest_is_argmax(seed: int, axis: int) -> None:
    scores = np.random.default_rng(seed).integers(-2, 3, (3, 4, 5)).astype(np.float32)
    assert np.array_equal(highest(scores, axis), scores.argmax(axis))


def test_a_nan_is_never_right() -> None:
    nan = np.full((1, 2), np.nan)
    labels = np.array([0])
    assert make("top1").statistics({"y": nan}, labels, {})[0, 0] == 0
    assert make("topk:k=2").statistics({"y": np.array([[0.0, np.nan, 1.0]])}, labels, {})[0, 0] == 0
    good = np.array([[1.0], [0.0]])
    for label in (0, 1):
        metric = make("accuracy:threshold=0.5")
        assert metric.value(metric.statistics({"y": nan[:, :1]}, np.array([label]), {"y": good[:1]})) == 0.0
    auc = make("auc")
    assert auc.value(auc.statistics({"y": np.full((2, 1), np.nan)}, np.array([1, 0]), {"y": good})) == 0.0
    dice = make("dice")
    assert dice.value(dice.statistics({"y": np.full((1, 2, 2, 2), np.nan)}, np.zeros((1, 2, 2), np.int64), {})) == 0.0


# intervals

@pytest.mark.parametrize(("right", "count"), [(0, 1), (1, 1), (0, 20), (20, 20), (7, 20), (1830, 2000)])
def test_wilson_agrees_with_scipy(right: int, count: int) -> None:
    oracle = scipy.stats.binomtest(right, count).proportion_ci(method="wilson")
    assert wilson(right, count) == pytest.approx((oracle.low, oracle.high), abs=1e-12)


def test_paired_shares_by_hand_and_when_nothing_changes() -> None:
    low, high = paired_shares(8, 2, 100)                       # p12 = 9/102, p21 = 3/102
    middle, half = 6 / 102, 1.959964 * np.sqrt((12 / 102 - (6 / 102) ** 2) / 102)
    assert (low, high) == pytest.approx((middle - half, middle + half), abs=1e-6)
    low, high = paired_shares(0, 0, 2000)
    assert -low == high == pytest.approx(0.00138, abs=1e-5)    # near the rule of three, 3 / 2000


@pytest.mark.parametrize(("lost", "won", "count"), [(0.05, 0.02, 100), (0.002, 0.001, 500), (0.2, 0.2, 50)])
def test_paired_shares_cover_the_truth(lost: float, won: float, count: int) -> None:
    draws = np.random.default_rng(0).multinomial(count, [lost, won, 1 - lost - won], 4000)
    inside = [low <= lost - won <= high for low, high in (paired_shares(int(a), int(b), count) for a, b, _ in draws)]
    assert np.mean(inside) > 0.94                              # binomial noise of 4,000 draws: 0.0034


class Average:
    """A third party's metric: only what the protocol promises."""

    name = "average"
    needs_labels = False

    def statistics(self, outputs: Mapping[str, Array], labels: Array | None, reference: Mapping[str, Array]) -> Array:
        return outputs["y"].astype(np.float64)

    def value(self, rows: Array) -> float:
        return float(rows[:, 0].mean())


def test_bootstrap_agrees_with_the_normal_theory_of_a_mean() -> None:
    x = np.random.default_rng(0).normal(3.0, 2.0, (400, 1))
    value, low, high = interval(Average(), x)
    half = 1.96 * x.std(ddof=1) / np.sqrt(400)
    # a quantile of 500 replicates at 2.5 % has a standard error of 0.12 sigma = 0.06 half-widths: three of them
    assert value == pytest.approx(x.mean())
    assert (low, high) == pytest.approx((value - half, value + half), abs=0.18 * half)


def test_pairing_beats_two_separate_intervals() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(0.0, 1.0, (300, 1))
    drop, low, high = paired_drop(Average(), x, x - 0.1 + rng.normal(0, 0.01, x.shape))
    assert low < drop < high and high - low < 0.01 and drop == pytest.approx(0.1, abs=0.003)


def test_dice_interval_covers_the_truth() -> None:
    """Dice of ever new sets of 40 slices against the Dice of a very large set. Percentile bootstraps run a little short of 95 %."""
    rng = np.random.default_rng(0)

    def slices(n: int) -> Array:
        total = rng.uniform(500, 1500, n)
        return np.column_stack([total / 2 * rng.beta(30, 3, n), total])

    metric = make("dice:classes=1")
    truth = metric.value(slices(400_000))
    inside = [low <= truth <= high for _, low, high in (interval(metric, slices(40), seed) for seed in range(400))]
    assert 0.90 < np.mean(inside) < 0.985


def test_large_sets_are_resampled_in_slices() -> None:
    x = np.random.default_rng(0).normal(size=(20_000, 1)) ** 2
    rows = np.column_stack([x[:, 0], np.full(20_000, 2.0)])
    value, low, high = interval(make("dice:classes=1"), rows)
    half = 1.96 * x.std() / np.sqrt(20_000)
    assert (low, high) == pytest.approx((value - half, value + half), abs=0.18 * half)


def test_one_sample_has_no_bootstrap_interval() -> None:
    value, low, high = interval(make("dice:classes=1"), np.array([[3.0, 8.0]]))
    assert value == 0.75 and np.isnan(low) and np.isnan(high)


# distance to the float model

def test_fidelity_agrees_with_the_formulas_whatever_the_batches() -> None:
    rng = np.random.default_rng(0)
    reference = rng.normal(size=(20, 5)).astype(np.float32)
    output = (reference + 0.1 * rng.normal(size=reference.shape)).astype(np.float32)
    r, o = reference.astype(np.float64), output.astype(np.float64)
    p, q = scipy.special.softmax(r, 1), scipy.special.softmax(o, 1)
    for size in (1, 3, 20):
        seen = Fidelity(axis=1)
        for first in range(0, 20, size):
            seen.update(reference[first:first + size], output[first:first + size])
        assert seen.sqnr_db == pytest.approx(10 * np.log10((r**2).sum() / ((r - o) ** 2).sum()), rel=1e-12)
        assert seen.cosine == pytest.approx((r * o).sum() / np.sqrt((r**2).sum() * (o**2).sum()), rel=1e-12)
        assert seen.kl == pytest.approx(scipy.stats.entropy(p, q, axis=1).mean(), rel=1e-10)
    ready = Fidelity(axis=1)                                      # the same, given as probabilities
    ready.update(p, q)
    assert ready.kl == pytest.approx(seen.kl, rel=1e-10)


def test_divergence_of_a_map_looks_at_spread_positions() -> None:
    rng = np.random.default_rng(0)
    reference = rng.normal(size=(2, 4, 200, 200))
    output = reference + rng.normal(size=reference.shape) * 0.3
    seen = Fidelity(axis=1)
    seen.update(reference, output)
    exact = scipy.stats.entropy(scipy.special.softmax(reference, 1), scipy.special.softmax(output, 1), axis=1).mean()
    assert seen.kl == pytest.approx(exact, rel=0.05)              # 2 x 4,000 of 80,000 positions, relative spread about 1.2: 1.3 %


def test_extremes_of_fidelity() -> None:
    x = np.arange(1.0, 7.0).reshape(2, 3)

    def of(reference: Array, output: Array, axis: int | None = None) -> tuple[float, float, float]:
        seen = Fidelity(axis)
        seen.update(reference, output)
        return seen.sqnr_db, seen.cosine, seen.kl

    assert of(x, x)[:2] == pytest.approx((np.inf, 1.0)) and np.isnan(of(x, x)[2])
    assert of(x, 2 * x)[:2] == pytest.approx((0.0, 1.0))
    assert of(0 * x, 0 * x)[:2] == (np.inf, 1.0) and of(0 * x, x)[:2] == (-np.inf, 0.0)
    broken = x.copy()
    broken[0, 0] = np.nan
    assert of(x, broken, 1) == (-np.inf, 0.0, np.inf)
    assert of(broken, x, None)[:2] == pytest.approx((np.inf, 1.0))     # what the float model left undefined is not judged
    masked = np.array([[0.0, 1.0, -np.inf]])
    assert of(masked, masked, 1)[2] == 0.0
    assert np.isnan(Fidelity(axis=1).kl)
    with pytest.raises(DataError, match=r"shape \[2, 2\], the float model's \[2, 3\]"):
        of(x, x[:, :2])


def test_class_axis_comes_from_the_metric() -> None:
    assert class_axis(make("top1")) == 1 and class_axis(make("dice:axis=-1")) == -1
    assert class_axis(make("auc")) is None and class_axis(Average()) is None


# a function of the user's

def test_user_metric(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def close(outputs, labels):\n    return abs(outputs['y'][:, 0] - labels) < 0.5\n"
                    "def error(outputs, labels):\n    return -abs(outputs['y'][:, 0] - labels)\n"
                    "def total(outputs, labels):\n    return outputs['y'].sum()\n"
                    "def nothing(outputs, labels):\n    return outputs['y'][:, 0] * float('nan')\n"
                    "def broken(outputs, labels):\n    return outputs['z']\n")
    y, labels = np.array([[1.0], [2.0], [5.0]]), np.array([1.1, 2.2, 3.0])
    close, error = make(f"{file}:close"), make(f"{file}:error")
    rows = close.statistics({"y": y}, labels, {})
    assert interval(close, rows) == pytest.approx((2 / 3, *wilson(2, 3)))
    rows = error.statistics({"y": y}, labels, {})
    value, low, high = interval(error, rows)
    assert value == pytest.approx(-2.3 / 3) and -2.0 <= low < value < high <= -0.1
    for name, says in (("total", r"wanted one finite number a sample, an array of shape \[3\]; .* of shape \[\]"), ("nothing", "not all finite"),
                       ("broken", r"mine.py:broken raised KeyError: 'z' \(mine.py, line 10\); it was given y \[3, 1\] and labels \[3\]")):
        with pytest.raises(DataError, match=says):
            make(f"{file}:{name}").statistics({"y": y}, labels, {})


# refusals

@pytest.mark.parametrize(("spec", "error", "says"), [
    ("top2", UnknownName, "known: accuracy, auc, cosine, dice, kl, miou, sqnr, top1, topk, or module:function"),
    ("topk:n=3", InputError, "no option 'n'; its options: output, k"), ("topk:k=0", InputError, "at least 1"),
    ("topk:k=two", InputError, "k=two is not a whole number"), ("topk:k", InputError, "not of the form key=value"),
    ("topk:k=1,k=2", InputError, "given twice"), ("top1:k=3", InputError, "write topk:k=3"),
    ("accuracy:threshold=high", InputError, "a number, or float"), ("no_such_module_here:f", InputError, "no module"),
])
def test_wrong_specs_say_what_there_is(spec: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make(spec)


@pytest.mark.parametrize(("spec", "shape", "labels", "says"), [
    ("top1", (2, 3), None, "needs labels, and the data set has none"), ("top1", (2, 3), [0, 3], "labels run from 0 to 3, the model has 3"),
    ("top1", (2, 3), [0], "2 outputs and 1 labels"), ("top1", (2, 3, 4), [0, 1], r"wants scores \[n, classes\]"),
    ("top1", (2, 3), [0.5, 1.0], "one whole number per sample"), ("top1:output=z", (2, 3), [0, 1], "no output 'z'; its outputs: y"),
    ("auc", (2, 3), [0, 2], "label of 0 or 1"), ("auc:column=3", (2, 3), [0, 1], "3 values a sample"),
    ("dice", (1, 1, 2, 2), [[[0, 1], [0, 1]]], "one score per class along axis 1"), ("dice", (1, 2, 2, 2), [[0, 1]], "the output gives a map"),
    ("dice", (1, 2, 2, 2), [[[0, 1], [0, 255]]], "ignore=255"), ("dice:classes=2", (1, 2, 2, 2), [[[0, 1], [0, 1]]], "classes 0 to 1, not 2"),
])
def test_data_that_does_not_fit_the_metric(spec: str, shape: tuple[int, ...], labels: list[float] | None, says: str) -> None:
    y = {"y": np.zeros(shape)}
    with pytest.raises(DataError, match=says):
        make(spec).statistics(y, None if labels is None else np.array(labels), y)
