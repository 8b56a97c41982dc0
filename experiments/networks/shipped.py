"""The samples of qbench as networks of the zoo: the same files and the same data."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from made import Array, Made

from qbench.protocols import Dataset
from qbench.samples import load_sample


def sample(name: str, cache: Path) -> Made:
    """A built-in sample, all of its data; nothing is downloaded."""
    found = load_sample(name)
    return Made(
        onnx.load(found.model), arrays(found.calibration), arrays(found.evaluation), found.metric, found.caveats[0]
    )


brain = partial(sample, "brain")
fashion = partial(sample, "fashion")
blazeface = partial(sample, "face")


def arrays(data: Dataset) -> Mapping[str, Array]:
    """A data set as arrays, `labels` beside them where it has some."""
    batches = list(data.batches(64))
    stored = {k: np.concatenate([b.feeds[k] for b in batches]) for k in batches[0].feeds}
    labels = [b.labels for b in batches if b.labels is not None]
    return stored | ({"labels": np.concatenate(labels)} if labels else {})
