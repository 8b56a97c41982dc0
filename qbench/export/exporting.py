"""One export from job to folder: files, compilation, read-back, golden outputs, manifest, program for the board."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from qbench import qdq
from qbench.errors import ExportMismatch
from qbench.export.board_script import board_script
from qbench.export.comparing import FLOAT_TOLERANCE, output_steps, reference_outputs
from qbench.export.contents import Difference, Layer, differences
from qbench.export.folder import MANIFEST, replacing_folder
from qbench.export.records import PLAN, QDQ, Exporter, Job, Produced
from qbench.files import sha256
from qbench.protocols import Array, Progress, silent

FORMAT = "qbench-export/1"
GOLDEN = "golden.npz"
RUN = "run.py"
SIMULATION = "inputs and outputs of a simulation, for qbench diagnose"
SHOWN = 20
"""Differences that the error message lists; the manifest has all."""


def export(job: Job, exporter: Exporter, output: Path, progress: Progress = silent) -> dict[str, Any]:
    """The manifest of the folder `output`, which holds the artefacts of `job` and the proof that the plan is in them.

    Raises what `exporter.check` raises; ToolError when the vendor's tool fails; ExportMismatch when the artefact is not the plan, or a
    simulator disagrees: the folder is then kept as "NAME.rejected".
    """
    exporter.check(job)
    with replacing_folder(output) as folder:
        job.plan.save(folder / PLAN)
        qdq.save(job.written.model, folder / QDQ)
        produced = exporter.write(job, folder, progress)
        progress("comparing plan and artefact", 0, 1)
        found = () if produced.actual is None else differences(job.demanded, produced.actual, scale_tolerance=produced.scale_tolerance,
                                                              consent=produced.consent)
        faults = [*map(str, found), *filter(None, (s.fails for s in produced.simulations))]
        body = _manifest(job, exporter, produced, found, folder) | {"accepted": not faults}
        if produced.board_code:
            (folder / RUN).write_text(board_script(produced.board_code), encoding="utf-8")
        body["files"] = _files(folder, produced.artefacts)
        (folder / MANIFEST).write_text(json.dumps(_finite(body), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        if faults:
            rejected = output.with_name(output.name + ".rejected")
            with replacing_folder(rejected) as kept:
                shutil.copytree(folder, kept, dirs_exist_ok=True)
            raise ExportMismatch(_refusal(faults, rejected))
    return body


def _refusal(faults: Sequence[str], rejected: Path) -> str:
    more = [f"... and {len(faults) - SHOWN} more"] if len(faults) > SHOWN else []
    return "\n  ".join([f"what was exported is not the plan: {len(faults)} differences, plan -> actual (kept in {rejected})", *faults[:SHOWN], *more])


def _manifest(job: Job, exporter: Exporter, produced: Produced, found: Sequence[Difference], folder: Path) -> dict[str, Any]:
    from qbench import __version__

    golden = reference_outputs(folder / produced.reference, [job.golden])[0]
    arrays: dict[str, Any] = {f"in:{k}": v for k, v in job.golden.items()} | {f"out:{k}": v for k, v in golden.items()}
    np.savez(folder / GOLDEN, **arrays)
    steps = output_steps(job)
    return {
        "format": FORMAT, "qbench": __version__, "exporter": exporter.name, "target": job.target.name, "toolkit": job.toolkit,
        "model_key": job.plan.model_key, "plan_key": job.plan.key, "layers": job.plan.layers,
        "status": "compiled here" if produced.compiled else "not compiled here", "why_not": produced.why_not,
        "versions": dict(produced.versions), "requires": dict(produced.requires), "conventions": dict(produced.conventions),
        "golden": {"file": GOLDEN, "reference": produced.reference, "random": job.random, "inputs": list(job.golden),
                   "outputs": [{"name": name, "scale": steps.get(name), "tolerance": _tolerance(value, steps.get(name), produced.tolerance_lsb)}
                               for name, value in golden.items()]},
        "read_back": _read_back(job, produced, found),
        "simulations": [asdict(s) for s in produced.simulations],
        "vendor_layers": [dict(row) for row in produced.layers], "facts": dict(produced.facts), "remarks": list(produced.remarks),
    }


def _tolerance(value: Array, scale: float | None, lsb: float) -> float:
    """What run.py allows: steps of the scale, with room for float rounding; a share of the largest magnitude for float outputs."""
    largest = float(np.abs(np.asarray(value, np.float64)).max(initial=0.0))
    return scale * (lsb + 0.01) if scale is not None else FLOAT_TOLERANCE * max(largest, 1e-6)


def _read_back(job: Job, produced: Produced, found: Sequence[Difference]) -> dict[str, Any]:
    """Every layer and tensor that the plan demands, with what the artefact holds."""
    demanded, actual = job.demanded, produced.actual
    if actual is None:
        return {"source": "", "compared": 0, "differences": []}
    rows = []
    wanted: list[tuple[str, str, Any]] = [*(("layer", k, v) for k, v in demanded.layers.items()), *(("tensor", k, v) for k, v in demanded.tensors.items())]
    beside = {k: c.instead for k, c in produced.consent.items() if k not in demanded.layers and k not in demanded.tensors}
    wanted += [("layer" if isinstance(v, Layer) else "tensor", k, "nothing of it") for k, v in beside.items()]
    for kind, key, want in wanted:
        have = (actual.layers if kind == "layer" else actual.tensors).get(key)
        row = {"kind": kind, "name": key, "plan": str(want), "actual": None if have is None else str(have)}
        if key in produced.consent:
            row["consent"] = f"{produced.consent[key].instead}: {produced.consent[key].reason}"
        if key in actual.silent:
            row["silent"] = actual.silent[key]
        rows.append(row)
    told = [r for r in rows if "silent" not in r]
    return {"source": actual.source, "compared": len(told), "announced": sum("consent" in r for r in told), "silent": sum("silent" in r for r in rows),
            "differences": [asdict(d) for d in found], "rows": rows}


def _files(folder: Path, told: Mapping[str, str]) -> list[dict[str, Any]]:
    known = {QDQ: "the Q/DQ model that was evaluated", PLAN: "the plan", GOLDEN: "golden input and output", RUN: "program for the board"} | dict(told)
    told_by = {name: SIMULATION for name in (p.name for p in folder.iterdir()) if name.startswith("simulated-")}
    return [{"file": name, "what": (told_by | known).get(name, ""), "bytes": path.stat().st_size, "sha256": sha256(path)}
            for path in sorted(p for p in folder.rglob("*") if p.is_file()) if (name := path.relative_to(folder).as_posix()) != MANIFEST]


def _finite(x: Any) -> Any:
    """JSON knows no infinity: null."""
    if isinstance(x, Mapping):
        return {k: _finite(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [_finite(v) for v in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
