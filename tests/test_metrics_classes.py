"""A metric class by class: against scikit-learn and by hand, and kept through JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
import sklearn.metrics

from qbench.metrics import by_class, interval, make, paired_drop
from qbench.metrics.intervals import CLASSES_KEPT
from qbench.protocols import Accuracy

RNG = np.random.default_rng(3)
LABELS = RNG.integers(0, 5, 400)
FLOAT = np.eye(5)[LABELS] + RNG.normal(0, 0.5, (400, 5))
WORSE = FLOAT + RNG.normal(0, 0.5, (400, 5)) * (LABELS == 3)[:, None]


def test_of_top1_it_is_the_recall_of_each_class() -> None:
    metric = make("top1")
    rows = [metric.statistics({"y": s}, LABELS, {}) for s in (FLOAT, WORSE)]
    found = by_class(metric, rows[0], rows[1])
    recall = [sklearn.metrics.recall_score(LABELS, s.argmax(1), average=None) for s in (FLOAT, WORSE)]
    assert [c.name for c in found] == [f"class {c}" for c in range(5)]
    assert [c.value for c in found] == pytest.approx(recall[1])
    assert [c.drop for c in found] == pytest.approx(recall[0] - recall[1])
    assert [c.samples for c in found] == np.bincount(LABELS).tolist()
    assert max(found, key=lambda c: c.drop).name == "class 3" and all(c.drop == 0 for c in found if c.name != "class 3")
    assert all(c.low <= c.value <= c.high and c.drop_low <= c.drop <= c.drop_high for c in found)


@pytest.mark.parametrize(("spec", "average"), [("dice:classes=1/2", "f1"), ("miou:classes=1/2", "jaccard")])
def test_of_an_overlap_it_is_the_overlap_of_each_class(spec: str, average: str) -> None:
    labels = RNG.integers(0, 4, (12, 9, 7))
    scores = [np.moveaxis(np.eye(4)[np.where(RNG.random(labels.shape) < p, RNG.integers(0, 4, labels.shape), labels)], -1, 1) for p in (0.1, 0.4)]
    metric = make(spec)
    rows = [metric.statistics({"y": s}, labels, {}) for s in scores]
    found = by_class(metric, rows[0], rows[1], 1)
    score = sklearn.metrics.f1_score if average == "f1" else sklearn.metrics.jaccard_score
    want = [score(labels.ravel(), s.argmax(1).ravel(), labels=[1, 2], average=None) for s in scores]
    assert [c.name for c in found] == ["class 1", "class 2"]
    assert [c.value for c in found] == pytest.approx(want[1]) and [c.drop for c in found] == pytest.approx(want[0] - want[1])
    assert np.mean([c.value for c in found]) == pytest.approx(metric.value(rows[1])), "the metric is the mean of its classes"
    one = make(spec.replace("1/2", "2"))
    alone = [one.statistics({"y": s}, labels, {}) for s in scores]
    assert (found[1].low, found[1].high) == interval(one, alone[1], 1)[1:] and (found[1].drop_low, found[1].drop_high) == paired_drop(one, alone[0], alone[1], 1)[1:]


def test_of_a_decision_it_is_sensitivity_and_specificity_at_the_threshold_of_all() -> None:
    yes = (RNG.random(300) < 0.4).astype(np.int64)
    floats = yes + RNG.normal(0, 0.6, 300)
    quantized = floats - 0.3
    metric = make("accuracy")
    rows = [metric.statistics({"y": s[:, None]}, yes, {"y": floats[:, None]}) for s in (floats, quantized)]
    no, said_yes = by_class(metric, rows[0], rows[1])
    assert (no.name, said_yes.name) == ("no", "yes")
    hits = np.asarray(metric.hits(rows[1]))                      # type: ignore[attr-defined]
    assert no.value == hits[yes == 0].mean() and said_yes.value == hits[yes == 1].mean()
    assert said_yes.drop > 0 > no.drop, "lower scores are refused more often"


def test_metrics_without_classes_and_classes_that_do_not_occur() -> None:
    x = RNG.normal(size=(20, 3)).astype(np.float32)
    for spec in ("cosine", "sqnr"):
        rows = make(spec).statistics({"y": x}, None, {"y": x + 1})
        assert by_class(make(spec), rows, rows) == ()
    labels = np.zeros((4, 3, 3), np.int64)
    scores = np.zeros((4, 3, 3, 3))
    scores[:, 0] = 1.0
    rows = make("dice").statistics({"y": scores}, labels, {})
    assert [c.name for c in by_class(make("dice"), rows, rows)] == ["class 0"]


def test_of_many_classes_the_worst_are_kept_in_their_order() -> None:
    labels = np.repeat(np.arange(50), 4)
    right = np.eye(50)[labels]
    wrong = right.copy()
    wrong[labels >= 40] = np.roll(right[labels >= 40], 1, axis=1)
    metric = make("top1")
    found = by_class(metric, metric.statistics({"y": right}, labels, {}), metric.statistics({"y": wrong}, labels, {}))
    assert len(found) == CLASSES_KEPT and [c.name for c in found[-10:]] == [f"class {c}" for c in range(40, 50)]
    assert all(c.drop == (1.0 if int(c.name.split()[1]) >= 40 else 0.0) for c in found)


def test_an_accuracy_with_classes_comes_back_from_json() -> None:
    metric = make("top1")
    rows = metric.statistics({"y": FLOAT}, LABELS, {})
    kept = Accuracy("top1", 0.9, 0.8, 1.0, 400, 0.0, 0.0, 0.0, 30.0, 1.0, 0.0, 1.0, classes=by_class(metric, rows, rows))
    assert len(kept.classes) == 5 and Accuracy(**json.loads(json.dumps(asdict(kept)))) == kept
