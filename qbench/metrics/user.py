"""A metric of the user's own: any function of outputs and labels, named as module:function."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qbench.errors import DataError, QbenchError
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
        scores = np.asarray(self._called(dict(outputs), labels))
        if scores.shape != (n,) or scores.dtype.kind not in "biuf" or not np.isfinite(scores).all():
            raise DataError(f"metric {self.name}: wanted one finite number a sample, an array of shape [{n}]; the function gave "
                            f"{scores.dtype} of shape {list(scores.shape)}" + ("" if scores.shape != (n,) else ", not all finite"))
        return scores.astype(np.float64)[:, None]

    def _called(self, outputs: dict[str, Array], labels: Array | None) -> Any:
        """Raises DataError, with the user's own line, for whatever the function raises."""
        try:
            return self.function(outputs, labels)
        except QbenchError:
            raise
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            shapes = ", ".join(f"{k} {list(v.shape)}" for k, v in outputs.items())
            raise DataError(f"metric {self.name} raised {type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno}); it was given {shapes} and "
                            f"{'no labels' if labels is None else f'labels {list(labels.shape)}'}") from error

    def weighted(self, rows: Rows, weights: Rows) -> Rows:
        return mean(rows[:, 0], weights)

    def hits(self, rows: Rows) -> NDArray[np.bool_] | None:
        return np.asarray(rows[:, 0] > 0.5) if np.isin(rows[:, 0], (0.0, 1.0)).all() else None

    def value(self, rows: Array) -> float:
        return float(rows[:, 0].mean())
