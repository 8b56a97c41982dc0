"""Metrics of one decision a sample: top-1, top-k, AUC, and the share right at a threshold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from qbench.errors import DataError, InputError
from qbench.metrics.base import RowMetric, Rows, mean
from qbench.protocols import Array


@dataclass(frozen=True)
class TopK(RowMetric):
    """Share of samples whose label is among the `k` highest scores.

    Scores [n, classes], or with trailing axes of length 1; `axis` is fixed at 1. Equal scores (common in INT8) rank by class
    number, as argmax does. A sample with a NaN score is wrong.
    """

    kind: ClassVar[str] = "topk"
    axis: ClassVar[int] = 1
    k: int = 5

    def __post_init__(self) -> None:
        if self.k < 1:
            raise InputError(f"metric topk: k={self.k}; at least 1")

    def statistics(self, outputs: Mapping[str, Array], labels: Array | None, reference: Mapping[str, Array]) -> Rows:
        """[1 where right, label]."""
        scores = self.judged(outputs)
        scores = scores.reshape(len(scores), -1) if scores.ndim > 1 and scores.size == scores.shape[0] * scores.shape[1] else scores
        want = self.known(labels, len(scores))
        if scores.ndim != 2 or want.ndim != 1 or want.dtype.kind not in "iub":
            raise DataError(f"metric {self.name} wants scores [n, classes] and one whole number per sample as label; "
                            f"got {list(scores.shape)} and {want.dtype}{list(want.shape)}")
        want = want.astype(np.int64)
        if want.size and not (want.min() >= 0 and want.max() < scores.shape[1]):
            raise DataError(f"metric {self.name}: labels run from {want.min()} to {want.max()}, the model has {scores.shape[1]} "
                            "classes numbered from 0. Labels that start at 1, or another class list?")
        if self.k >= scores.shape[1]:
            raise DataError(f"metric {self.name}: the model has {scores.shape[1]} classes, so the label is always among the first {self.k}; "
                            f"give k below {scores.shape[1]}")
        own = scores[np.arange(len(scores)), want][:, None]
        before = (scores > own) | ((scores == own) & (np.arange(scores.shape[1]) < want[:, None]))
        right = (before.sum(1) < self.k) & ~np.isnan(scores).any(1)
        return np.column_stack([right, want]).astype(np.float64)

    def weighted(self, rows: Rows, weights: Rows) -> Rows:
        return mean(rows[:, 0], weights)

    def hits(self, rows: Rows) -> NDArray[np.bool_] | None:
        return np.asarray(rows[:, 0] > 0.5)

    def of_classes(self, rows: Rows) -> dict[str, Rows]:
        """Share right among the samples of each label (recall)."""
        return {f"class {c:g}": rows[rows[:, 1] == c] for c in np.unique(rows[:, 1])}


@dataclass(frozen=True)
class Top1(TopK):
    """Share of samples whose label has the highest score."""

    kind: ClassVar[str] = "top1"
    k: int = 1

    def __post_init__(self) -> None:
        if self.k != 1:
            raise InputError(f"metric top1 has k=1; for k={self.k} write topk:k={self.k}")


@dataclass(frozen=True)
class Scored(RowMetric):
    """Base of the yes/no metrics: one score a sample, labels 0 and 1.

    column   which column of [n, columns] is the score of "yes"; without it the highest value of all is the score
    """

    column: int | None = None

    def scores(self, outputs: Mapping[str, Array]) -> Rows:
        judged = self.judged(outputs)
        x: Rows = judged.reshape(len(judged), -1).astype(np.float64)
        if self.column is None:
            highest: Rows = x.max(axis=1)
            return highest
        if not -x.shape[1] <= self.column < x.shape[1]:
            raise DataError(f"metric {self.name}: the output has {x.shape[1]} values a sample")
        column: Rows = x[:, self.column]
        return column

    def statistics(self, outputs: Mapping[str, Array], labels: Array | None, reference: Mapping[str, Array]) -> Rows:
        """[score, float model's score, label]; a NaN score counts as wrong, whatever the label."""
        score = self.scores(outputs)
        yes = self.known(labels, len(score)).reshape(len(score), -1)
        if yes.shape[1] != 1 or not np.isin(yes, (0, 1)).all():
            raise DataError(f"metric {self.name} wants one label of 0 or 1 a sample; got {list(np.unique(yes)[:5])}")
        wrong = np.where(yes[:, 0] > 0, -np.inf, np.inf)
        found = [np.where(np.isnan(s), wrong, s) for s in (score, self.scores(reference))]
        return np.column_stack([*found, yes[:, 0]]).astype(np.float64)


@dataclass(frozen=True)
class Auc(Scored):
    """Area under the ROC curve: the chance that a "yes" sample scores above a "no" sample; equal scores count half.

    Source: Hanley and McNeil 1982, Radiology 143(1), equation 1 (the Wilcoxon statistic).
    """

    kind: ClassVar[str] = "auc"

    def weighted(self, rows: Rows, weights: Rows) -> Rows:
        order = np.argsort(rows[:, 0], kind="stable")
        score, yes, w = rows[order, 0], rows[order, 2] > 0, weights[:, order]
        starts = np.flatnonzero(np.r_[True, score[1:] != score[:-1]])                # one group per distinct score
        of_yes = np.add.reduceat(np.where(yes, w, 0.0), starts, axis=1)
        of_no = np.add.reduceat(np.where(yes, 0.0, w), starts, axis=1)
        below = np.cumsum(of_no, 1) - of_no
        with np.errstate(invalid="ignore"):
            return np.asarray((of_yes * (below + of_no / 2)).sum(1) / (of_yes.sum(1) * of_no.sum(1)))


@dataclass(frozen=True)
class ThresholdAccuracy(Scored):
    """Share right when scores at or above a threshold mean "yes".

    threshold   a number, or "float": the lowest of those that serve the float model best on the same samples. The second
                flatters the float model a little, and shows what happens to a product whose threshold was set before quantizing.
    """

    kind: ClassVar[str] = "accuracy"
    threshold: str = "float"

    def __post_init__(self) -> None:
        if self.threshold != "float":
            try:
                float(self.threshold)
            except ValueError as error:
                raise InputError(f"metric accuracy: threshold={self.threshold}; a number, or float") from error

    def hits(self, rows: Rows) -> NDArray[np.bool_] | None:
        yes = rows[:, 2] > 0
        limit = best_threshold(rows[:, 1], yes) if self.threshold == "float" else float(self.threshold)
        said = np.where(np.isinf(rows[:, 0]), rows[:, 0] > 0, rows[:, 0] >= limit)
        return np.asarray(said == yes)

    def weighted(self, rows: Rows, weights: Rows) -> Rows:
        return mean(np.asarray(self.hits(rows)), weights)

    def of_classes(self, rows: Rows) -> dict[str, Rows]:
        """Share right among "yes" and among "no" samples (sensitivity, specificity), decided at the threshold of all samples."""
        said = np.asarray(self.hits(rows)) == (rows[:, 2] > 0)
        decided = np.column_stack([np.where(said, np.inf, -np.inf), rows[:, 1:]])
        return {name: decided[rows[:, 2] == label] for name, label in (("no", 0), ("yes", 1)) if (rows[:, 2] == label).any()}


def best_threshold(scores: Rows, yes: NDArray[np.bool_]) -> float:
    """The lowest score that, as the least score meaning "yes", gets most samples right."""
    order = np.argsort(scores, kind="stable")
    ranked, truth = scores[order], yes[order]
    right = np.r_[0, np.cumsum(~truth)[:-1]] + np.cumsum(truth[::-1])[::-1]           # no below + yes at or above
    starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])
    return float(ranked[starts[np.argmax(right[starts])]])
