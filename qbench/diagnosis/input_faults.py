"""What another machine may have been fed, each as a function of the right inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from qbench.diagnosis.graph import Point
from qbench.diagnosis.output_faults import other_sign, scrambles
from qbench.diagnosis.records import Cause, InputFault, Tensors
from qbench.protocols import Array


@dataclass(frozen=True, slots=True)
class Normalisation:
    """value = (pixel * scale - mean) / std, per channel; layout "nchw" or "nhwc"; sure: it is the pipeline's own, not a guess"""

    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    layout: str = "nchw"

    def once(self, x: Array) -> Array:
        return np.asarray((x * np.float32(self.scale) - self._along(self.mean, x)) / self._along(self.std, x), np.float32)

    def back(self, x: Array) -> Array:
        return np.asarray((x * self._along(self.std, x) + self._along(self.mean, x)) / np.float32(self.scale), np.float32)

    def scaled(self, x: Array) -> Array:
        """Pixels that are scaled, without mean and std."""
        return np.asarray(x * self._along(self.std, x) + self._along(self.mean, x), np.float32)

    def shifted(self, x: Array) -> Array:
        """Mean and std once more."""
        return np.asarray((x - self._along(self.mean, x)) / self._along(self.std, x), np.float32)

    def fits(self, x: Array) -> bool:
        channels = x.shape[1 if self.layout == "nchw" else -1] if x.ndim > 1 else 1
        return x.ndim == 4 and all(len(v) in (1, channels) for v in (self.mean, self.std))

    def _along(self, values: Sequence[float], x: Array) -> Array:
        found = np.asarray(values, np.float32)
        return found.reshape(1, -1, 1, 1) if self.layout == "nchw" and x.ndim == 4 else found

    def __str__(self) -> str:
        return f"scale {self.scale:.6g}, mean {'/'.join(f'{m:g}' for m in self.mean)}, std {'/'.join(f'{s:g}' for s in self.std)}"


USUAL = (Normalisation(1 / 255, (0.0,), (1.0,)), Normalisation(1 / 255, (0.5,), (0.5,)),
         Normalisation(1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


def input_faults(feeds: Tensors, points: Mapping[str, Point], known: Normalisation | None = None) -> list[InputFault]:
    """Hypotheses about each float input in turn. points   input -> how its codes are stored; known   how the pixels were prepared"""
    found: list[InputFault] = []
    for name, x in feeds.items():
        if x.dtype.kind != "f" or x.ndim < 2:
            continue
        for text, cause, change in (*_order(x, known), *_layout(), *_normalisations(x, known), *_stale(len(x)), *_cut(x), *_codes(points.get(name))):
            found.append(InputFault(f"input {name}: {text}", cause, _on(name, change)))
    return found


def _on(name: str, change: Callable[[Array], Array | None]) -> Callable[[Tensors], Tensors]:
    def apply(feeds: Tensors) -> Tensors:
        made = change(feeds[name])
        return feeds if made is None else {**feeds, name: np.ascontiguousarray(made, feeds[name].dtype)}
    return apply


Named = tuple[str, Cause, Callable[[Array], "Array | None"]]


def _order(x: Array, known: Normalisation | None) -> Iterator[Named]:
    if x.ndim != 4:
        return
    for axis in (1, 3):
        size = x.shape[axis]
        if not 2 <= size <= 4 or (axis == 3 and x.shape[1] <= 4):
            continue
        if size == 3:
            yield "a grey picture: every channel is their mean", Cause.CHANNEL_ORDER, lambda v, a=axis: np.repeat(v.mean(a, keepdims=True), 3, a)  # type: ignore[misc]
        for order in permutations(range(size)):
            if order == tuple(range(size)):
                continue
            swapped = order == tuple(range(size))[::-1]
            text = "channels reversed (BGR for RGB, or the reverse)" if swapped else f"channels in the order {'/'.join(map(str, order))}"
            yield text, Cause.CHANNEL_ORDER, lambda v, o=order, a=axis: np.take(v, o, a)  # type: ignore[misc]
            if swapped and known is not None and known.fits(x) and (len(set(known.mean)) > 1 or len(set(known.std)) > 1):
                yield f"{text}, before the normalisation", Cause.CHANNEL_ORDER, lambda v, o=order, a=axis: known.shifted(np.take(known.scaled(v), o, a))  # type: ignore[misc]


def _layout() -> Iterator[Named]:
    for text, change in scrambles():
        yield text, Cause.LAYOUT, change


def _normalisations(x: Array, known: Normalisation | None) -> Iterator[Named]:
    for way in [known] if known is not None else USUAL:
        if not way.fits(x):
            continue
        yield f"not normalised ({way})", Cause.NORMALISATION, way.back
        yield f"normalised twice ({way})", Cause.NORMALISATION, way.once
        if set(way.mean) != {0.0} or set(way.std) != {1.0}:
            yield f"scaled, but mean and std left out ({way})", Cause.NORMALISATION, way.scaled
            yield f"mean and std applied twice ({way})", Cause.NORMALISATION, way.shifted
        for other in USUAL:
            if known is not None and other.fits(x) and (other.mean, other.std, other.scale) != (way.mean, way.std, way.scale):
                yield f"normalised with {other} instead", Cause.NORMALISATION, lambda v, w=way, o=other: o.once(w.back(v))  # type: ignore[misc]


def _stale(count: int) -> Iterator[Named]:
    if count > 1:
        yield "that of the sample before", Cause.STALE, lambda v: np.concatenate([v[:1], v[:-1]])
    yield "all zeros: never copied to the device", Cause.STALE, np.zeros_like


def _cut(x: Array) -> Iterator[Named]:
    if float(x.min()) < 0.0:
        yield "negative values cut at 0 (unsigned)", Cause.SATURATION, lambda v: np.maximum(v, 0.0)
    if float(x.max()) > 1.0:
        yield "cut at 1", Cause.SATURATION, lambda v: np.clip(v, -1.0, 1.0)


def _codes(point: Point | None) -> Iterator[Named]:
    if point is None:
        return

    def codes(v: Array) -> Array:
        return np.asarray(np.clip(np.rint(v / point.scale) + point.zero_point, point.qmin, point.qmax))

    yield "signed and unsigned codes are mixed up", Cause.ZERO_POINT, lambda v: (other_sign(codes(v), point) - point.zero_point) * point.scale
    if point.zero_point:
        yield "the zero point is left out", Cause.ZERO_POINT, lambda v: (codes(v) - 2 * point.zero_point) * point.scale
    yield "quantized twice: codes taken for reals", Cause.SCALE, codes
    yield "not quantized by its scale: reals taken for codes", Cause.SCALE, lambda v: (np.clip(np.rint(v), point.qmin, point.qmax) - point.zero_point) * point.scale


def fitted_input(name: str, slope: float, offset: float) -> InputFault:
    """An input that was multiplied and shifted."""
    return InputFault(f"input {name}: every value times {slope:.4g} plus {offset:.4g}", Cause.NORMALISATION, _on(name, lambda v: v * np.float32(slope) + np.float32(offset)), 2)
