"""What may happen to an output after the network has computed it, each as a function of the right output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import permutations

import numpy as np

from qbench.diagnosis.graph import Point
from qbench.diagnosis.records import Cause, OutputFault, Tensors
from qbench.protocols import Array

ALIGNMENTS = (4, 8, 16, 32, 64)
BLOCKS = (4, 8, 16, 32)
LINE_BYTES = 64
"""A cache line of every CPU that drives these accelerators."""
CLOSE = 1e-6


def output_faults(points: Mapping[str, Point]) -> list[OutputFault]:
    """All hypotheses about tensors after they were computed. points   tensor -> how its codes are stored, where it has codes"""
    return [*_old(), *_codes(points), *_layouts(), *_fits()]


def _each(change: Callable[[Array], Array | None]) -> Callable[[Tensors, Tensors], Tensors | None]:
    """`change` on every tensor that it applies to; None where it applies to none, or changes nothing."""
    def apply(predicted: Tensors, observed: Tensors) -> Tensors | None:
        made = {t: change(x) for t, x in predicted.items()}
        if all(v is None for v in made.values()):
            return None
        return {t: predicted[t] if v is None else v for t, v in made.items()}
    return apply


# ------------------------------------------------------------------------------------------------ old or missing data


def _old() -> Iterator[OutputFault]:
    def shifted(x: Array) -> Array | None:
        return np.concatenate([x[:1], x[:-1]]) if len(x) > 1 else None

    def zero_first(x: Array) -> Array | None:
        return np.concatenate([np.zeros_like(x[:1]), x[:-1]]) if len(x) > 1 else None

    def first(x: Array) -> Array | None:
        return np.repeat(x[:1], len(x), 0) if len(x) > 1 else None

    yield OutputFault("every output is that of the sample before", Cause.STALE, _each(shifted))
    yield OutputFault("every output is that of the sample before, the first all zeros", Cause.STALE, _each(zero_first))
    yield OutputFault("every output is that of the first sample", Cause.STALE, _each(first))
    yield OutputFault("all zeros", Cause.ZEROS, _each(np.zeros_like))
    yield OutputFault("one value everywhere: nothing was written into the buffer", Cause.STALE, _one_value, 1)
    yield OutputFault("the samples come in another order", Cause.ORDER, _reordered)
    yield OutputFault("the outputs are exchanged", Cause.ORDER, _exchanged)
    yield OutputFault("the end of the buffer is old or zero: read before the run had ended", Cause.STALE, lambda p, o: _lines(p, o, tail=True), 1)
    yield OutputFault(f"lines of {LINE_BYTES} bytes are old or zero", Cause.CACHE, lambda p, o: _lines(p, o, tail=False), 2)


def _reordered(predicted: Tensors, observed: Tensors) -> Tensors | None:
    """Each observed sample is the predicted one that is closest, every one used once."""
    from scipy.optimize import linear_sum_assignment

    count = len(next(iter(observed.values())))
    if count < 2:
        return None
    cost = np.zeros((count, count))
    for t, x in predicted.items():
        p, o = (np.nan_to_num(np.asarray(a, np.float64).reshape(count, -1)) for a in (x, observed[t]))
        cost += ((o**2).sum(1)[:, None] - 2.0 * o @ p.T + (p**2).sum(1)[None]) / max(float((p**2).sum()), 1e-30)
    order = linear_sum_assignment(cost)[1]
    return None if (order == np.arange(count)).all() else {t: x[order] for t, x in predicted.items()}


def _exchanged(predicted: Tensors, observed: Tensors) -> Tensors | None:
    """Outputs of one shape, permuted so that each comes closest to what was observed under its name."""
    from scipy.optimize import linear_sum_assignment

    found = dict(predicted)
    for shape in {v.shape for v in predicted.values()}:
        names = [t for t, v in predicted.items() if v.shape == shape]
        order = linear_sum_assignment(np.array([[_apart(predicted[b], observed[a]) for b in names] for a in names]))[1]
        found |= {a: predicted[names[b]] for a, b in zip(names, order, strict=True)}
    return None if all(found[t] is predicted[t] for t in predicted) else found


def _apart(p: Array, o: Array) -> float:
    return float(np.square(np.nan_to_num(o) - p.astype(np.float64)).sum()) / max(float(np.square(p, dtype=np.float64).sum()), 1e-30)


def _lines(predicted: Tensors, observed: Tensors, tail: bool) -> Tensors | None:
    """Predicted outputs in which whole cache lines that differ are those of the sample before, or zero, where observed lines are just that.

    tail   they must be the end of the buffer, from the first wrong line on; otherwise they must not
    """
    changed, found = False, {}
    for t, p in predicted.items():
        best = min((_old_lines(p, observed[t], LINE_BYTES // size, tail) for size in (4, 2, 1)), key=lambda pair: pair[1])
        found[t] = best[0]
        changed |= best[2]
    return found if changed else None


def _old_lines(p: Array, o: Array, values: int, tail: bool) -> tuple[Array, float, bool]:
    """(prediction, energy that it leaves, whether anything was taken from elsewhere) for lines of `values` values."""
    made, changed = p.copy(), False
    tolerance = CLOSE * max(float(np.abs(p).max(initial=0.0)), 1e-30)
    for i in range(len(p)):
        now, seen, flat = p[i].ravel(), o[i].ravel(), made[i].reshape(-1)
        starts = range(0, now.size, values)
        wrong = [s for s in starts if np.abs(seen[s:s + values] - now[s:s + values]).max() > tolerance]
        if not wrong:
            continue
        if tail != (len(wrong) > 1 and wrong[0] > 0 and now.size - wrong[0] <= values * (len(wrong) + len(wrong) // 2 + 1)):
            continue
        olds = [np.zeros_like(now), *(p[j].ravel() for j in (i - 1,) if j >= 0)]
        for s in wrong:
            part = seen[s:s + values]
            for old in olds:
                if np.abs(part - old[s:s + values]).max() <= tolerance:
                    flat[s:s + values] = old[s:s + values]
                    changed = True
                    break
    return made, float(np.square(np.nan_to_num(o.astype(np.float64) - made)).sum()), changed


# ------------------------------------------------------------------------------------------------ codes


def _codes(points: Mapping[str, Point]) -> Iterator[OutputFault]:
    """Codes read with another sign, zero point or scale than they were written with."""
    def on_codes(change: Callable[[Array, Point], Array]) -> Callable[[Tensors, Tensors], Tensors | None]:
        def apply(predicted: Tensors, observed: Tensors) -> Tensors | None:
            if not set(predicted) & set(points):
                return None
            return {t: change(np.rint(x / points[t].scale) + points[t].zero_point, points[t]).astype(np.float32) if t in points else x for t, x in predicted.items()}
        return apply

    yield OutputFault("signed and unsigned codes are mixed up", Cause.ZERO_POINT, on_codes(lambda q, p: (other_sign(q, p) - p.zero_point) * p.scale))
    yield OutputFault("the zero point is not taken away", Cause.ZERO_POINT, on_codes(lambda q, p: q * p.scale))
    yield OutputFault("the zero point is taken away twice", Cause.ZERO_POINT, on_codes(lambda q, p: (q - 2 * p.zero_point) * p.scale))
    yield OutputFault("the zero point is off by half the codes", Cause.ZERO_POINT, on_codes(lambda q, p: (q - p.zero_point - (p.qmax - p.qmin + 1) // 2) * p.scale))
    yield OutputFault("the zero point is off by half the codes, downwards", Cause.ZERO_POINT, on_codes(lambda q, p: (q - p.zero_point + (p.qmax - p.qmin + 1) // 2) * p.scale))
    yield OutputFault("raw codes: neither scale nor zero point is applied", Cause.SCALE, on_codes(lambda q, p: q))
    yield OutputFault("codes less their zero point: the scale is not applied", Cause.SCALE, on_codes(lambda q, p: q - p.zero_point))
    yield OutputFault("the scale is applied twice", Cause.SCALE, on_codes(lambda q, p: (q - p.zero_point) * p.scale**2))


def other_sign(q: Array, p: Point) -> Array:
    """Codes written as signed and read as unsigned, or the reverse."""
    size = p.qmax - p.qmin + 1
    return np.where(q < 0, q + size, q) if p.signed else np.where(q > p.qmax // 2, q - size, q)


# ------------------------------------------------------------------------------------------------ layout


def _layouts() -> Iterator[OutputFault]:
    for name, change in scrambles():
        yield OutputFault(name, Cause.LAYOUT, _each(change))
    yield OutputFault("the channels are reversed", Cause.CHANNEL_ORDER, _each(lambda x: x[:, ::-1] if x.ndim > 1 and x.shape[1] > 1 else None))
    yield OutputFault("the channels come in another order", Cause.CHANNEL_ORDER, _other_channels, 1)


def scrambles() -> Iterator[tuple[str, Callable[[Array], Array | None]]]:
    """Values read in another order than they were written, [n, ...]; None where that changes nothing."""
    def reread(order: tuple[int, ...], back: bool) -> Callable[[Array], Array | None]:
        def change(x: Array) -> Array | None:
            if x.ndim != len(order) + 1 or sum(s > 1 for s in x.shape[1:]) < 2:
                return None
            axes = (0, *(a + 1 for a in order))
            if not back:
                made = np.ascontiguousarray(x.transpose(axes)).reshape(x.shape)
            else:
                made = x.reshape([x.shape[a] for a in axes]).transpose(np.argsort(axes))
            return None if np.array_equal(made, x) else made
        return change

    named: dict[tuple[int, ...], str] = {(1, 2, 0): "HWC values read as CHW", (0, 2, 1): "rows and columns exchanged"}
    for size in (3, 2):
        for order in permutations(range(size)):
            if order == tuple(range(size)):
                continue
            yield named.get(order, f"values in the order of axes {order} read as {tuple(range(size))}"), reread(order, False)
            if order == (1, 2, 0):
                yield "CHW values read as HWC", reread(order, True)
    for n in ALIGNMENTS:
        yield f"rows padded to a multiple of {n} values read as packed", lambda x, n=n: padded_rows(x, n)  # type: ignore[misc]
        yield f"packed rows read as padded to a multiple of {n} values", lambda x, n=n: packed_rows(x, n)  # type: ignore[misc]
    for c2 in BLOCKS:
        yield f"NC1HWC2 blocks of {c2} channels read as NCHW", lambda x, c2=c2: blocked(x, c2)  # type: ignore[misc]
    yield "mirrored left to right", lambda x: x[..., ::-1] if x.ndim == 4 and x.shape[3] > 1 else None
    yield "turned by 180 degrees", lambda x: x[..., ::-1, ::-1] if x.ndim == 4 and min(x.shape[2:]) > 1 else None
    yield "upside down", lambda x: x[..., ::-1, :] if x.ndim == 4 and x.shape[2] > 1 else None


def padded_rows(x: Array, n: int) -> Array | None:
    """Rows that the writer pads with zeros, and the reader takes as packed: a sheared picture (BUG case B26)."""
    width = x.shape[-1]
    pitch = -(-width // n) * n
    if x.ndim != 4 or pitch == width:
        return None
    wide = np.zeros((*x.shape[:-1], pitch), x.dtype)
    wide[..., :width] = x
    return wide.reshape(len(x), -1)[:, :x[0].size].reshape(x.shape)


def packed_rows(x: Array, n: int) -> Array | None:
    """Packed rows that the reader takes as padded: each row begins too late; past the end there are zeros."""
    width = x.shape[-1]
    pitch = -(-width // n) * n
    if x.ndim != 4 or pitch == width:
        return None
    rows = x[0].size // width
    long = np.zeros((len(x), rows * pitch), x.dtype)
    long[:, :x[0].size] = x.reshape(len(x), -1)
    return long.reshape(len(x), rows, pitch)[..., :width].reshape(x.shape)


def blocked(x: Array, c2: int) -> Array | None:
    """Channels in blocks innermost, as NPUs store them, read as plain NCHW."""
    if x.ndim != 4 or x.shape[1] <= 1 or x.shape[2] * x.shape[3] == 1:
        return None
    n, c, h, w = x.shape
    whole = np.zeros((n, -(-c // c2) * c2, h, w), x.dtype)
    whole[:, :c] = x
    return np.ascontiguousarray(whole.reshape(n, -1, c2, h, w).transpose(0, 1, 3, 4, 2)).reshape(n, -1)[:, :x[0].size].reshape(x.shape)


def _other_channels(predicted: Tensors, observed: Tensors) -> Tensors | None:
    """Every channel is the predicted one that is closest, each used once."""
    from scipy.optimize import linear_sum_assignment

    found, changed = dict(predicted), False
    for t, p in predicted.items():
        if p.ndim < 3 or not 1 < p.shape[1] <= 512:
            continue
        a, b = (np.nan_to_num(np.moveaxis(x.astype(np.float64), 1, 0).reshape(p.shape[1], -1)) for x in (p, observed[t]))
        order = linear_sum_assignment((b**2).sum(1)[:, None] - 2.0 * b @ a.T + (a**2).sum(1)[None])[1]
        if (order != np.arange(len(order))).any():
            found[t], changed = p[:, order], True
    return found if changed else None


# ------------------------------------------------------------------------------------------------ fitted


def _fits() -> Iterator[OutputFault]:
    for name, cause, fit, freedom in (("everything is larger or smaller by one factor", Cause.SCALE, _factor, 1), ("everything is shifted by one value", Cause.ZERO_POINT, _shift, 1),
                                      ("another scale and another zero point", Cause.SCALE, _line, 2), ("the scales of the channels are others", Cause.SCALE, _channel_factors, 3),
                                      ("cut at the lowest and highest value that is seen", Cause.SATURATION, _cut, 2)):
        # a line of slope 0, or a cut from both sides, makes a constant of anything
        yield OutputFault(name, cause, lambda p, o, fit=fit: None if any(_constant(v) for v in o.values()) else fit(p, o), freedom)  # type: ignore[misc]


def _constant(x: Array) -> bool:
    return x.size > 1 and bool((x == x.flat[0]).all())


def _one_value(predicted: Tensors, observed: Tensors) -> Tensors | None:
    """The observed constants, where each tensor is one and not all of them are 0."""
    if not all(_constant(v) for v in observed.values()) or not any(v.flat[0] for v in observed.values()) or all(_constant(v) for v in predicted.values()):
        return None
    return {t: np.asarray(v) for t, v in observed.items()}


def _factor(predicted: Tensors, observed: Tensors) -> Tensors | None:
    return {t: p * np.float32(_dot(p, observed[t]) / max(_dot(p, p), 1e-30)) for t, p in predicted.items()}


def _shift(predicted: Tensors, observed: Tensors) -> Tensors | None:
    return {t: p + np.float32(np.nan_to_num(observed[t] - p).mean()) for t, p in predicted.items()}


def _line(predicted: Tensors, observed: Tensors) -> Tensors | None:
    found = {}
    for t, p in predicted.items():
        o = np.nan_to_num(observed[t])
        centred = p - p.mean()
        slope = _dot(centred, o - o.mean()) / max(_dot(centred, centred), 1e-30)
        found[t] = (centred * slope + o.mean()).astype(np.float32)
    return found


def _channel_factors(predicted: Tensors, observed: Tensors) -> Tensors | None:
    found, any_ = dict(predicted), False
    for t, p in predicted.items():
        if p.ndim == 4 and 1 < p.shape[1] * 16 <= p[:, 0].size * p.shape[1]:
            o = np.nan_to_num(observed[t])
            axes = (0, 2, 3)
            factors = (p * o).sum(axes, dtype=np.float64) / np.maximum((p * p).sum(axes, dtype=np.float64), 1e-30)
            found[t], any_ = p * factors.reshape(1, -1, 1, 1).astype(np.float32), True
    return found if any_ else None


def _cut(predicted: Tensors, observed: Tensors) -> Tensors | None:
    found, changed = {}, False
    for t, p in predicted.items():
        o = observed[t][np.isfinite(observed[t])]
        low, high = (float(o.min()), float(o.max())) if o.size else (0.0, 0.0)
        # a plateau: many values at the bound itself, more than any that the prediction has at its own
        at_bound = max(int((o >= high).sum()), int((o <= low).sum()))
        found[t] = np.clip(p, low, high)
        changed |= at_bound > 8 and (float(p.max()) > high or float(p.min()) < low)
    return found if changed else None


def _dot(a: Array, b: Array) -> float:
    return float(np.vdot(a.astype(np.float64), np.nan_to_num(b).astype(np.float64)))
