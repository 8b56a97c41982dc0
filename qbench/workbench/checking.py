"""What `qbench search --check` does: does a stored plan still keep the limits, on today's data, model and cost model? Nothing is searched or written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from qbench.corrections import rewritten
from qbench.cost import CostTable
from qbench.errors import InputError, PlanError
from qbench.evaluation import OnnxEvaluator
from qbench.plan import Plan, check_fits
from qbench.protocols import Accuracy, Price, Progress, silent
from qbench.result import result_from_dict
from qbench.search.budget import Budget, MaxDrop, worst_class
from qbench.search.choice import show
from qbench.workbench.analyzing import plan_path
from qbench.workbench.jobs import SearchJob
from qbench.workbench.placing import placed
from qbench.workbench.presetting import check_classes, derivation, given, target_of

FLOORS = ("max-drop", "max-class-drop")


@dataclass(frozen=True, slots=True)
class Kept:
    """One limit, what the plan has there now, and whether that keeps it."""

    limit: str
    found: str
    kept: bool


@dataclass(frozen=True)
class Check:
    """limits    each with what was found
    before       accuracy and latency_ms of the plan in the summary.json beside it; empty without one
    """

    plan: str
    target: str
    accuracy: Accuracy
    price: Price
    limits: tuple[Kept, ...]
    warnings: tuple[str, ...] = ()
    before: Mapping[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return all(k.kept for k in self.limits)

    def to_dict(self) -> dict[str, Any]:
        a, p = self.accuracy, self.price
        return {"passed": self.passed, "plan": self.plan, "target": self.target, "limits": [asdict(k) for k in self.limits], "metric": a.metric,
                "accuracy": a.value, "accuracy_low": a.low, "accuracy_high": a.high, "drop": a.drop, "drop_low": a.drop_low, "drop_high": a.drop_high,
                "latency_ms": p.latency_ms, "latency_ms_low": p.latency_ms_low, "latency_ms_high": p.latency_ms_high, "power_w": p.power_w,
                "energy_mj": p.energy_mj, "peak_memory_bytes": p.peak_memory_bytes, "op_point": p.op_point, "before": dict(self.before),
                "warnings": list(self.warnings)}


def check_plan(job: SearchJob, stored: Path, progress: Progress = silent) -> Check:
    """The plan in `stored`, a plan.json or a result folder, evaluated and priced again.

    Limits are those of the job; where it has none, those of the summary.json beside the plan. Raises InputError when there are none at all,
    PlanError for a plan of another model or another target.
    """
    plan_file = plan_path(stored)
    plan, summary = Plan.load(plan_file), plan_file.parent / "summary.json"
    before = result_from_dict(json.loads(summary.read_text(encoding="utf-8"))) if summary.is_file() else None
    case = job.case
    if plan.model_key.partition("+")[0] != case.network.model_key.partition("+")[0]:
        check_fits(plan, case.network)
    prepared = rewritten(case.prepared, plan)
    check_fits(plan, prepared.network)
    target = placed(target_of(job.target, job.power, job.toolkit), prepared, job.toolkit)
    toolkit = target.toolkit(job.toolkit)
    if plan.target and plan.target != target.name:
        raise PlanError(f"{plan_file} was made for {plan.target}, and the target here is {target.name}: give --target {plan.target}, or search again")
    texts = tuple(before.budgets) if before and not (job.budgets or job.max_drop or job.max_class_drop or job.preset) else None
    asked = _stored(texts) if texts is not None else given(job.budgets, job.max_drop, job.max_class_drop)
    limits = derivation(job.preset, target, toolkit, case.network, case.metric, asked) if job.preset else asked
    if not (limits.budgets or limits.max_drop or limits.max_class_drop):
        raise InputError(f"{stored}: no limits to check: give --budget, --max-drop or --preset, or a result folder whose search had some")
    pricer = CostTable.build(prepared.network, target, toolkit)
    [price] = pricer.price(pricer.codes(plan)[None], job.op_points[0] if job.op_points else plan.op_point or target.operating_point(None).name)
    evaluator = OnnxEvaluator(prepared, case.evaluation, case.metric, seed=job.seed, policy=job.policy, progress=progress)
    check_classes(limits.max_class_drop, evaluator.reference())
    accuracy = evaluator.evaluate(plan)
    told = {"accuracy": before.chosen.accuracy.value, "latency_ms": before.chosen.price.latency_ms} if before and before.chosen and before.chosen.accuracy.metric == accuracy.metric else {}
    kept = (*_costs(limits.budgets, price), *_losses(limits.max_drop, limits.max_class_drop, accuracy))
    return Check(str(plan_file), target.name, accuracy, price, kept, (*case.warnings, *evaluator.warnings), told)


def _stored(texts: Sequence[str]) -> Any:
    """The limits of a summary.json: budgets, and "max-drop 0.005" beside them."""
    floors = {name: text.removeprefix(f"{name} ") for text in texts for name in FLOORS if text.startswith(f"{name} ")}
    return given([t for t in texts if not t.startswith(tuple(f"{name} " for name in FLOORS))], floors.get("max-drop"), floors.get("max-class-drop"))


def _costs(budgets: Sequence[Budget], price: Price) -> Iterator[Kept]:
    for b in budgets:
        yield Kept(b.text, show(b, b.value(price)), b.met_by(price))


def _losses(drop: MaxDrop | None, of_class: MaxDrop | None, accuracy: Accuracy) -> Iterator[Kept]:
    if drop is not None:
        yield Kept(f"max-drop {drop.text}", f"{accuracy.drop:.4g} [{accuracy.drop_low:.4g}, {accuracy.drop_high:.4g}]", drop.met_by(accuracy))
    if of_class is not None and (worst := worst_class(of_class, accuracy)) is not None:
        yield Kept(f"max-class-drop {of_class.text}", f"{worst.drop:.4g} (class {worst.name})", of_class.met_by(worst))
