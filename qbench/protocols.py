"""The seams of qbench: what a plug-in must offer. Everything behind a seam is replaceable, also by a third party."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from qbench.affine import Range
from qbench.plan import Plan

Array = NDArray[Any]
Progress = Callable[[str, int, int], None]
"""Called as progress(what, done, total) by everything that may take longer than two seconds."""


def silent(what: str, done: int, total: int) -> None:
    """The Progress that shows nothing."""


@dataclass(frozen=True, slots=True)
class Batch:
    """feeds   model input name -> array, first axis samples; labels   one entry per sample, or None; first   index of the first sample"""

    feeds: Mapping[str, Array]
    labels: Array | None
    first: int


class Dataset(Protocol):
    """Samples in a fixed order. Iterating twice gives the same samples twice."""

    @property
    def name(self) -> str: ...
    @property
    def key(self) -> str: ...                       # content key: same data, same key
    def __len__(self) -> int: ...
    def batches(self, size: int = 1) -> Iterator[Batch]: ...
    # samples of unequal shape come one by one, whatever `size` asks for; the last batch may be smaller


class Metric(Protocol):
    """A task metric as per-sample statistics and a pure function of them, so that intervals come from resampling rows.

    higher is better; `value` lies in 0..1 for accuracies, is free for decibels.
    """

    @property
    def name(self) -> str: ...
    @property
    def needs_labels(self) -> bool: ...

    def statistics(self, outputs: Mapping[str, Array], labels: Array | None, reference: Mapping[str, Array]) -> Array:
        """float64 [samples of this batch, k]. `reference` are the float model's outputs on the same batch."""
        ...

    def value(self, rows: Array) -> float:
        """The metric over `rows` [n, k]."""
        ...


class Seen(Protocol):
    """What a calibrator may ask of a tensor's statistics (`qbench.statistics.TensorStatistics` answers it).

    All values are reals of the tensor; non-finite ones are counted apart and are in none of the answers.
    """

    @property
    def name(self) -> str: ...
    @property
    def count(self) -> int: ...                     # finite values seen
    @property
    def minimum(self) -> float: ...                 # exact
    @property
    def maximum(self) -> float: ...                 # exact
    @property
    def zeros(self) -> int: ...                     # values that are exactly 0
    @property
    def negative_inf(self) -> int: ...              # values of -infinity, which no extreme counts
    def quantile(self, q: float) -> float: ...      # 0 <= q <= 1, relative error <= 2**-10
    def histogram(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]: ...
    # centres (ascending, signed) and counts of the non-empty cells; sums to `count`
    def below(self, x: NDArray[np.float64]) -> NDArray[np.float64]: ...
    # finite values smaller than each x, as if evenly spread inside a cell of the histogram
    @property
    def sample_low(self) -> NDArray[np.float32]: ...
    @property
    def sample_high(self) -> NDArray[np.float32]: ...
    # extremes of each of the first samples, by index; (inf, -inf) for one without a finite value
    @property
    def sample_second(self) -> NDArray[np.float32]: ...
    # second largest value of each of these samples, of tensors [samples, classes]; empty for all others


class Calibrator(Protocol):
    """A pure question to the statistics: which reals shall the codes cover? Options are the fields of a frozen dataclass."""

    def range(self, seen: Seen, levels: int, symmetric: bool = False) -> Range:
        """Range in real units that includes 0 and lies inside the data.

        levels      number of codes
        symmetric   the codes will span [-T, T], T being the larger side of the answer, also where the data are on one side of 0
        Raises NotObserved if the tensor never occurred.
        """
        ...


@dataclass(frozen=True, slots=True)
class ClassAccuracy:
    """The task metric of one class, with the intervals of `Accuracy`. samples   those it rests on"""

    name: str
    value: float
    low: float
    high: float
    drop: float
    drop_low: float
    drop_high: float
    samples: int


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The task metric of one model on one set of samples, higher is better, in the metric's own unit (0..1).

    low, high      95 % interval of `value`
    drop           float value minus this value on the same samples; drop_low, drop_high its paired 95 % interval
    sqnr_db, cosine, kl    of the output that the metric reads (the first, where it names none) against the float model on the same samples;
                           kl is nan without classes
    seconds        wall time of the evaluation
    classes        class by class, for a metric that has classes, on the whole set; of many those that lost most
    """

    metric: str
    value: float
    low: float
    high: float
    samples: int
    drop: float
    drop_low: float
    drop_high: float
    sqnr_db: float
    cosine: float
    kl: float
    seconds: float
    simulated: bool = False        # Q/DQ run in float because the host's integer kernels saturate
    classes: tuple[ClassAccuracy, ...] = ()

    def __post_init__(self) -> None:
        """`Accuracy(**body)` undoes `asdict`, also after JSON, which knows neither tuples nor records."""
        object.__setattr__(self, "classes", tuple(ClassAccuracy(**c) if isinstance(c, dict) else c for c in self.classes))


@dataclass(frozen=True, slots=True)
class Price:
    """Predicted cost of one plan at one operating point. The interval is the target's, 80 %."""

    latency_ms: float
    latency_ms_low: float
    latency_ms_high: float
    energy_mj: float
    power_w: float
    peak_memory_bytes: int
    op_point: str


class Evaluator(Protocol):
    """Builds the real model of a plan and measures it. `samples` limits the evaluation to the first that many."""

    def evaluate(self, plan: Plan, samples: int | None = None) -> Accuracy: ...


class Pricer(Protocol):
    """Prices plans from a table that was built once per network and target."""

    @property
    def units(self) -> tuple[str, ...]: ...
    @property
    def precisions(self) -> tuple[str, ...]: ...
    @property
    def op_points(self) -> tuple[str, ...]: ...

    def price(self, codes: NDArray[np.int64], op_point: str) -> Sequence[Price]:
        """One Price per row of `codes` [plans, units], each an index into `precisions`."""
        ...
