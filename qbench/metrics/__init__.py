"""Task metrics: per-sample rows, a value over them, and intervals from resampling rows.

    metric = make("dice:classes=1/2/3")
    rows = np.concatenate([metric.statistics(outputs, labels, reference) for each batch])
    value, low, high = interval(metric, rows)
"""

from __future__ import annotations

from qbench.errors import unknown
from qbench.metrics.base import RowMetric
from qbench.metrics.classification import Auc, ThresholdAccuracy, Top1, TopK
from qbench.metrics.fidelity import Cosine, Divergence, Fidelity, Sqnr
from qbench.metrics.intervals import by_class, interval, paired_drop, paired_shares, wilson
from qbench.metrics.segmentation import Dice, MeanIou
from qbench.metrics.user import UserMetric
from qbench.protocols import Metric
from qbench.spec import build
from qbench.userfunction import is_function_spec, load_function

METRICS: dict[str, type[RowMetric]] = {
    m.kind: m for m in (Top1, TopK, Auc, ThresholdAccuracy, Dice, MeanIou, Sqnr, Cosine, Divergence)
}


def names() -> tuple[str, ...]:
    """The metrics that `make` knows by name."""
    return tuple(METRICS)


def make(spec: str) -> Metric:
    """The metric that `spec` describes: "top1", "topk:k=5", "dice:classes=1/2/3", or module:function.

    Raises UnknownName with the list of names, InputError for a wrong option or a function that cannot be loaded.
    """
    if spec.partition(":")[0].strip() in METRICS:
        return build(spec, METRICS, "metric")
    if is_function_spec(spec):
        return UserMetric(spec, load_function(spec))
    raise unknown("metric", spec, sorted(METRICS), ", or module:function of your own")


def class_axis(metric: Metric) -> int | None:
    """Which output axis holds the classes, as far as the metric says; None when the output has none."""
    axis = getattr(metric, "axis", None)
    return axis if isinstance(axis, int) else None


__all__ = ["METRICS", "Fidelity", "RowMetric", "by_class", "class_axis", "interval", "make", "names", "paired_drop", "paired_shares", "wilson"]
