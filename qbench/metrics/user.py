"""A metric of the user's own: any function of outputs and labels, named as module:function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbench.errors import DataError
from qbench.metrics.base import Rows, mean
from qbench.protocols import Array


@dataclass(frozen=True)
class UserMetric:
    """The mean of what `function(outputs, labels)` gives.

    function   takes a dict of output name -> array [n, ...] and the labels [n, ...] (None when the data set has none) of one
               batch; gives one score a sample, array [n], finite, higher is better. Scores that are all 0 or 1 are treated
               as wrong and right, which gives a tighter interval.
    """

    name: str
    function: Callable[..., Any]
    needs_labels: bool = False                    # the function decides what it needs

    def statistics(self, outputs: Mapping[str, Array], labels: Array | None, reference: Mapping[str, Array]) -> Rows:
        n = len(next(iter(outputs.values())))
        scores = np.asarray(self.function(dict(outputs), labels))
        if scores.shape != (n,) or scores.dtype.kind not in "biuf" or not np.isfinite(scores).all():
            raise DataError(f"metric {self.name}: wanted one finite number a sample, an array of shape [{n}]; the function gave "
                            f"{scores.dtype} of shape {list(scores.shape)}" + ("" if scores.shape != (n,) else ", not all finite"))
        return scores.astype(np.float64)[:, None]

    def weighted(self, rows: Rows, weights: Rows) -> Rows:
        return mean(rows[:, 0], weights)

    def hits(self, rows: Rows) -> NDArray[np.bool_] | None:
        return np.asarray(rows[:, 0] > 0.5) if np.isin(rows[:, 0], (0.0, 1.0)).all() else None

    def value(self, rows: Array) -> float:
        return float(rows[:, 0].mean())
