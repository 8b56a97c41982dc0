"""The jobs behind the commands: search, cost."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from qbench import calibrators, targets
from qbench.cost import CostTable
from qbench.evaluation import OnnxEvaluator
from qbench.network import Network, Precision
from qbench.plan import Granularity, Plan, check_fits
from qbench.protocols import Progress, silent
from qbench.result import SearchResult
from qbench.search.budget import MaxDrop, parse_budgets
from qbench.search.problem import Events, Problem
from qbench.search.run import run
from qbench.target import Target
from qbench.workbench.case import Case, Shapes, open_model
from qbench.workbench.folder import finish
from qbench.workbench.plans import schemes_of, statistics_of
from qbench.workbench.precisions import allowed_precisions, precision_of
from qbench.workbench.searching import plan_maker, with_masks

DEFAULT_CALIBRATORS = ("minmax", "percentile:p=99.99", "percentile:p=99.9", "mse", "kl")
OUT = Path("qbench-out")
ARTIFACTS = ("summary.json", "plan.json", "report.html")


@dataclass(frozen=True)
class SearchJob:
    """What `qbench search` was asked for, as texts; see its help for each."""

    case: Case
    target: str
    budgets: tuple[str, ...] = ()
    max_drop: str | None = None
    toolkit: str | None = None
    precisions: tuple[str, ...] = ()
    calibrators: tuple[str, ...] = ()
    op_points: tuple[str, ...] = ()
    trials: int = 44
    seed: int = 0
    strategy: str = "nsga2"
    policy: str = "stop"
    out: Path | None = None
    command: str = ""
    track: bool = True

    @property
    def folder(self) -> Path:
        name = self.case.sample.name if self.case.sample else self.case.network.name
        return self.out or OUT / f"{name}-{targets.load(self.target).name}"


def run_search(job: SearchJob, progress: Progress = silent) -> SearchResult:
    """The main job: statistics, reference, search, then the written and verified result in `job.folder`."""
    from qbench.tracking import NoTracker, Tracker

    target = targets.load(job.target)
    toolkit = target.toolkit(job.toolkit)
    budgets = parse_budgets(job.budgets)
    drop = MaxDrop.parse(job.max_drop) if job.max_drop else None
    specs = tuple(calibrators.spec(calibrators.make(c)) for c in job.calibrators or DEFAULT_CALIBRATORS)
    points = tuple(target.operating_point(p).name for p in job.op_points) or (target.operating_point(None).name,)
    wanted = tuple(precision_of(p) for p in job.precisions) or None
    for precision in wanted or ():
        target.support(precision, toolkit)                       # refused before any work, with the reason (BUG case B24)
    case, network, folder = job.case, job.case.network, job.folder
    folder.mkdir(parents=True, exist_ok=True)
    name = case.sample.name if case.sample else network.name
    with Tracker.start(folder, name, target.name) if job.track else NoTracker() as tracker:
        masks = with_masks(case, target, toolkit, granularity_of(target, toolkit), job.policy, progress)
        case = replace(case, prepared=masks.prepared) if masks else case
        statistics = masks.statistics if masks else statistics_of(case.prepared, case.calibration, keep=folder, policy=job.policy, progress=progress)
        network = case.network
        pricer = CostTable.build(network, target, toolkit)
        evaluator = OnnxEvaluator(case.prepared, case.evaluation, case.metric, seed=job.seed, policy=job.policy, progress=progress)
        allowed, reasons = allowed_precisions(network, statistics, target, toolkit, wanted)
        plans = plan_maker(case, statistics, masks, allowed, specs, granularity_of(target, toolkit), target, toolkit, evaluator.simulate, progress)
        if masks is not None:
            allowed |= {u: tuple(p for p in allowed[u] if p.is_float) or allowed[u] for u in masks.masks.floats}
            reasons |= masks.masks.floats
        problem = Problem(
            network, allowed, plans, case.data_key, specs, (granularity_of(target, toolkit),), points, budgets, folder, drop,
            seed=job.seed, trials=job.trials, strategy=job.strategy, storage=f"sqlite:///{(folder / 'study.db').resolve()}",
            sample=case.sample is not None, target=target.name, toolkit=toolkit, model=network.name,
            provenance=provenance_of(target, toolkit, job, evaluator))
        tracker.begin(problem.study_name, params_of(job, problem))
        found = run(problem, evaluator, pricer, Events(tracker.candidate, tracker.note, progress), evaluator.reference())
        told = (*case.warnings, *statistics.warnings(), *evaluator.warnings, *unpriced(network), *notes_of(reasons, target, toolkit, allowed), *found.warnings)
        found = finish(replace(found, warnings=told, mlflow=tracker.where()), folder, case, pricer, evaluator)
        return replace(found, mlflow=tracker.finish(found, [folder / name for name in ARTIFACTS]))


def params_of(job: SearchJob, problem: Problem) -> dict[str, str]:
    """Parameters of the search's run in the tracking store."""
    return {"model": problem.model, "target": problem.target, "toolkit": problem.toolkit, "limits": ", ".join(problem.limits) or "none",
            "op_points": ", ".join(problem.op_points), "calibrators": ", ".join(problem.calibrators), "metric": job.case.metric.name,
            "trials": str(problem.trials), "seed": str(problem.seed), "strategy": problem.strategy,
            "calibration": f"{job.case.calibration.name}, {len(job.case.calibration)} samples",
            "evaluation": f"{job.case.evaluation.name}, {len(job.case.evaluation)} samples", "model_key": problem.network.model_key}


