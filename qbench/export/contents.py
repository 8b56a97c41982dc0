"""What a plan demands of an artefact, what the artefact holds, and where the two differ (BUG case B29)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

from qbench.network import Precision


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """How a tensor's codes map to reals: real = (q - zero_point) * scale.

    dtype              numpy name of the codes: "int8", "uint8", "int16", "uint16"
    scale, zero_point  one entry, or one per channel
    """

    dtype: str
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]

    @property
    def bits(self) -> int:
        return 8 * np.dtype(self.dtype).itemsize

    @property
    def steps(self) -> tuple[int, ...]:
        """Zero points counted from the lowest code: the same for uint8 128 and int8 0, which map alike (BUG case B11)."""
        lowest = int(np.iinfo(self.dtype).min)
        return tuple(z - lowest for z in self.zero_point)

    def __str__(self) -> str:
        def some(values: tuple[Any, ...], form: str) -> str:
            shown = ", ".join(format(v, form) for v in values[:3])
            return shown if len(values) <= 3 else f"{shown}, ... ({len(values)})"

        return f"{self.dtype} scale {some(self.scale, '.9g')} zero point {some(self.zero_point, 'd')}"


@dataclass(frozen=True, slots=True)
class Layer:
    """How one kernel is compiled. placement   "NPU", "CPU"; "" where nobody says, or where it does not matter"""

    precision: Precision
    placement: str = ""

    def __str__(self) -> str:
        return f"{self.precision} on {self.placement}" if self.placement else str(self.precision)


@dataclass(frozen=True)
class Contents:
    """layers    kernel -> how it is compiled
    tensors   "TENSOR:int8" or "TENSOR:int16", a name of the network and the precision of its codes, and "weight:INITIALIZER"
    source    what was read, in words
    silent    kernel or tensor key -> why the artefact says nothing of it: not compared, but listed
    """

    layers: Mapping[str, Layer]
    tensors: Mapping[str, StoredTensor]
    source: str
    silent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Consent:
    """A change that an exporter announces: the artefact is compared with `instead`, and the manifest lists the reason.

    A key that the plan does not have announces something beside it, which must then be there.
    """

    instead: StoredTensor | Layer
    reason: str


T = TypeVar("T", "StoredTensor", "Layer")


@dataclass(frozen=True, slots=True)
class Difference:
    """what   "precision", "placement", "dtype", "scale", "zero point", "missing" or "unplanned"; plan, actual   in words"""

    name: str
    what: str
    plan: str
    actual: str

    def __str__(self) -> str:
        return f"{self.name}: {self.what} {self.plan} -> {self.actual}"


def differences(plan: Contents, actual: Contents, *, scale_tolerance: float = 0.0,
                consent: Mapping[str, Consent] | None = None) -> tuple[Difference, ...]:
    """Everything in which the artefact is not what the plan demands, layers first.

    scale_tolerance   relative, for toolchains that compute the scale again from a range
    """
    allowed, silent = consent or {}, actual.silent
    return (*_compared(plan.layers, actual.layers, _instead(allowed, Layer), silent, _layer),
            *_compared(plan.tensors, actual.tensors, _instead(allowed, StoredTensor), silent, partial(_tensor, scale_tolerance)),
            *(Difference(key, "unplanned", "float", str(have)) for key, have in actual.tensors.items() if key not in plan.tensors and key not in allowed))


def _instead(consent: Mapping[str, Consent], kind: type[T]) -> dict[str, T]:
    return {name: change.instead for name, change in consent.items() if isinstance(change.instead, kind)}


def _compared(plan: Mapping[str, T], actual: Mapping[str, T], consent: Mapping[str, T], silent: Mapping[str, str],
              apart: Callable[[str, T, T], Iterator[Difference]]) -> Iterator[Difference]:
    """What is demanded, or what an exporter announced instead of it or beside it, against what is there."""
    for name, want in (dict(plan) | dict(consent)).items():
        if name in silent:
            continue
        have = actual.get(name)
        if have is None:
            yield Difference(name, "missing", str(want), "not in the artefact")
        else:
            yield from apart(name, want, have)


def _layer(name: str, want: Layer, have: Layer) -> Iterator[Difference]:
    if have.precision is not want.precision:
        yield Difference(name, "precision", str(want.precision), str(have.precision))
    if want.placement and have.placement and have.placement != want.placement:
        yield Difference(name, "placement", want.placement, have.placement)


def _tensor(tolerance: float, key: str, want: StoredTensor, have: StoredTensor) -> Iterator[Difference]:
    if have.bits != want.bits:
        yield Difference(key, "dtype", want.dtype, have.dtype)
    if len(have.scale) != len(want.scale) or not np.allclose(have.scale, want.scale, rtol=tolerance, atol=0.0):
        yield Difference(key, "scale", *_apart(want, have))
    if have.steps != want.steps:
        yield Difference(key, "zero point", str(want), str(have))


def _apart(want: StoredTensor, have: StoredTensor) -> tuple[str, str]:
    """Both scales, of the channel where they lie furthest apart."""
    if len(want.scale) != len(have.scale):
        return f"{len(want.scale)} scales", f"{len(have.scale)} scales"
    ratios = np.abs(np.asarray(have.scale) / np.asarray(want.scale) - 1.0)
    at = int(np.argmax(ratios))
    where = f" (channel {at})" if len(want.scale) > 1 else ""
    return f"{want.scale[at]:.9g}{where}", f"{have.scale[at]:.9g}"
