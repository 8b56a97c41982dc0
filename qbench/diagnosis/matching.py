"""A dump of tensors, as boards and simulators leave them, brought to the names, shapes and reals of the model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from qbench.diagnosis.graph import Point
from qbench.diagnosis.records import Tensors
from qbench.errors import InputError
from qbench.protocols import Array


def match(dump: Tensors, expected: Tensors, aliases: Mapping[str, str], outputs: Sequence[str], points: Mapping[str, Point],
          where: str) -> tuple[dict[str, Array], list[str]]:
    """The dump's arrays as float32 [samples, ...] by the names of `expected`, and a note for all that was changed or left out.

    expected   tensor -> what the reference holds, for its shape; aliases   other names -> name in `expected`
    outputs    the network's outputs in order, for dumps without names; points   how codes are read
    Raises InputError when nothing fits, naming what is there and what is wanted.
    """
    names, notes = _names(list(dump), {**{t: t for t in expected}, **aliases}, [aliases.get(o, o) for o in outputs])
    most = max(len(v) for v in expected.values())
    count = min([len(dump[k]) for k in names if dump[k].ndim] or [0])
    if count > most:
        notes.append(f"the dump holds {count} samples, the first {most} are compared; --samples {count} takes all")
        count = most
    found: dict[str, Array] = {}
    for key, t in names.items():
        if t in found:
            notes.append(f"{key}: left out, {t} is there already under another name")
            continue
        array, changes = _reals(dump[key][:most] if dump[key].ndim > 1 and len(dump[key]) > most else dump[key], points.get(t))
        shaped, how = _shaped(array, expected[t].shape[1:], len(expected[t]))
        if shaped is None:
            notes.append(f"{key}: left out, its shape is {list(dump[key].shape)}, expected {list(expected[t].shape)}")
            continue
        found[t] = shaped
        notes += [f"{key}: {c}" for c in (*changes, how) if c]
    if not found:
        there = ", ".join(f"{k} {list(v.shape)}" for k, v in list(dump.items())[:8])
        wanted = ", ".join(f"{o} {list(expected[aliases.get(o, o)].shape)}" for o in outputs if aliases.get(o, o) in expected)
        raise InputError(f"{where}: no tensor of the model is in it. It holds {there or 'nothing'}; expected at least the outputs {wanted}, first axis samples")
    missing = [o for o in outputs if aliases.get(o, o) in expected and aliases.get(o, o) not in found]
    if missing:
        notes.append(f"not in the dump, so not judged: {', '.join(missing)}")
    if count < most:
        notes.append(f"the dump holds {count} of {most} samples: the first ones are compared")
    return {t: v[:count] for t, v in found.items()}, notes


def _names(keys: Sequence[str], known: Mapping[str, str], outputs: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Key of the dump -> tensor: by name, by name with other separators, outputs by number."""
    plain: dict[str, str] = {}
    for name, t in known.items():
        plain.setdefault(_plain(name), t)
    found: dict[str, str] = {}
    unknown: list[str] = []
    for key in keys:
        bare = key.removeprefix("out:")
        t = known.get(bare) or plain.get(_plain(bare)) or ""
        number = re.fullmatch(r"(?:output|out|arr)_?(\d+)", bare)
        if not t and number and int(number[1]) < len(outputs):
            t = outputs[int(number[1])]
        if not t:
            unknown.append(key)
        else:
            found[key] = t
    notes: list[str] = []
    left = [o for o in outputs if o not in found.values()]
    if unknown and not found and len(unknown) == len(left):
        notes.append(f"no name of the dump is known: {', '.join(unknown)} are taken for {', '.join(left)}, in this order")
        return dict(zip(unknown, left, strict=True)), notes
    if unknown:
        notes.append(f"{len(unknown)} tensors of the dump are not in the model and left out: {', '.join(unknown[:5])}{' ...' if len(unknown) > 5 else ''}")
    return found, notes


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _reals(array: Array, point: Point | None) -> tuple[Array, list[str]]:
    """Codes become reals where the tensor has codes; half floats become float32."""
    if array.dtype.kind in "iu" and point is not None:
        zero = point.zero_point
        changed = f"{array.dtype} codes, read as (q - {zero}) * {point.scale:.6g}"
        if array.dtype != point.dtype and array.dtype.itemsize == np.dtype(point.dtype).itemsize:
            zero += int(np.iinfo(array.dtype).min) - point.qmin
            changed = f"{array.dtype} codes of a {point.dtype} tensor, read as (q - {zero}) * {point.scale:.6g}"
        return ((array.astype(np.int64) - zero) * np.float32(point.scale)).astype(np.float32), [changed]
    if array.dtype == np.float16:
        return array.astype(np.float32), ["float16, compared as such"]
    return array.astype(np.float32), []


def _shaped(x: Array, shape: tuple[int, ...], count: int) -> tuple[Array | None, str]:
    """[n, *shape] from the layouts that boards have, and which one it was; None where none fits."""
    if x.shape[1:] == shape:
        return x, ""
    if x.ndim == 0 or (x.shape == shape and count == 1):
        return (x.reshape(1, *shape), "one sample without its axis") if x.size == int(np.prod(shape)) else (None, "")
    n = len(x)
    if len(shape) == 3:
        c, h, w = shape
        if x.shape[1:] == (h, w, c):
            return np.ascontiguousarray(x.transpose(0, 3, 1, 2)), "NHWC, turned into NCHW"
        if x.ndim == 5 and x.shape[2:4] == (h, w) and x.shape[1] * x.shape[4] >= c:
            return np.ascontiguousarray(x.transpose(0, 1, 4, 2, 3)).reshape(n, -1, h, w)[:, :c], "NC1HWC2, turned into NCHW"
        if x.ndim == 4 and x.shape[1:3] == (c, h) and w < x.shape[3] <= w + 64:
            return x[..., :w], f"rows padded from {w} to {x.shape[3]} values, stripped"
        if x.ndim == 4 and x.shape[2:] == (h, w) and c < x.shape[1] <= c + 32:
            return x[:, :c], f"channels padded from {c} to {x.shape[1]}, stripped"
        if x.ndim == 4 and x.shape[1:3] == (h, w) and c < x.shape[3] <= c + 32:
            return np.ascontiguousarray(x[..., :c].transpose(0, 3, 1, 2)), f"NHWC with channels padded from {c} to {x.shape[3]}, stripped and turned into NCHW"
    if x[0].size == int(np.prod(shape)):
        return x.reshape(n, *shape), f"shape {list(x.shape[1:])}, taken as {list(shape)}"
    if x.size == count * int(np.prod(shape)):
        return x.reshape(count, *shape), f"shape {list(x.shape)}, taken as {[count, *shape]}"
    return None, ""
