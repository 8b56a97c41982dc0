"""Overlap of a class map with its labels: Dice and intersection over union, over all pixels of the set."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from qbench.errors import DataError
from qbench.metrics.base import RowMetric, Rows
from qbench.protocols import Array

NO_CLASS = -1


@dataclass(frozen=True)
class Overlap(RowMetric):
    """Mean over classes of a ratio of summed areas: intersection, and the areas of class in output and labels.

    classes   which classes count; () means all that the model has. A class that occurs nowhere is left out of the mean.
    axis      class axis of the output: 1 for [n, classes, H, W], -1 for channels last
    ignore    label of pixels that are not judged
    """

    classes: tuple[int, ...] = ()
    axis: int = 1
    ignore: int | None = None

    @abstractmethod
    def ratio(self, both: Rows, total: Rows) -> Rows:
        """From intersection and the sum of the two areas."""

    def statistics(self, outputs: Mapping[str, Array], labels: Array | None, reference: Mapping[str, Array]) -> Rows:
        """[intersection of each class ..., output area plus label area of each class ...] in pixels."""
        scores = self.judged(outputs)
        if scores.ndim < 3 or scores.shape[self.axis] < 2:
            raise DataError(f"metric {self.name} wants a map of one score per class along axis {self.axis}; "
                            f"the output is {list(scores.shape)}. For one label a sample use top1")
        count = scores.shape[self.axis]
        found, want = highest(scores, self.axis), self.known(labels, len(scores))
        if want.shape != found.shape or want.dtype.kind not in "iub":
            raise DataError(f"metric {self.name}: the output gives a map of whole numbers {list(found.shape)}, "
                            f"the labels are {want.dtype}{list(want.shape)}")
        if odd := [c for c in self.classes if not 0 <= c < count]:
            raise DataError(f"metric {self.name}: the model has classes 0 to {count - 1}, not {odd[0]}")
        chosen = list(self.classes or range(count))
        areas = [self._areas(f, w, count) for f, w in zip(found, want, strict=True)]
        return np.array([np.r_[both[chosen], total[chosen]] for both, total in areas], np.float64).reshape(len(found), 2 * len(chosen))

    def _areas(self, found: Array, want: Array, count: int) -> tuple[Array, Array]:
        found, want = found.ravel(), want.ravel()
        if self.ignore is not None:
            found, want = found[want != self.ignore], want[want != self.ignore]
        if want.size and not (want.min() >= 0 and want.max() < count):
            raise DataError(f"metric {self.name}: labels run from {want.min()} to {want.max()}, the model has {count} classes numbered "
                            f"from 0; for pixels that shall not count give ignore={want.max()}")
        where = (found.astype(np.int64) + 1) * count + want              # row 0 is "no class"
        table = np.bincount(where, minlength=(count + 1) * count).reshape(count + 1, count)
        both = np.diagonal(table[1:])
        return both, table[1:].sum(1) + table.sum(0)

    def of_classes(self, rows: Rows) -> dict[str, Rows]:
        """Overlap of each class that counts; of one that occurs nowhere there is nothing to say."""
        count = rows.shape[1] // 2
        names = self.classes or range(count)
        return {f"class {c}": rows[:, [i, count + i]] for i, c in enumerate(names)}

    def weighted(self, rows: Rows, weights: Rows) -> Rows:
        both, total = np.split(weights @ rows, 2, axis=1)
        occurs = total > 0
        ratios = np.where(occurs, self.ratio(both, np.where(occurs, total, 1.0)), 0.0)
        with np.errstate(invalid="ignore"):
            return np.asarray(ratios.sum(1) / occurs.sum(1))


@dataclass(frozen=True)
class Dice(Overlap):
    """Mean Dice of the classes, each 2 * intersection / (output area + label area), areas summed over the whole set.

    Source: Dice 1945, Ecology 26(3); the F1 score of the pixels.
    """

    kind: ClassVar[str] = "dice"

    def ratio(self, both: Rows, total: Rows) -> Rows:
        return 2.0 * both / total


@dataclass(frozen=True)
class MeanIou(Overlap):
    """Mean intersection over union of the classes, areas summed over the whole set.

    Source: Everingham et al. 2015, IJCV 111 (PASCAL VOC), section 4.
    """

    kind: ClassVar[str] = "miou"

    def ratio(self, both: Rows, total: Rows) -> Rows:
        return both / (total - both)


def highest(scores: Array, axis: int) -> NDArray[np.int16]:
    """Class with the highest score, the first of equals; -1 where a score is NaN. Shape without the class axis.

    One pass a class: for few classes faster than argmax, which walks along the strided class axis.
    """
    planes = np.moveaxis(scores, axis, 0)
    best, index = planes[0].copy(), np.zeros(planes.shape[1:], np.int16)
    for c in range(1, len(planes)):
        np.copyto(index, np.int16(c), where=planes[c] > best)
        np.maximum(best, planes[c], out=best)                            # carries NaN along
    if best.dtype.kind == "f":
        np.copyto(index, np.int16(NO_CLASS), where=np.isnan(best))
    return index
