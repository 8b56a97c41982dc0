"""The same search at several sizes of the picture: a smaller picture may buy more than fewer bits.

Every size has its own float model, and a search of its own against it. What a plan loses in all is what the size loses (float at that size
against float at the first one, on the same samples) and what its integers lose; their errors are joined as if independent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from qbench.data import parse_preprocessing
from qbench.errors import InputError
from qbench.evaluation import OnnxEvaluator
from qbench.files import write_text
from qbench.metrics.intervals import paired_drop
from qbench.protocols import Progress, silent
from qbench.result import SearchResult
from qbench.search.budget import MaxDrop
from qbench.search.choice import LARGEST_TIE, SMALLEST_TIE
from qbench.workbench.case import Case, Shapes, open_case
from qbench.workbench.jobs import SearchJob, run_search

Size = tuple[int, int]


@dataclass(frozen=True)
class AtSize:
    """What one size came to.

    float_drop          what the float model loses by the size; 0 for the first
    drop, drop_low, drop_high   of the chosen plan against float at the first size, in the metric's own unit
    why_not             why nothing was searched, or why nothing was found; "" otherwise
    """

    size: str
    float_drop: float
    drop: float = math.nan
    drop_low: float = math.nan
    drop_high: float = math.nan
    latency_ms: float = math.nan
    energy_mj: float = math.nan
    sure: bool = False
    folder: str = ""
    why_not: str = ""


@dataclass(frozen=True)
class Resolutions:
    """rows   one a size, in the order asked for
    chosen   index of the row to ship; None when no size keeps the limits
    results  of the searches that ran, by size
    """

    rows: tuple[AtSize, ...]
    chosen: int | None
    results: Mapping[str, SearchResult]

    @property
    def partial(self) -> bool:
        """True when one of the searches was interrupted; the sizes behind it were not searched."""
        return any(r.partial for r in self.results.values())

    def to_dict(self) -> dict[str, Any]:
        rows = [{k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(r).items()} for r in self.rows]
        return {"resolutions": rows, "chosen": None if self.chosen is None else self.rows[self.chosen].size,
                "searches": {size: r.to_dict() for size, r in self.results.items()}}


def parse_size(text: str) -> Size:
    """"192x256" -> (192, 256), height first. Raises InputError."""
    height, _, width = text.partition("x")
    if not (height.isdigit() and width.isdigit() and int(height) and int(width)):
        raise InputError(f"--resolution {text!r}: expected HEIGHTxWIDTH in pixels, e.g. 192x192")
    return int(height), int(width)


def case_at(size: Size, model: Path | None, data: str | None, eval_data: str | None, *, preprocess: str | None, input_shapes: Shapes | None = None,
            **more: Any) -> Case:
    """The case with its picture at another size. Raises InputError where pictures or model cannot take one."""
    if model is None or preprocess is None:
        raise InputError("--resolution is for a model of your own that reads pictures: give --model, a folder of pictures, and --preprocess")
    name, shape = _picture(model, input_shapes or {})
    pictures = parse_preprocessing(preprocess)
    at = (*shape[:2], *size) if pictures.layout == "nchw" else (shape[0], *size, shape[3])
    return open_case(model, data, eval_data, preprocess=replace(pictures, size=size).text, input_shapes={**(input_shapes or {}), name: at}, **more)


def _picture(model: Path, given: Shapes) -> tuple[str, tuple[int, ...]]:
    """Name and shape of the one input with four axes, open ones as given or 1. Raises InputError when its size is fixed."""
    if model.suffix != ".onnx":
        raise InputError(f"--resolution: {model} is no ONNX file; export it as one with open height and width")
    inputs = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in onnx.load(model, load_external_data=False).graph.input}
    four = [n for n, dims in inputs.items() if len(dims) == 4]
    if len(four) != 1:
        raise InputError(f"--resolution: the model has {len(four)} inputs with four axes; it must read one picture")
    dims = inputs[four[0]]
    if all(dims[2:]) and all(dims[1:3]):
        raise InputError(f"--resolution: the model fixes its input {four[0]!r} at {'x'.join(map(str, dims))}: export it with open height and width")
    return four[0], tuple(d or 1 for d in given.get(four[0], dims))


def search_resolutions(jobs: Mapping[Size, SearchJob], progress: Progress = silent) -> Resolutions:
    """One search for each size, in folders of their own below the first job's, and which of them to ship.

    Sizes whose float model loses more than --max-drop allows are left out; for the others the search gets what remains of it.
    Raises InputError for limits that cannot be shared out like that.
    """
    reference = next(iter(jobs.values()))
    _refuse(reference)
    folder = reference.folder
    rows: list[AtSize] = []
    results: dict[str, SearchResult] = {}
    first = _evaluator(reference, progress)
    allowed = None if reference.max_drop is None else MaxDrop.parse(reference.max_drop)
    for size, job in jobs.items():
        text, out = f"{size[0]}x{size[1]}", folder / f"{size[0]}x{size[1]}"
        lost, low, high = 0.0, 0.0, 0.0
        if job is not reference:
            lost, low, high = paired_drop(job.case.metric, first.rows, _evaluator(job, progress).rows, job.seed)
        if allowed is not None:
            left = allowed.allowed(first.reference().value) - lost
            if left < 0.0:
                rows.append(AtSize(text, lost, why_not=f"float alone loses {lost:.4g} at this size, more than --max-drop {allowed.text}"))
                continue
            job = replace(job, max_drop=replace(allowed, limit=left, relative=False).text)
        found = results[text] = run_search(replace(job, out=out), progress)
        rows.append(_row(text, out, found, (lost, low, high)))
        if found.partial:
            break
    chosen = _choose(rows)
    answer = Resolutions(tuple(rows), chosen, results)
    write_text(folder / "resolutions.json", json.dumps({k: v for k, v in answer.to_dict().items() if k != "searches"}, indent=1) + "\n")
    return answer


def _evaluator(job: SearchJob, progress: Progress) -> OnnxEvaluator:
    return OnnxEvaluator(job.case.prepared, job.case.evaluation, job.case.metric, seed=job.seed, policy=job.policy, progress=progress)


def _row(size: str, out: Path, found: SearchResult, lost: tuple[float, float, float]) -> AtSize:
    if not found.feasible or found.chosen is None:
        return AtSize(size, lost[0], folder=str(out), why_not=f"no plan keeps {', '.join(found.budgets) or 'the limits'}")
    a, p = found.chosen.accuracy, found.chosen.price
    down, up = math.hypot(a.drop - a.drop_low, lost[0] - lost[1]), math.hypot(a.drop_high - a.drop, lost[2] - lost[0])
    total = a.drop + lost[0]
    return AtSize(size, lost[0], total, total - down, total + up, p.latency_ms, p.energy_mj, found.chosen.sure, str(out))


def _choose(rows: Sequence[AtSize]) -> int | None:
    """As among plans: the most frugal size among those that lose no more than the best one and its error."""
    known = [i for i, r in enumerate(rows) if math.isfinite(r.drop)]
    if not known:
        return None
    best = rows[min(known, key=lambda i: rows[i].drop)]
    error = (best.drop_high - best.drop_low) / 4
    most = max(best.drop, 0.0) + min(max(error if math.isfinite(error) else 0.0, SMALLEST_TIE), LARGEST_TIE)
    return min((i for i in known if rows[i].drop <= most or rows[i] is best), key=lambda i: (not rows[i].sure, rows[i].energy_mj, rows[i].latency_ms))


def _refuse(job: SearchJob) -> None:
    if job.preset is not None or job.max_class_drop is not None:
        raise InputError("--resolution with --preset or --max-class-drop: their floors cannot be shared out between size and integers; give --budget and --max-drop")
    if job.storage is not None:
        raise InputError("--resolution with --storage: each size keeps its own study in its folder; leave --storage out")
