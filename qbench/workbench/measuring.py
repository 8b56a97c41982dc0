"""What `qbench measure` does: one model file on one board, and again where the first answer should not be believed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import onnx_ir as ir

from qbench.board import Board, Measurement, Request
from qbench.data.arrays import load_npz
from qbench.errors import InputError
from qbench.graph import load_network
from qbench.graph.load import read
from qbench.graph.quantized import is_quantized
from qbench.modelfiles import refuse_overwriting
from qbench.protocols import Array, Progress, silent
from qbench.targets.boards import open_board
from qbench.targets.boards.meter import metered
from qbench.versions import check_versions
from qbench.workbench.case import Shapes, Values, input_specs, open_data

SAMPLES = 4
"""Inputs that are sent to the board, in turn: one alone may sit in caches, or be unlike the others."""
TRIES = 3


def measure(model: Path, board: str, data: str | None = None, *, request: Request | None = None, preprocess: str | None = None,
            input_shapes: Shapes | None = None, input_values: Values | None = None, out: Path | None = None, tries: int = TRIES,
            manifest: Path | None = None, power_meter: str = "", progress: Progress = silent) -> tuple[Measurement, tuple[str, ...]]:
    """The measurement and remarks on it; written to `out` where one is named.

    data    samples to run on; without them values are drawn at random, which an ONNX model allows
    tries   measurements at most, until one is stable; the steadiest is kept
    manifest   of an export: the board is refused, before anything runs, when it lacks what the artefact needs
    power_meter   an external meter, see `qbench.targets.boards.meter`; "": the board's own, where it has one
    Raises InputError for a model that is not there, ToolError when the board or the meter fails or is refused.
    """
    if not model.is_file():
        raise InputError(f"{model} does not exist")
    if out is not None:
        refuse_overwriting(out, model=model, data=data, manifest=manifest)
    there = metered(open_board(board), power_meter) if power_meter else open_board(board)
    if manifest is not None:
        refuse_versions(manifest, there)
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


def refuse_versions(manifest: Path, board: Board) -> None:
    """Raises ToolError that names both sides when the board's runtime or driver is not what the manifest asks for (BUG case B27), InputError
    for a file that is no manifest."""
    try:
        requires = json.loads(manifest.read_text(encoding="utf-8"))["requires"]
        needs = {str(what): str(wanted) for what, wanted in requires.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{manifest} is no manifest of an export with a `requires` table ({type(error).__name__}: {error}); `qbench export` writes manifest.json") from error
    try:
        check_versions(needs, versions(board.facts()), board.url)
    except ValueError as error:
        raise InputError(f"{manifest}: requires: {error}") from error


def versions(facts: Mapping[str, str]) -> dict[str, str]:
    """What a manifest may ask for, from a board's facts: "onnxruntime 1.22.0" is runtime 1.22.0 and onnxruntime 1.22.0.

    Behind rknnlite it is librknnrt that reads the model, so that is the runtime where the board shows it.
    """
    found = {what: number for what, text in facts.items() if (number := _number(text))}
    name = facts.get("runtime", "").partition(" ")[0]
    if "runtime" in found:
        found[name] = found["runtime"]
    if name == "rknnlite" and "librknnrt" in found:
        found["runtime"] = found["librknnrt"]
    if "npu_driver" in found:
        found["driver"] = found["npu_driver"]
    return found


def _number(text: str) -> str:
    """The first version in a text, "" without one."""
    match = re.search(r"\d+(?:\.\d+)+", text)
    return match[0] if match else ""


def samples(model: Path, data: str | None, preprocess: str | None = None, input_shapes: Shapes | None = None,
            input_values: Values | None = None) -> tuple[list[Mapping[str, Array]], tuple[str, ...]]:
    """The first SAMPLES samples of `data`, or seeded random values of the model's inputs, and a remark that says so.

    A compiled model (.rknn, .om) tells nothing about its inputs: its data are taken from a .npz as they stand, first axis samples.
    """
    if model.suffix.lower() not in (".onnx", ".pt2"):
        return _as_stored(model, data), ()
    stored, name, _ = read(model)
    prepared = load_network(_inputs_alone(stored, name) if any(map(is_quantized, stored.graph)) else model, input_shapes, input_values)
    if data is not None:
        return [dict(b.feeds) for b in islice(open_data(data, prepared, preprocess, SAMPLES).batches(1), SAMPLES)], ()
    rng = np.random.default_rng(0)
    made: list[Mapping[str, Array]] = []
    for _ in range(SAMPLES):
        made.append({name: _random(prepared.network.tensors[name].shape, np.dtype(kind), rng) for name, _, kind in input_specs(prepared)})
    return made, ("inputs are random values: times of networks with data-dependent work (NonMaxSuppression, Loop) need --data",)


def _inputs_alone(model: ir.Model, name: str) -> ir.Model:
    """The inputs of a quantized model, which `load_network` refuses and a board runs as it stands: each read once, nothing else."""
    graph = ir.Graph([ir.Value(name=v.name, shape=v.shape, type=v.type) for v in model.graph.inputs], [], nodes=[], opset_imports=model.graph.opset_imports, name=name)
    for value in graph.inputs:
        node = ir.node("Identity", [value])
        node.outputs[0].name, node.outputs[0].shape, node.outputs[0].type = f"{value.name}_read", value.shape, value.type
        graph.append(node)
        graph.outputs.append(node.outputs[0])
    return ir.Model(graph, ir_version=model.ir_version)


def _random(shape: tuple[int, ...], kind: np.dtype[np.generic], rng: np.random.Generator) -> Array:
    """Standard normal values; zeros where the input is not float, since an index must exist."""
    return rng.standard_normal(shape).astype(kind) if kind.kind == "f" else np.zeros(shape, kind)


def _as_stored(model: Path, data: str | None) -> list[Mapping[str, Array]]:
    if data is None or not Path(data).is_file() or Path(data).suffix.lower() != ".npz":
        raise InputError(f"{model.name} is a compiled model, which does not say what it reads: give its inputs with --data FILE.npz "
                         "(keys in the order of the model's inputs, first axis samples)")
    arrays = {k: v for k, v in load_npz(Path(data)).items() if k != "labels" and v.ndim}
    count = min(SAMPLES, min((len(a) for a in arrays.values()), default=0))
    if not count:
        raise InputError(f"{data} holds no sample")
    return [{k: a[i:i + 1] for k, a in arrays.items()} for i in range(count)]
