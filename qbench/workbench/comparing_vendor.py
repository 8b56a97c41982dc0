"""`qbench compare --with rknn`: the vendor's own quantization beside ours, both in the vendor's simulator."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from qbench import qdq, toolchains
from qbench.comparison import VendorRow
from qbench.corrections import rewritten
from qbench.errors import InputError, QbenchError
from qbench.export import Job, planned
from qbench.metrics import interval
from qbench.plan import Plan
from qbench.protocols import Array, Batch, Progress, silent
from qbench.target import Target
from qbench.workbench.case import Case
from qbench.workbench.placing import placed

OURS = "qbench"
WITH = ("rknn",)
CALIBRATED, JUDGED = 64, 64
"""Samples at most: mmse takes a minute for eight, and a simulator is no processor."""


def vendor_rows(vendor: str, case: Case, target: Target, toolkit: str, plans: Mapping[str, Plan], folder: Path, progress: Progress = silent,
                algorithms: Sequence[str] = ()) -> tuple[VendorRow, ...]:
    """Every algorithm of the vendor's toolkit and every plan of ours on the same calibration and evaluation samples; first ours.

    plans       name -> plan; algorithms   of the vendor; none: all; folder   for what the toolkit leaves, removed in the end
    Raises InputError for a vendor that is not known or does not serve the target, ToolchainMissing. A build that fails is a row that says why.
    """
    from qbench.targets.exporters.rknn_vendor import ALGORITHMS, plan_build, vendor_build

    check_vendor(vendor, target)
    calibration = [dict(b.feeds) for b in islice(case.calibration.batches(1), CALIBRATED)]
    judged = list(islice(case.evaluation.batches(1), JUDGED))
    samples = tuple(dict(b.feeds) for b in judged)
    reference = _float_outputs(case, samples)
    name = f"{toolchains.load(vendor).package} {toolchains.load(vendor).version}"
    asked = tuple(algorithms or ALGORITHMS)
    shutil.rmtree(folder, ignore_errors=True)
    rows: list[VendorRow] = []
    try:
        for number, (label, plan) in enumerate(plans.items()):
            progress(f"{name}: our plans", number, len(plans))
            rows.append(_row(OURS, label, case, judged, reference, lambda place, plan=plan: plan_build(_job(case, plan, target, toolkit, samples), place), folder / f"plan{number}"))
        for number, algorithm in enumerate(asked):
            progress(f"{name}: {algorithm}", number, len(asked))
            rows.append(_row(name, algorithm, case, judged, reference,
                             lambda place, how=algorithm: vendor_build(case.prepared, target.name, how, calibration, samples, place), folder / algorithm))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return tuple(rows)


def check_vendor(vendor: str, target: Target) -> None:
    """Raises InputError for a vendor that is not known or does not serve the target, ToolchainMissing with the line that gets it."""
    from qbench.targets.exporters import for_target

    if vendor not in WITH:
        raise InputError(f"--with {vendor}: there is {', '.join(WITH)}")
    if vendor not in for_target(target.name):
        raise InputError(f"--with {vendor}: it does not compile for {target.name}; give --target rk3588, rk3576, rk3566 or rk3562")
    toolchains.need(vendor)


def _job(case: Case, plan: Plan, target: Target, toolkit: str, samples: tuple[dict[str, Array], ...]) -> Job:
    written = qdq.write(case.prepared, plan)
    prepared = rewritten(case.prepared, plan)
    here = placed(target, prepared, toolkit)
    return Job(prepared, plan, written, planned(prepared, plan, written, here), here, toolkit, samples, False, {})


def _float_outputs(case: Case, samples: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
    import onnx_ir as ir

    from qbench.runtime import Session

    session = Session(ir.to_proto(case.prepared.model).SerializeToString())
    return [session.run(s) for s in samples]


def _row(maker: str, name: str, case: Case, judged: Sequence[Batch], reference: Sequence[Mapping[str, Array]], build: Any, place: Path) -> VendorRow:
    try:
        made = build(place)
    except QbenchError as error:
        return VendorRow(maker, name, refused=str(error))
    rows, noise, signal = [], 0.0, 0.0
    for batch, want, got in zip(judged, reference, made.outputs, strict=True):
        shaped = {k: np.asarray(got[k], np.float32).reshape(v.shape) for k, v in want.items()}
        rows.append(case.metric.statistics(shaped, batch.labels, want))
        for key, wanted in want.items():
            a, b = wanted.astype(np.float64), shaped[key].astype(np.float64)
            signal, noise = signal + float((a * a).sum()), noise + float(((a - b) ** 2).sum())
    accuracy, low, high = interval(case.metric, np.concatenate(rows))
    sqnr = float("inf") if noise == 0.0 else float(10.0 * np.log10(max(signal, 1e-300) / noise)) if np.isfinite(noise) else float("-inf")
    return VendorRow(maker, name, case.metric.name, accuracy, low, high, len(judged), sqnr, made.cycles, made.weight_kb, made.seconds, made.on_cpu, made.layers)