def granularity_of(target: Target, toolkit: str) -> Granularity:
    """Per-channel weights where the target takes them for 8 bit."""
    schemes = schemes_of(target, toolkit)
    return Granularity.PER_CHANNEL if not schemes or any(s.weight_per_channel for s in schemes.values()) else Granularity.PER_LAYER


def provenance_of(target: Target, toolkit: str, job: SearchJob, evaluator: OnnxEvaluator) -> dict[str, str]:
    """What the report prints beside its figures."""
    command = job.command or "qbench " + " ".join(sys.argv[1:])
    sample = job.case.sample
    about = {"sample_name": sample.title, "sample_story": sample.story, "sample_licence": sample.licence, "sample_caveats": " ".join(sample.caveats),
             "sample_other_metrics": ", ".join(f"--metric {m}" for m in sample.also)} if sample else {}
    return about | {"fitted_on": target.provenance.fitted_on, "validated_on": target.provenance.validated_on, "interval": target.provenance.interval,
            "power": "relative, unvalidated" if target.power_is_relative else "predicted", "toolkit": toolkit, "command": command,
            "accuracy": "Q/DQ run in float: this CPU's integer kernels saturate" if evaluator.simulate else "integer kernels of onnxruntime"}


def notes_of(reasons: Mapping[str, str], target: Target, toolkit: str, allowed: Mapping[str, Sequence[Precision]]) -> list[str]:
    """Caveats of the precisions on offer, and the units that cannot take one."""
    offered = {p for options in allowed.values() for p in options}
    lines = [f"{p}: {s.note}" for p in Precision if p in offered and (s := target.support(p, toolkit)).note]
    alike: dict[str, list[str]] = {}
    for unit, why in reasons.items():
        alike.setdefault(why, []).append(unit)
    return lines + [f"{_some(units)}: {why}" for why, units in alike.items()]


def unpriced(network: Network) -> list[str]:
    """Kernels whose work no cost model sees: their price is a launch, whatever happens inside."""
    closed = [k for k in network.kernels if {"If", "Loop", "Scan"} & set(k.op.split("+"))]
    return [f"kernel {k.name!r} ({k.op}): what its bodies compute is not in the latency, energy and memory figures, which are too low" for k in closed]


def _some(units: Sequence[str]) -> str:
    """"unit 'a'", or "12 units ('a', 'b', ...)"."""
    if len(units) == 1:
        return f"unit {units[0]!r}"
    return f"{len(units)} units ({', '.join(repr(u) for u in units[:2])}{', ...' if len(units) > 2 else ''})"


def cost_of(model: Path, target_names: Sequence[str], precisions: Sequence[str], *, op_point: str | None = None, plan_file: Path | None = None,
            toolkit: str | None = None, input_shapes: Shapes | None = None) -> list[dict[str, Any]]:
    """One JSON-ready row per target and precision (or per target, for a plan): see DESIGN for the fields."""
    network = open_model(model, input_shapes).network
    plan = Plan.load(plan_file) if plan_file else None
    if plan is not None:
        check_fits(plan, network)
    rows = []
    for name in dict.fromkeys(target_names):
        target = targets.load(name)
        table = CostTable.build(network, target, toolkit)
        point = target.operating_point(op_point).name
        for precision in ("plan",) if plan else tuple(dict.fromkeys(precisions)):
            if plan is None:
                target.support(precision_of(precision), toolkit)
            codes = table.codes(plan) if plan else table.uniform(precision_of(precision))
            rows.append(cost_row(table, target, codes, precision, point))
    return rows


def cost_row(table: CostTable, target: Target, codes: Any, precision: str, point: str) -> dict[str, Any]:
    """Price, kernels and memory plan of one assignment."""
    price = table.price(codes[None], point)[0]
    memory = table.memory(codes)
    return {"target": target.name, "toolkit": table.toolkit, "precision": precision, "op_point": point, "latency_ms": price.latency_ms,
            "latency_ms_low": price.latency_ms_low, "latency_ms_high": price.latency_ms_high, "energy_mj": price.energy_mj, "power_w": price.power_w,
            "power_is_relative": target.power_is_relative, "peak_memory_bytes": price.peak_memory_bytes,
            "memory_lower_bound_bytes": memory.lower_bound_bytes, "macs": table.network.macs,
            "warnings": unpriced(table.network),
            "kernels": [asdict(row) for row in table.kernel_table(codes, point)],
            "provenance": {"fitted_on": target.provenance.fitted_on, "validated_on": target.provenance.validated_on,
                           "interval": target.provenance.interval}}
