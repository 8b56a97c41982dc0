"""What a search hands back: `summary.json`, the terminal table and the report are three views of this record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from math import isfinite
from typing import Any

from qbench.board import Measurement
from qbench.protocols import Accuracy, ClassAccuracy, Price
from qbench.warning_codes import code_of


@dataclass(frozen=True, slots=True)
class Candidate:
    """One evaluated plan.

    name      "float", "int8", "fp16", "c017": unique in its search
    origin    where it came from: "reference", "uniform", "milp", "nsga2", "polish" ...
    plan      path of its plan.json relative to the result folder; "" for the float reference
    layers    units per precision
    feasible  meets every budget with its predicted mean; `sure` also with the upper end of the interval. Where a board measured it, by that
    corrections   what the search chose beside the default steps, as a spec; "" for nothing
    measured  what a board said; `price` stays a prediction
    """

    name: str
    origin: str
    plan: str
    plan_key: str
    calibrator: str
    granularity: str
    layers: Mapping[str, int]
    accuracy: Accuracy
    price: Price
    feasible: bool
    sure: bool
    measured: Measurement | None = None
    corrections: str = ""


@dataclass(frozen=True, slots=True)
class Binding:
    """Why no plan meets the budgets: the budget that binds, the best that is possible, and what each relaxation buys."""

    budget: str
    possible: str
    relaxations: tuple[str, ...] = ()


@dataclass(frozen=True)
class SearchResult:
    """See DESIGN: the fields of `qbench search --json`."""

    feasible: bool
    binding: Binding | None
    budgets: tuple[str, ...]
    sample: bool
    evaluated: int
    float_pass_equivalents: float
    wall_s: float
    reference: Candidate
    uniform: Mapping[str, Candidate]
    chosen: Candidate | None           # the nearest plan when not feasible
    front: tuple[Candidate, ...]
    candidates: tuple[Candidate, ...]  # everything evaluated, in order
    sensitivity: tuple[Mapping[str, Any], ...]   # one row per unit and precision: unit, precision, drop, drop_low, drop_high, ms_saved
    target: str
    toolkit: str
    model: str
    provenance: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    mlflow: Mapping[str, str] = field(default_factory=dict)
    partial: bool = False              # stopped by the user before it was done
    unsure: tuple[str, ...] = ()
    """Limits that the chosen plan meets, but not with the unfavourable end of its interval."""
    coverage: Mapping[str, Any] = field(default_factory=dict)
    """Every operator under the chosen plan, its precision and the reason, shares of work: `qbench.coverage.Coverage.to_dict`."""
    preset: Mapping[str, Any] = field(default_factory=dict)
    """Of a search under a preset: `name`, `title` and `derivation`, the lines that lead from the product to the limits."""
    verified: Mapping[str, float] = field(default_factory=dict)
    """Accuracy of the written file, read back: `written`; with the FP16 rounding of its float units emulated: `fp16_emulated`."""

    @staticmethod
    def candidate_json(c: Candidate) -> dict[str, Any]:
        a, p = c.accuracy, c.price
        return {
            "name": c.name, "origin": c.origin, "plan": c.plan, "plan_key": c.plan_key, "calibrator": c.calibrator,
            "granularity": c.granularity, "corrections": c.corrections, "layers": dict(c.layers),
            "accuracy": a.value, "accuracy_low": a.low, "accuracy_high": a.high, "metric": a.metric, "samples": a.samples,
            "drop": a.drop, "drop_low": a.drop_low, "drop_high": a.drop_high,
            "classes": [asdict(k) for k in a.classes],
            "sqnr_db": a.sqnr_db, "cosine": a.cosine, "kl": a.kl,
            "latency_ms": p.latency_ms, "latency_ms_low": p.latency_ms_low, "latency_ms_high": p.latency_ms_high,
            "power_w": p.power_w, "energy_mj": p.energy_mj, "peak_memory_bytes": p.peak_memory_bytes, "op_point": p.op_point,
            "feasible": c.feasible, "sure": c.sure, "measured": c.measured.to_dict() if c.measured else None,
        }

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        shown: str = import_module("qbench.report.notebook").search(self)     # by name: the report knows this module, not the other way round
        return shown

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; non-finite numbers become null."""
        one = self.candidate_json
        body: dict[str, Any] = {
            "feasible": self.feasible, "binding": asdict(self.binding) if self.binding else None,
            "budgets": list(self.budgets), "sample": self.sample, "evaluated": self.evaluated,
            "float_pass_equivalents": self.float_pass_equivalents, "wall_s": self.wall_s, "partial": self.partial,
            "target": self.target, "toolkit": self.toolkit, "model": self.model,
            "reference": one(self.reference), "uniform": {k: one(v) for k, v in self.uniform.items()},
            "chosen": one(self.chosen) if self.chosen else None, "front": [one(c) for c in self.front],
            "candidates": [one(c) for c in self.candidates], "sensitivity": [dict(r) for r in self.sensitivity],
            "provenance": dict(self.provenance), "warnings": list(self.warnings), "warning_codes": [code_of(w) for w in self.warnings], "mlflow": dict(self.mlflow),
            "coverage": dict(self.coverage), "preset": dict(self.preset), "verified": dict(self.verified), "unsure": list(self.unsure),
        }
        return _finite(body)  # type: ignore[no-any-return]


