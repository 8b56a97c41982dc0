"""Models run on several samples, their tensors stacked along a first axis of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from qbench.diagnosis.records import Tensors
from qbench.errors import InputError
from qbench.protocols import Array

if TYPE_CHECKING:
    import onnx


def stacked(rows: Sequence[Mapping[str, Array]]) -> tuple[dict[str, Array], frozenset[str]]:
    """[{name: array}] as {name: [samples, ...]}, and the names that have no batch axis of 1 and got a new one. Raises InputError for unlike shapes."""
    lifted = frozenset(k for k, v in rows[0].items() if v.shape[:1] != (1,))
    try:
        return {k: (np.stack if k in lifted else np.concatenate)([r[k] for r in rows]) for k in rows[0]}, lifted
    except ValueError as error:
        shapes = {k: sorted({r[k].shape for r in rows}) for k in rows[0]}
        raise InputError(f"samples of different shapes cannot be compared with one another: {shapes}; give samples of one shape") from error


class Runner:
    """lifted   tensors without a batch axis of 1: their first axis is samples alone"""

    def __init__(self, lifted: frozenset[str] = frozenset(), threads: int | None = None) -> None:
        self.lifted, self.threads = lifted, threads

    def run(self, model: onnx.ModelProto, feeds: Tensors, simulate: bool = True, samples: Sequence[int] | None = None) -> dict[str, Array]:
        """All outputs of `model`, as written with simulate=True, with integer kernels otherwise. Raises ModelError when it does not run."""
        from qbench.runtime import Session

        session = Session(model.SerializeToString(), self.threads, simulate)
        count = len(next(iter(feeds.values())))
        rows = [session.run({k: v[i] if k in self.lifted else v[i:i + 1] for k, v in feeds.items()}) for i in (samples if samples is not None else range(count))]
        made, lifted = stacked(rows)
        self.lifted |= lifted
        return made
