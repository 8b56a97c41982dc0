"""What `qbench measure` does: one model file on one board, and again where the first answer should not be believed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from qbench.board import Board, Measurement, Request
from qbench.errors import InputError
from qbench.files import refuse_overwriting
from qbench.protocols import Array, Progress, silent
from qbench.targets.boards import open_board
from qbench.workbench.case import Shapes, Values, input_specs, open_data, open_model

SAMPLES = 4
"""Inputs that are sent to the board, in turn: one alone may sit in caches, or be unlike the others."""
TRIES = 3


def measure(model: Path, board: str, data: str | None = None, *, request: Request | None = None, preprocess: str | None = None,
            input_shapes: Shapes | None = None, input_values: Values | None = None, out: Path | None = None, tries: int = TRIES,
            progress: Progress = silent) -> tuple[Measurement, tuple[str, ...]]:
    """The measurement and remarks on it; written to `out` where one is named.

    data    samples to run on; without them values are drawn at random, which an ONNX model allows
    tries   measurements at most, until one is stable; the steadiest is kept
    Raises InputError for a model that is not there, ToolError when the board fails.
    """
    if not model.is_file():
        raise InputError(f"{model} does not exist")
    if out is not None:
        refuse_overwriting(out, model=model, data=data)
    there = open_board(board)
    feeds, notes = samples(model, data, preprocess, input_shapes, input_values)
    found = measured(there, model, feeds, request or Request(), tries, progress)
    if out is not None:
        found.save(out)
    if found.recorded:
        notes = (*notes, f"recorded{f' on {found.when}' if found.when else ''}: nothing ran")
    return found, (*notes, *found.unstable)


def measured(board: Board, model: Path, feeds: Sequence[Mapping[str, Array]], request: Request, tries: int = TRIES, progress: Progress = silent) -> Measurement:
    """The first stable measurement of at most `tries`, or the one whose runs lie closest together."""
    kept: list[Measurement] = []
    for number in range(max(tries, 1)):
        progress("measuring", number, max(tries, 1))
        found = board.measure(model, feeds, request)
        kept.append(found)
        if found.recorded or not found.unstable:
            return found
    return min(kept, key=lambda m: (m.percentile(90) - m.percentile(10)) / m.latency_ms)


def samples(model: Path, data: str | None, preprocess: str | None = None, input_shapes: Shapes | None = None,
            input_values: Values | None = None) -> tuple[list[Mapping[str, Array]], tuple[str, ...]]:
    """The first SAMPLES samples of `data`, or seeded random values of the model's inputs, and a remark that says so.

    A compiled model (.rknn, .om) tells nothing about its inputs: its data are taken from a .npz as they stand, first axis samples.
    """
    if model.suffix.lower() not in (".onnx", ".pt2"):
        return _as_stored(model, data), ()
    prepared = open_model(model, input_shapes, input_values)
    if data is not None:
        return [dict(b.feeds) for b in islice(open_data(data, prepared, preprocess, SAMPLES).batches(1), SAMPLES)], ()
    rng = np.random.default_rng(0)
    made: list[Mapping[str, Array]] = []
    for _ in range(SAMPLES):
        made.append({name: _random(prepared.network.tensors[name].shape, np.dtype(kind), rng) for name, _, kind in input_specs(prepared)})
    return made, ("inputs are random values: times of networks with data-dependent work (NonMaxSuppression, Loop) need --data",)


def _random(shape: tuple[int, ...], kind: np.dtype[np.generic], rng: np.random.Generator) -> Array:
    """Standard normal values; zeros where the input is not float, since an index must exist."""
    return rng.standard_normal(shape).astype(kind) if kind.kind == "f" else np.zeros(shape, kind)


def _as_stored(model: Path, data: str | None) -> list[Mapping[str, Array]]:
    if data is None or not Path(data).is_file() or Path(data).suffix.lower() != ".npz":
        raise InputError(f"{model.name} is a compiled model, which does not say what it reads: give its inputs with --data FILE.npz "
                         "(keys in the order of the model's inputs, first axis samples)")
    with np.load(data, allow_pickle=False) as stored:
        arrays = {k: stored[k] for k in stored.files if k != "labels"}
    count = min(SAMPLES, min((len(a) for a in arrays.values()), default=0))
    if not count:
        raise InputError(f"{data} holds no sample")
    return [{k: a[i:i + 1] for k, a in arrays.items()} for i in range(count)]
