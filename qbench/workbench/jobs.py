"""The job behind `qbench search`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

from qbench import calibrators, targets
from qbench.cost import CostTable
from qbench.errors import unknown
from qbench.evaluation import OnnxEvaluator
from qbench.files import make_folder
from qbench.network import Precision
from qbench.plan import Granularity, Plan
from qbench.protocols import Progress, silent
from qbench.result import SearchResult
from qbench.search.problem import Events, Goal, Problem
from qbench.search.run import run
from qbench.target import Target
from qbench.targets.boards import open_board
from qbench.workbench.board_loop import Rig, decide, lessons, teach
from qbench.workbench.case import Case
from qbench.workbench.costing import unpriced
from qbench.workbench.folder import finish
from qbench.workbench.labels import at_chance
from qbench.workbench.measuring import SAMPLES
from qbench.workbench.placing import Placing, placing
from qbench.workbench.plans import schemes_of, statistics_of
from qbench.workbench.pools import DaskPool, Executor, connected
from qbench.workbench.precisions import allowed_precisions
from qbench.workbench.presetting import check_classes, derivation, given, loose, target_of
from qbench.workbench.quantizing import granularity_named
from qbench.workbench.searching import corrected_makers, plan_maker, with_masks
from qbench.workbench.second_order import FisherCurvature
from qbench.workbench.stations import Station
from qbench.workbench.tracked import about, front_models

DEFAULT_CALIBRATORS = ("minmax", "percentile:p=99.99", "percentile:p=99.9", "mse", "kl")
SENSITIVITIES = ("measured", "fisher")
OUT = Path("qbench-out")
ARTIFACTS = ("summary.json", "plan.json", "report.html")


@dataclass(frozen=True)
class SearchJob:
    """What `qbench search` was asked for, as texts; see its help for each."""

    case: Case
    target: str
    budgets: tuple[str, ...] = ()
    max_drop: str | None = None
    max_class_drop: str | None = None
    preset: str | None = None
    power: Path | None = None
    toolkit: str | None = None
    precisions: tuple[str, ...] = ()
    calibrators: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()
    corrections: tuple[str, ...] = ()
    op_points: tuple[str, ...] = ()
    trials: int = 24
    seed: int = 0
    strategy: str = "nsga2"
    sensitivity: str = "measured"
    policy: str = "stop"
    out: Path | None = None
    command: str = ""
    track: bool = True
    register: str | None = None
    storage: str | None = None
    executor: str | None = None
    boards: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        name = self.case.sample.name if self.case.sample else self.case.network.name
        return self.out or OUT / f"{name}-{targets.load(self.target).name}"


def run_search(job: SearchJob, progress: Progress = silent) -> SearchResult:
    """The main job: statistics, reference, search, then the written and verified result in `job.folder`."""
    from qbench.tracking import NoTracker, Tracker, check_name

    if job.register is not None:
        check_name(job.register, job.track)
    where = placing(target_of(job.target, job.power, job.toolkit), job.case.prepared, job.toolkit)
    target = where.target
    toolkit = target.toolkit(job.toolkit)
    asked = given(job.budgets, job.max_drop, job.max_class_drop, job.precisions, job.op_points)
    derived = derivation(job.preset, target, toolkit, job.case.network, job.case.metric, asked) if job.preset else None
    limits = derived or asked
    specs = tuple(calibrators.spec(calibrators.make(c)) for c in job.calibrators or DEFAULT_CALIBRATORS)
    scales = tuple(granularity_named(s) for s in job.scales) or (granularity_of(target, toolkit),)
    points = tuple(target.operating_point(p).name for p in limits.operating_points) or (target.operating_point(None).name,)
    wanted = limits.precisions or None
    for precision in wanted or ():
        target.support(precision, toolkit)                       # refused before any work, with the reason (BUG case B24)
    case, network, folder = job.case, job.case.network, job.folder
    make_folder(folder)
    name = case.sample.name if case.sample else network.name
    with Tracker.start(folder, name, target.name, command=job.command) if job.track else NoTracker() as tracker:
        masks = with_masks(case, target, toolkit, granularity_of(target, toolkit), job.policy, progress)
        case = replace(case, prepared=masks.prepared) if masks else case
        statistics = masks.statistics if masks else statistics_of(case.prepared, case.calibration, keep=folder, policy=job.policy, progress=progress)
        network = case.network
        pricer = CostTable.build(network, target, toolkit)
        evaluator = OnnxEvaluator(case.prepared, case.evaluation, case.metric, seed=job.seed, policy=job.policy, progress=progress)
        check_classes(limits.max_class_drop, evaluator.reference())
        allowed, reasons = allowed_precisions(network, statistics, target, toolkit, wanted)
        plans = plan_maker(case, statistics, masks, allowed, specs, granularity_of(target, toolkit), target, toolkit, evaluator.simulate, progress)
        if masks is not None:
            allowed |= {u: tuple(p for p in allowed[u] if p.is_float) or allowed[u] for u in masks.masks.floats}
            reasons |= masks.masks.floats
        problem = Problem(
            network, allowed, plans, case.data_key, specs, scales, points, limits.budgets, folder, limits.max_drop,
            max_class_drop=limits.max_class_drop, goal=derived.preset.goal if derived else Goal.ACCURACY, preset=derived.preset.key if derived else "",
            seed=job.seed, trials=job.trials, strategy=job.strategy, step=evaluator.batch, second_order=curvature_of(job, case, evaluator.batch, progress),
            corrected=corrected_makers(case, job.corrections, plans, allowed, target, toolkit, job.policy, progress), storage=job.storage or f"sqlite:///{(folder / 'study.db').resolve()}",
            measured=bool(job.boards),
            sample=case.sample is not None, target=target.name, toolkit=toolkit, model=network.name,
            provenance=provenance_of(target, toolkit, job, evaluator))
        tracker.begin(problem.study_name, params_of(job, problem), about(case))
        rig = rig_of(job, case, progress)
        if rig is not None:
            pricer, _ = teach(rig, pricer, lessons(network, allowed, lambda p: plans(p, specs[0], scales[0], points[0]), job.seed))
        with pool_of(job, case, evaluator) as pool:
            found = run(problem, evaluator, pricer, Events(tracker.candidate, tracker.note, progress), evaluator.reference(), pool)
        if rig is not None:
            found, pricer = decide(rig, pricer, found, problem, lambda c: Plan.load(folder / c.plan))
            tracker.measured([c for c in found.candidates if c.measured])
            found = replace(found, provenance={**found.provenance, **asdict(pricer.target.provenance), "boards": rig.where})
        told = (*at_chance(evaluator.reference(), network, case.metric), *case.warnings, *loose(limits.max_drop, evaluator.reference()), *statistics.warnings(), *evaluator.warnings, *unpriced(network), *refusals(where, allowed), *notes_of(reasons, target, toolkit, allowed), *found.warnings)
        found = finish(replace(found, warnings=told, mlflow=tracker.where(), preset=derived.to_dict() if derived else {}), folder, case, pricer, evaluator, statistics)
        return replace(found, mlflow=tracker.finish(found, [folder / name for name in ARTIFACTS], front_models(found, folder, case), job.register))


@contextmanager
def pool_of(job: SearchJob, case: Case, evaluator: OnnxEvaluator) -> Iterator[DaskPool | None]:
    """The pool of the executor that was asked for; None: everything in this process."""
    if job.executor is None:
        yield None
        return
    executor = Executor.parse(job.executor)
    with connected(executor) as client:
        yield DaskPool(client, Station.of(case, evaluator, job.seed, job.policy, None if executor.address else executor.threads))


def curvature_of(job: SearchJob, case: Case, batch: int, progress: Progress) -> FisherCurvature | None:
    """What foresees sensitivities under `--sensitivity fisher`; None where they are measured. Raises UnknownName for any other word."""
    if job.sensitivity not in SENSITIVITIES:
        raise unknown("sensitivity", job.sensitivity, SENSITIVITIES)
    return FisherCurvature(case, batch, job.folder, job.seed, progress=progress) if job.sensitivity == "fisher" else None


def rig_of(job: SearchJob, case: Case, progress: Progress) -> Rig | None:
    """The boards that were asked for, with inputs from the evaluation data."""
    if not job.boards:
        return None
    feeds = [dict(b.feeds) for b in islice(case.evaluation.batches(1), SAMPLES)]
    return Rig([open_board(url) for url in job.boards], case.prepared, feeds, progress=progress)


def params_of(job: SearchJob, problem: Problem) -> dict[str, str]:
    """Parameters of the search's run in the tracking store."""
    return {"model": problem.model, "target": problem.target, "toolkit": problem.toolkit, "limits": ", ".join(problem.limits) or "none",
            "op_points": ", ".join(problem.op_points), "calibrators": ", ".join(problem.calibrators), "metric": job.case.metric.name,
            "goal": str(problem.goal), "preset": job.preset or "none", "trials": str(problem.trials), "seed": str(problem.seed), "strategy": problem.strategy,
            "calibration": f"{job.case.calibration.name}, {len(job.case.calibration)} samples",
            "evaluation": f"{job.case.evaluation.name}, {len(job.case.evaluation)} samples", "model_key": problem.network.model_key}


