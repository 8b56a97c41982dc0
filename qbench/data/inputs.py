"""What a model wants to be fed, and the checks that turn stored arrays into exactly that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from qbench.errors import DataError
from qbench.protocols import Array

LABELS = "labels"


class InputSpec(NamedTuple):
    """One input of a model.

    shape   first axis is the batch; None where an axis is free
    dtype   numpy name, "float32"
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{['?' if d is None else d for d in self.shape]}"


Inputs = Sequence[tuple[str, tuple[int | None, ...], str]]


def pick(stored: Mapping[str, Array], inputs: Inputs, where: str) -> dict[str, Array]:
    """The arrays of `stored` that the model wants, by input name. Raises DataError that names what is missing."""
    missing = [InputSpec(*i) for i in inputs if i[0] not in stored]
    if missing:
        have = ", ".join(f"{k} {v.dtype}{list(v.shape)}" for k, v in stored.items()) or "nothing"
        raise DataError(f"{where}: no array for the model's input {', '.join(map(str, missing))}; it holds {have}. "
                        f"Name the arrays after the model's inputs, first axis samples, and the answers {LABELS!r}")
    return {i[0]: stored[i[0]] for i in inputs}


def fit(array: Array, spec: InputSpec, where: str) -> Array:
    """`array` [samples, ...] in the input's dtype. Raises DataError when shape or values do not fit."""
    wanted = spec.shape[1:]
    if array.ndim != len(spec.shape) or not _matches(array.shape[1:], wanted):
        raise DataError(f"{where}: input {spec.name!r} wants samples of shape {_text(wanted)}, got {_text(array.shape[1:])}"
                        f"{_layout_hint(array.shape[1:], wanted)}")
    return cast(array, spec, where)


def cast(array: Array, spec: InputSpec, where: str) -> Array:
    """`array` in the input's dtype where that keeps the values; float64 may become float32.

    Raises DataError for complex numbers, text, fractions fed to an integer input, and integers that do not fit.
    """
    want = np.dtype(spec.dtype)
    if array.dtype == want:
        return array
    if array.dtype.kind not in "biuf" or want.kind not in "biuf":
        raise DataError(f"{where}: input {spec.name!r} wants {want}, the data is {array.dtype}")
    if want.kind == "f":
        with np.errstate(over="ignore"):
            made = array.astype(want)
        if array.dtype.kind == "f" and (lost := np.isfinite(array) & ~np.isfinite(made)).any():
            raise DataError(f"{where}: input {spec.name!r} wants {want}, and {np.count_nonzero(lost)} of the {array.dtype} values are beyond it, "
                            f"the first {array[lost][0]:g}; scale the data as the model was trained with")
        return made
    limits = np.iinfo(want) if want.kind in "iu" else None
    low, high = (limits.min, limits.max) if limits else (0, 1)
    whole = array.dtype.kind != "f" or bool(np.all(array == np.rint(array)))
    if array.size and not (whole and array.min() >= low and array.max() <= high):
        raise DataError(f"{where}: input {spec.name!r} wants {want}, and the {array.dtype} data has values that it cannot hold "
                        f"(lowest {array.min()}, highest {array.max()}); convert the data, or export the model with a float input")
    return array.astype(want)


def _matches(have: Sequence[int], want: Sequence[int | None]) -> bool:
    return len(have) == len(want) and all(w is None or w == h for w, h in zip(want, have, strict=True))


def _text(shape: Sequence[int | None]) -> str:
    return "x".join("?" if d is None else str(d) for d in shape) or "one number"


def _layout_hint(have: tuple[int, ...], want: tuple[int | None, ...]) -> str:
    """The likely slip: channels last instead of first, or the other way round, or a lost channel axis."""
    if len(have) == 3 and _matches((have[2], have[0], have[1]), want):
        return "; channels last where the model wants them first? Transpose with (0, 3, 1, 2)"
    if len(have) == 3 and _matches((have[1], have[2], have[0]), want):
        return "; channels first where the model wants them last? Transpose with (0, 2, 3, 1)"
    if _matches((1, *have), want):
        return "; the channel axis is missing: array[:, None]"
    return ""
