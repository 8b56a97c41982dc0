"""The result folder: plan.json, model.qdq.onnx, report.html, summary.json; written, read back, and written again on request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import log10
from pathlib import Path
from typing import Any

import onnx_ir as ir

from qbench import qdq
from qbench.calibrators import is_auto
from qbench.corrections import rewritten
from qbench.cost import CostTable
from qbench.coverage import coverage
from qbench.errors import InputError, QbenchError, ToolError
from qbench.evaluation import OnnxEvaluator, first_integer
from qbench.files import write_text
from qbench.network import Precision
from qbench.plan import Plan
from qbench.protocols import Accuracy
from qbench.report import write_report
from qbench.result import SearchResult, result_from_dict
from qbench.statistics import Statistics
from qbench.workbench.case import Case
from qbench.workbench.panels import panels

APART = 0.001
"""Accuracy, in the metric's own unit, by which emulated FP16 rounding may lower a plan before it is a warning."""
SAME = 1e-9
"""The file must score what the search scored: it is the same model on the same machine."""
FLOAT_DB = 115.0
"""Where float32 ends, for the metric in dB: the search starts a candidate from kept float tensors, and the sums of float layers come in another order
(found: 88.40 and 88.34 dB)."""


def finish(result: SearchResult, folder: Path, case: Case, pricer: CostTable, evaluator: OnnxEvaluator, statistics: Statistics) -> SearchResult:
    """Write and verify the chosen plan's files. Returns the result with what the verification found.

    statistics   the plans' ranges come from them: the report draws its worst tensors
    Plans of an earlier, different search in the same folder are removed: plans/ holds those of summary.json.
    """
    mine = {folder / c.plan for c in result.candidates}
    for stale in set((folder / "plans").glob("*.json")) - mine:
        stale.unlink()
    if result.chosen is None:
        _write_summary(result, folder, {"kernels": [], "plan_strip": []})
        return result
    plan = Plan.load(folder / result.chosen.plan)
    plan.save(folder / "plan.json")
    written = qdq.write(case.prepared, plan)
    qdq.save(written.model, folder / "model.qdq.onnx")
    network = rewritten(case.prepared, plan).network
    result = replace(result, coverage=coverage(network, plan).to_dict(), verified=_verify(result, folder, case, plan, evaluator))
    result = replace(result, warnings=(*result.warnings, *_half(result)))
    kernels = [asdict(row) for row in pricer.kernel_table(plan, plan.op_point)]
    specs = sorted({c.calibrator for c in result.candidates if c.calibrator and not is_auto(c.calibrator)})
    more = panels(network, plan, written, pricer, statistics, specs)
    _write_summary(result, folder, {"kernels": kernels, "plan_strip": plan_strip(result, case, plan, kernels), **more})
    return result


def _half(result: SearchResult) -> list[str]:
    """A warning where the FP16 layers, which candidates run in float, do not keep what was promised."""
    assert result.chosen is not None
    emulated, judged = result.verified.get("fp16_emulated"), result.chosen.accuracy.value
    if emulated is None or emulated >= judged - APART:
        return []
    return [(f"with the FP16 rounding of its float layers emulated the chosen plan scores {emulated:.4g}, while candidates, whose FP16 layers run in float, "
             f"were judged by {judged:.4g}: an FP16 layer overflows or loses small values. `qbench analyze` shows which; give it INT16, or rewrite the model")]


def _verify(result: SearchResult, folder: Path, case: Case, plan: Plan, evaluator: OnnxEvaluator) -> dict[str, float]:
    """Accuracy of the file as a stranger would load it, and with FP16 rounding emulated where the plan keeps float."""
    assert result.chosen is not None
    all_float = first_integer(case.network, plan) == len(case.network.kernels)
    written = evaluator.evaluate_model(ir.load(folder / "model.qdq.onnx"))
    found = {"written": written.value}
    if not all_float and abs(written.value - result.chosen.accuracy.value) > _slack(written):
        raise ToolError(f"{folder / 'model.qdq.onnx'} scores {written.value:.6f} when read back, the search measured "
                        f"{result.chosen.accuracy.value:.6f}; do not ship this file, and please report it")
    if Precision.FP16 in plan.precision.values():
        emulated = evaluator.evaluate_model(qdq.write(case.prepared, plan, emulate_fp16=True).model)
        found["fp16_emulated"] = emulated.value
    return found


def _slack(found: Accuracy) -> float:
    """By how much two evaluations of one model may differ."""
    return SAME + (20.0 * log10(1.0 + 10.0 ** ((found.value - FLOAT_DB) / 20.0)) if found.metric.startswith("sqnr") else 0.0)


def plan_strip(result: SearchResult, case: Case, plan: Plan, kernels: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a unit: precision, time, and what lowering it alone to 8 bit cost."""
    ms: dict[str, float] = {}
    for row in kernels:
        ms[row["unit"]] = ms.get(row["unit"], 0.0) + row["ms"]
    drops = {r["unit"]: r["drop"] for r in result.sensitivity if r["precision"] == "int8"}
    return [{"unit": u.name, "precision": str(plan.precision[u.name]), "ms": ms.get(u.name, 0.0), "drop": drops.get(u.name),
             "quantizable": u.quantizable, "reason": u.reason or plan.notes.get(u.name, "")} for u in case.network.units]


def _write_summary(result: SearchResult, folder: Path, tables: Mapping[str, Any]) -> None:
    """kernels.json and summary.json hold all that the report is made of."""
    write_text(folder / "kernels.json", json.dumps(tables, indent=1) + "\n")
    _write_report(result, tables, folder / "report.html")
    write_text(folder / "summary.json", json.dumps(result.to_dict(), indent=1, ensure_ascii=False) + "\n")


def _write_report(result: SearchResult, tables: Mapping[str, Any], path: Path) -> None:
    write_report(result, tables["kernels"], path, tables["plan_strip"], tables.get("memory"), tables.get("stored", ()))


def rewrite_report(folder: Path, output: Path | None = None) -> Path:
    """Write report.html again from the files of the folder. Raises InputError when they are not what a search wrote."""
    path = output or folder / "report.html"
    try:
        result = result_from_dict(json.loads((folder / "summary.json").read_text(encoding="utf-8")))
        _write_report(result, json.loads((folder / "kernels.json").read_text(encoding="utf-8")), path)
    except QbenchError:
        raise
    except Exception as error:
        raise InputError(f"{folder}: summary.json and kernels.json are not both what this version of qbench writes at the end of a search "
                         f"({type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no more is known'}); "
                         "run the search again") from error
    return path