def granularity_of(target: Target, toolkit: str) -> Granularity:
    """Per-channel weights where the target takes them for 8 bit."""
    schemes = schemes_of(target, toolkit)
    return Granularity.PER_CHANNEL if not schemes or any(s.weight_per_channel for s in schemes.values()) else Granularity.PER_LAYER


def provenance_of(target: Target, toolkit: str, job: SearchJob, evaluator: OnnxEvaluator) -> dict[str, str]:
    """What the report prints beside its figures."""
    sample = job.case.sample
    about = {"sample_name": sample.title, "sample_story": sample.story, "sample_licence": sample.licence, "sample_caveats": " ".join(sample.caveats),
             "sample_other_metrics": ", ".join(f"--metric {m}" for m in sample.also)} if sample else {}
    return about | asdict(target.provenance) | {"power": "relative, unvalidated" if target.power_is_relative else "predicted", "toolkit": toolkit, "command": job.command,
            "accuracy": "Q/DQ run in float: this CPU's integer kernels saturate" if evaluator.simulate else "integer kernels of onnxruntime"}


def refusals(where: Placing, allowed: Mapping[str, Sequence[Precision]]) -> list[str]:
    """Kernels that stop the toolchain's conversion at a precision that the search may choose."""
    offered = {p for options in allowed.values() for p in options}
    kernels = {k: None for p, names in where.refused.items() if p in offered for k in names}
    if not kernels:
        return []
    return [(f"the toolchain refuses {_some(tuple(kernels), 'kernel')}: priced as cut out and run on the CPU; `qbench inspect` says why, "
             "`qbench rewrite` may mend it")]


def notes_of(reasons: Mapping[str, str], target: Target, toolkit: str, allowed: Mapping[str, Sequence[Precision]]) -> list[str]:
    """Caveats of the precisions on offer, and the units that cannot take one."""
    offered = {p for options in allowed.values() for p in options}
    lines = [f"{p}: {s.note}" for p in Precision if p in offered and (s := target.support(p, toolkit)).note]
    alike: dict[str, list[str]] = {}
    for unit, why in reasons.items():
        alike.setdefault(why, []).append(unit)
    return lines + [f"{_some(units)}: {why}" for why, units in alike.items()]


def _some(units: Sequence[str], what: str = "unit") -> str:
    """"unit 'a'", or "12 units ('a', 'b', ...)"."""
    if len(units) == 1:
        return f"{what} {units[0]!r}"
    return f"{len(units)} {what}s ({', '.join(repr(u) for u in units[:2])}{', ...' if len(units) > 2 else ''})"
