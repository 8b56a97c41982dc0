"""Cases for comparisons: small networks with a fault put in on purpose, and data for them."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from html_page import Page
from models import Array, model, node, prepare

from qbench import targets
from qbench.data import ArrayDataset
from qbench.graph import PreparedModel
from qbench.metrics import make
from qbench.network import Precision
from qbench.samples import load_sample
from qbench.statistics import Statistics
from qbench.workbench.case import Case
from qbench.workbench.plans import Plans, schemes_of, statistics_of
from qbench.workbench.precisions import allowed_precisions

HOSTILE = "</script><img src=x onerror=1>"


def chain(big: float = 1.0, odd: float = 1.0, name: str = "wide", seed: int = 0) -> PreparedModel:
    """first -> `name` -> third -> last, convolutions with Relu between them; the batch axis is free.

    big   the output of `name` is that many times as large as the others, and `third` makes up for it
    odd   one output channel of "first" has weights that many times as large, and what reads it makes up for it
    """
    rng = np.random.default_rng(seed)
    w = {k: rng.normal(0, s, shape).astype(np.float32) for k, shape, s in (
        ("w0", (8, 3, 3, 3), 0.3), ("w1", (8, 8, 3, 3), 0.15), ("w2", (8, 8, 3, 3), 0.15), ("w3", (5, 8, 1, 1), 0.4))}
    w["w0"][0] *= odd
    w["w1"][:, 0] /= odd
    w["w1"] *= big
    w["w2"] /= big
    nodes = [node("Conv", ["x", "w0"], ["a"], "first"), node("Relu", ["a"], ["ar"], "relu0"), node("Conv", ["ar", "w1"], ["b"], name),
             node("Relu", ["b"], ["br"], "relu1"), node("Conv", ["br", "w2"], ["c"], "third"), node("Relu", ["c"], ["cr"], "relu2"),
             node("Conv", ["cr", "w3"], ["y"], "last")]
    return prepare(model(nodes, {"x": ["N", 3, 12, 12]}, {"y": ["N", 5, 6, 6]}, w))


def pictures(count: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).normal(size=(count, 3, 12, 12)).astype(np.float32)


def case_of(prepared: PreparedModel, metric: str = "sqnr", calibration: int = 16, evaluation: int = 32) -> Case:
    learned, judged = ArrayDataset({"x": pictures(calibration)}, None, "calibration"), ArrayDataset({"x": pictures(evaluation, 2)}, None, "evaluation")
    return Case(prepared, learned, judged, make(metric))


@dataclass(frozen=True)
class Ready:
    """What a choice of calibrators needs, for INT8 on the RK3588."""

    prepared: PreparedModel
    statistics: Statistics
    plans: Plans
    precision: dict[str, Precision]


def ready(prepared: PreparedModel, feeds: dict[str, Array]) -> Ready:
    target = targets.load("rk3588")
    statistics = statistics_of(prepared, ArrayDataset(feeds))
    allowed, _ = allowed_precisions(prepared.network, statistics, target, None)
    precision = {u: Precision.INT8 if Precision.INT8 in options else Precision.FP16 for u, options in allowed.items()}
    return Ready(prepared, statistics, Plans(prepared.network, statistics, schemes_of(target, None)), precision)


def page_of(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Said:
    """What a command printed."""

    stdout: str
    stderr: str


def qbench(*arguments: object, cwd: Path, code: int = 0) -> Said:
    """The command line without a process of its own, which would spend its time on imports."""
    from qbench.cli import main

    out, err, before, found = io.StringIO(), io.StringIO(), Path.cwd(), 0
    os.chdir(cwd)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main([str(a) for a in arguments])
    except SystemExit as end:
        found = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    finally:
        os.chdir(before)
    assert found == code, f"{arguments}: exit {found}\n{out.getvalue()}\n{err.getvalue()}"
    return Said(out.getvalue(), err.getvalue())


def fashion_folder(path: Path) -> Path:
    """The fashion network as a user's: 40 samples to calibrate, 120 to judge by."""
    sample = load_sample("fashion")
    (path / "net.onnx").write_bytes(sample.model.read_bytes())
    for name, data, count in (("calibration", sample.calibration, 40), ("evaluation", sample.evaluation, 120)):
        batch = next(iter(data.batches(count)))
        arrays = dict(batch.feeds) | ({} if batch.labels is None else {"labels": batch.labels})
        np.savez(path / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    return path


def tried(gap: Any, kind: str) -> list[Any]:
    return [c for c in gap.checks if c.kind == kind]
