"""Whether labels are those of the model: a network that is judged by another numbering of its classes looks as good as guessing, at every precision."""

from __future__ import annotations

from math import prod

from qbench.data.streams import FolderDataset
from qbench.errors import DataError
from qbench.metrics.classification import TopK
from qbench.network import Network
from qbench.protocols import Accuracy, Dataset, Metric

ENOUGH = 20
"""Samples from which an accuracy can be told from guessing."""


def class_notes(data: Dataset, network: Network, metric: Metric) -> tuple[str, ...]:
    """What a user has to know of how sub-folders are numbered as classes.

    Raises DataError where there are not as many sub-folders as the model has classes: their numbers would be those of other classes.
    """
    count = classes_of(network, metric)
    if not isinstance(data, FolderDataset) or not data.classes or not count:
        return ()
    order = "numbered in the order of their names as text"
    other = next(((i, name) for i, name in enumerate(data.classes) if name.isdecimal() and int(name) != i), None)
    if len(data.classes) != count:
        raise DataError(f"{data.folder}: {len(data.classes)} sub-folders, and the model has {count} classes. Sub-folders are {order}"
                        f"{f', so {other[1]!r} would be class {other[0]}' if other else ''}: make one for each class, also for those without a sample (empty), "
                        f"named so that this is the order of the model's outputs ({0:0{len(str(count - 1))}}, {1:0{len(str(count - 1))}}, ...)")
    if other:
        return (f"sub-folders are {order}, so {other[1]!r} is class {other[0]}: right for a model that was trained from such folders; else name them with leading zeros",)
    return ()


def at_chance(reference: Accuracy, network: Network, metric: Metric) -> list[str]:
    """A warning where the float model does no better than guessing: then labels or inputs are not what it was trained with."""
    count = classes_of(network, metric)
    if not isinstance(metric, TopK) or not count or reference.samples < ENOUGH or not reference.value <= metric.k / count:
        return []
    return [(f"the float model is right on {reference.value:.2%} of the samples, no better than guessing among {count} classes: its figures say nothing of any plan. "
             "Are classes numbered as in training, and inputs prepared as in training (`qbench contract` tells slips)?")]


def classes_of(network: Network, metric: Metric) -> int:
    """Classes that a top-k metric chooses among; 0 for other metrics, and where the output's shape leaves it open."""
    if not isinstance(metric, TopK):
        return 0
    scores = network.tensors.get(metric.output or network.outputs[0])
    return scores.shape[1] if scores is not None and len(scores.shape) > 1 and prod(scores.shape[1:]) == scores.shape[1] else 0
