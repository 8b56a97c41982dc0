"""What all of our metrics share: rows of per-sample numbers, and a value that is a function of weighted rows.

Weights make resampling cheap: a bootstrap replicate is a row of counts, so 500 replicates are one matrix product.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from qbench.errors import DataError
from qbench.protocols import Array

Rows = NDArray[np.float64]


@dataclass(frozen=True)
class RowMetric(ABC):
    """A metric of one output. Higher is better.

    output   name of the output that is judged; "" means the model's first
    """

    output: str = ""
    kind: ClassVar[str] = ""                       # the name in a spec
    labelled: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The spec that `make` turns into an equal metric."""
        said = {f.name: getattr(self, f.name) for f in fields(self) if f.default is MISSING or getattr(self, f.name) != f.default}
        return ":".join(filter(None, (self.kind, ",".join(f"{k}={_text(v)}" for k, v in said.items()))))

    @property
    def needs_labels(self) -> bool:
        return self.labelled

    @abstractmethod
    def statistics(self, outputs: Mapping[str, Array], labels: Array | None, reference: Mapping[str, Array]) -> Rows:
        """float64 [samples, k]."""

    @abstractmethod
    def weighted(self, rows: Rows, weights: Rows) -> Rows:
        """The metric of `rows` [n, k] under each row of `weights` [b, n]: float64 [b]; nan where it is not defined."""

    def hits(self, rows: Rows) -> NDArray[np.bool_] | None:
        """Right or wrong per sample, for a metric that is the share of right samples; None for the others."""
        return None

    def of_classes(self, rows: Rows) -> dict[str, Rows]:
        """class -> rows whose metric is that of this class alone; empty for a metric without classes."""
        return {}

    def value(self, rows: Array) -> float:
        return float(self.weighted(rows, np.ones((1, len(rows))))[0])

    def judged(self, outputs: Mapping[str, Array]) -> Array:
        """The output this metric is about. Raises DataError when the model has none of that name."""
        if not self.output:
            return next(iter(outputs.values()))
        if self.output not in outputs:
            raise DataError(f"metric {self.name}: the model has no output {self.output!r}; its outputs: {', '.join(outputs)}")
        return outputs[self.output]

    def known(self, labels: Array | None, samples: int) -> Array:
        """The labels, one entry a sample. Raises DataError when there are none, or not as many."""
        if labels is None:
            raise DataError(f"metric {self.name} needs labels, and the data set has none; "
                            "add `labels` to it, or choose sqnr, cosine or kl, which compare with the float model")
        if len(labels) != samples:
            raise DataError(f"metric {self.name}: {samples} outputs and {len(labels)} labels")
        return np.asarray(labels)


def mean(column: Array, weights: Rows) -> Rows:
    """Weighted mean of `column` [n] under each row of `weights` [b, n]."""
    return np.asarray(weights @ np.asarray(column, np.float64) / weights.sum(1))


def _text(value: Any) -> str:
    return "/".join(map(str, value)) if isinstance(value, tuple) else str(value)
