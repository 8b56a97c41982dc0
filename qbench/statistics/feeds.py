"""Does the data set fit the model? Asked before anything runs (BUG case B06)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qbench.errors import DataError
from qbench.protocols import Array, Batch, Dataset


@dataclass(frozen=True, slots=True)
class Expected:
    """One model input. shape: static lengths as numbers, open ones as their names; None when the rank is open too."""

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None

    def __str__(self) -> str:
        shape = "any shape" if self.shape is None else f"[{', '.join(str(d) for d in self.shape)}]"
        return f"{self.name}: {self.dtype} {shape}"

    def fault(self, value: Array) -> str:
        """Why `value` cannot be this input; "" when it can."""
        if value.dtype.name != self.dtype:
            return f"input {self.name!r} has dtype {value.dtype.name}"
        if self.shape is None:
            return ""
        lengths = [(want, have) for want, have in zip(self.shape, value.shape, strict=False) if isinstance(want, int)]
        if value.ndim != len(self.shape) or any(want != have for want, have in lengths):
            return f"input {self.name!r} has shape [{', '.join(str(d) for d in value.shape)}]"
        return ""


def check_not_empty(data: Dataset, expected: Sequence[Expected]) -> None:
    if len(data) == 0:
        raise DataError(f"data set {data.name!r} is empty: there is nothing to calibrate on. {_wanted(expected)}")


def check_batch(data: Dataset, batch: Batch, expected: Sequence[Expected]) -> None:
    """Raises DataError naming the sample, what it holds, and every name, shape and dtype that the model expects."""
    fault = _fault(batch.feeds, expected)
    if fault:
        raise DataError(f"data set {data.name!r}, sample {batch.first}: {fault}. {_wanted(expected)}")


def _fault(feeds: Mapping[str, Array], expected: Sequence[Expected]) -> str:
    names = {e.name for e in expected}
    if missing := [e.name for e in expected if e.name not in feeds]:
        return f"input {missing[0]!r} is missing; the sample holds {', '.join(map(repr, feeds)) or 'nothing'}"
    if unknown := [name for name in feeds if name not in names]:
        return f"{unknown[0]!r} is not an input of the model"
    return next((fault for e in expected if (fault := e.fault(feeds[e.name]))), "")


def _wanted(expected: Sequence[Expected]) -> str:
    return f"The model expects {'; '.join(map(str, expected))}"
