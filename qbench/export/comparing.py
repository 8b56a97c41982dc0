"""A simulator's outputs against onnxruntime's, in steps of the outputs' scales."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite, log10
from pathlib import Path
from typing import Any

import numpy as np

from qbench import qdq
from qbench.export.contents import StoredTensor
from qbench.export.records import Job, Simulated
from qbench.protocols import Array

FLOAT_TOLERANCE = 0.01
"""Of the largest magnitude, for outputs that are no integers: FP16 sums of a few hundred layers stay within it."""

SATURATED_SQNR_DB = 20.0
NOT_RELATED_DB = 0.0
ROUNDED_ELSEWHERE_DB = 3.0
"""What was compiled may lie that much further from the float network than the plan's Q/DQ model does."""


def reference_outputs(model: Path, samples: Sequence[Mapping[str, Array]]) -> tuple[dict[str, Array], ...]:
    """Outputs of a Q/DQ file in onnxruntime, run as written: the same on every machine."""
    from qbench.runtime import Session

    session = Session(model, simulate=True)
    return tuple(session.run(s) for s in samples)


def output_steps(job: Job) -> dict[str, float]:
    """Output -> scale of its codes, for the outputs that are stored as integers."""
    found: dict[str, float] = {}
    for name in job.prepared.network.outputs:
        stored: StoredTensor | None = job.demanded.tensors.get(f"{name}:int8") or job.demanded.tensors.get(f"{name}:int16")
        if stored is not None and name in job.prepared.network.producer and not job.plan.precision[_unit(job, name)].is_float:
            found[name] = stored.scale[0]
    return found


def _unit(job: Job, tensor: str) -> str:
    network = job.prepared.network
    return network.unit_of_kernel[network.producer[tensor]]


def simulated(job: Job, what: str, reference: Path, outputs: Sequence[Mapping[str, Array]], *, limit_lsb: float | None = None,
              least_sqnr_db: float | None = None, note: str = "", by_vendor: bool = True) -> Simulated:
    """The simulator's `outputs` of the job's samples against onnxruntime on the file `reference`, run as written.

    by_vendor   the outputs are kept for `qbench diagnose`; False where onnxruntime itself made them, which proves nothing about the vendor's tool
    limit_lsb   is widened by twice what separates onnxruntime's own two ways, as written and with integer kernels: in deep networks sums that
                fall on a rounding tie go either way, and travel on. That says little where they lie far apart, so the outputs must then lie as near
                to the float network as the plan's Q/DQ model does. Where this CPU's integer kernels saturate, no limit in steps can be known
    """
    steps = output_steps(job)
    if by_vendor:
        keep(job, what, reference.parent, outputs)
    wanted = reference_outputs(reference, job.samples)
    lsb, sqnr = _apart(wanted, outputs, steps)
    if limit_lsb is not None and steps and lsb > limit_lsb:
        spread = _spread(job, reference, wanted, steps)
        if spread is None:
            limit_lsb, least_sqnr_db, note = None, SATURATED_SQNR_DB, "this CPU's integer kernels saturate: steps cannot be judged"
        elif spread:
            near, figures = _as_near_to_float(job, outputs, wanted)
            limit_lsb, note = limit_lsb + 2 * spread if near else limit_lsb, f"onnxruntime's own two ways lie {spread:.3g} steps apart on this network; {figures}"
    return Simulated(what, round(lsb, 3) if steps else None, sqnr, limit_lsb, least_sqnr_db, note)


def judged_by_float(job: Job, found: Simulated, reference: Path, outputs: Sequence[Mapping[str, Array]], why: str) -> Simulated:
    """`found`, without its limits where it fails although the simulator's `outputs` lie as near to the float network as the plan's Q/DQ model does.

    Two networks that are both coarse lie far apart wherever they round differently. why   they do, in words
    """
    if not found.fails or not found.sqnr_db > NOT_RELATED_DB:
        return found
    near, figures = _as_near_to_float(job, outputs, reference_outputs(reference, job.samples))
    note = f"{figures}: {why}"
    return replace(found, limit_lsb=None, least_sqnr_db=None, note=note) if near else replace(found, note=note)


def _as_near_to_float(job: Job, outputs: Sequence[Mapping[str, Array]], planned: Sequence[Mapping[str, Array]]) -> tuple[bool, str]:
    """Whether `outputs` lie as near to the float network as those of the plan's Q/DQ model, and both distances in words."""
    from qbench.runtime import Session

    session = Session(qdq.to_bytes(job.prepared.model))
    wanted = [session.run(s) for s in job.samples]
    theirs, plan = nearness(wanted, outputs), nearness(wanted, planned)
    return theirs > plan - ROUNDED_ELSEWHERE_DB, f"{theirs:.1f} dB from the float network, the plan's Q/DQ model {plan:.1f} dB"


def nearness(wanted: Sequence[Mapping[str, Array]], got: Sequence[Mapping[str, Array]]) -> float:
    """SQNR in dB over all samples and outputs."""
    pairs = [(np.asarray(a, np.float64).ravel(), np.asarray(g[name], np.float64).ravel()) for w, g in zip(wanted, got, strict=True) for name, a in w.items()]
    noise, signal = sum(float(((a - b) ** 2).sum()) for a, b in pairs), sum(float((a * a).sum()) for a, _ in pairs)
    return inf if noise == 0.0 else 10.0 * log10(signal / noise) if signal and isfinite(noise) else -inf


def keep(job: Job, what: str, folder: Path, outputs: Sequence[Mapping[str, Array]]) -> None:
    """Writes the simulator's outputs and their inputs beside the artefact, first axis samples: `qbench diagnose` holds the board against them."""
    name = re.sub(r"[^a-z0-9]+", "-", what.lower()).strip("-")
    arrays: dict[str, Any] = {}
    for sign, rows in (("in", job.samples), ("out", outputs)):
        for key, first in rows[0].items():
            arrays[f"{sign}:{key}"] = (np.concatenate if np.shape(first)[:1] == (1,) else np.stack)([np.asarray(r[key]) for r in rows])
    np.savez(folder / f"simulated-{name}.npz", **arrays)


def _apart(wanted: Sequence[Mapping[str, Array]], outputs: Sequence[Mapping[str, Array]], steps: Mapping[str, float]) -> tuple[float, float]:
    """Largest difference in steps of any output that has them, and the SQNR of the worst sample."""
    lsb, sqnr = 0.0, inf
    for want, got in zip(wanted, outputs, strict=True):
        signal = noise = 0.0
        for name, expected in want.items():
            a, b = np.asarray(expected, np.float64), np.asarray(got[name], np.float64).reshape(expected.shape)
            error = np.where(np.isfinite(b), b - a, np.inf)
            if name in steps:
                lsb = max(lsb, float(np.abs(error).max(initial=0.0)) / steps[name])
            signal, noise = signal + float((a * a).sum()), noise + float((error * error).sum())
        if noise > 0.0:
            sqnr = min(sqnr, 10.0 * float(np.log10(max(signal, np.finfo(np.float64).tiny) / noise)) if np.isfinite(noise) else -inf)
    return lsb, sqnr


def _spread(job: Job, reference: Path, written: Sequence[Mapping[str, Array]], steps: Mapping[str, float]) -> float | None:
    """Steps between onnxruntime's outputs as written and with integer kernels; None where the latter are wrong on this CPU."""
    from qbench.runtime import Session, integer_kernels_saturate

    if integer_kernels_saturate():
        return None
    session = Session(reference)
    return _apart(written, [session.run(s) for s in job.samples], steps)[0]