def result_from_dict(body: Mapping[str, Any]) -> SearchResult:
    """The inverse of `SearchResult.to_dict`: what summary.json holds. Wall times of single evaluations are not kept there."""
    binding = body["binding"]
    return SearchResult(
        feasible=body["feasible"], binding=Binding(binding["budget"], binding["possible"], tuple(binding["relaxations"])) if binding else None,
        budgets=tuple(body["budgets"]), sample=body["sample"], evaluated=body["evaluated"], float_pass_equivalents=body["float_pass_equivalents"],
        wall_s=body["wall_s"], reference=_candidate(body["reference"]), uniform={k: _candidate(v) for k, v in body["uniform"].items()},
        chosen=_candidate(body["chosen"]) if body["chosen"] else None, front=tuple(map(_candidate, body["front"])),
        candidates=tuple(map(_candidate, body["candidates"])), sensitivity=tuple(body["sensitivity"]), target=body["target"], toolkit=body["toolkit"],
        model=body["model"], provenance=body["provenance"], warnings=tuple(body["warnings"]), mlflow=body["mlflow"], partial=body["partial"],
        coverage=body.get("coverage", {}), preset=body.get("preset", {}), verified=body["verified"], unsure=tuple(body["unsure"]))


def _candidate(c: Mapping[str, Any]) -> Candidate:
    def number(name: str) -> float:
        return float("nan") if c[name] is None else float(c[name])

    sqnr = float("inf") if c["sqnr_db"] is None else float(c["sqnr_db"])
    accuracy = Accuracy(c["metric"], number("accuracy"), number("accuracy_low"), number("accuracy_high"), c["samples"], number("drop"),
                        number("drop_low"), number("drop_high"), sqnr, number("cosine"), number("kl"), 0.0, classes=tuple(map(_class, c.get("classes", ()))))
    price = Price(number("latency_ms"), number("latency_ms_low"), number("latency_ms_high"), number("energy_mj"), number("power_w"),
                  int(c["peak_memory_bytes"] or 0), c["op_point"])
    return Candidate(c["name"], c["origin"], c["plan"], c["plan_key"], c["calibrator"], c["granularity"], c["layers"], accuracy, price,
                     c["feasible"], c["sure"], Measurement.from_dict(c["measured"], "summary.json") if c.get("measured") else None, c.get("corrections", ""))


def _class(k: Mapping[str, Any]) -> ClassAccuracy:
    known: dict[str, Any] = {key: float("nan") if v is None else v for key, v in k.items()}
    return ClassAccuracy(**known)


def _finite(x: Any) -> Any:
    if isinstance(x, dict):
        return {k: _finite(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [_finite(v) for v in x]
    if isinstance(x, float) and not isfinite(x):
        return None
    return x
