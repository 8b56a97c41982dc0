"""`qbench analyze`: where a plan loses, what would help, and what it gains when it is tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

from qbench import calibrators, targets
from qbench.affine import Range
from qbench.analysis import Analysis, Finding, Options, analyze, run_checks, verdict
from qbench.analysis.checks import Fresh
from qbench.corrections import rewritten
from qbench.errors import InputError, QbenchError
from qbench.fixed import UNIT, fixed_range
from qbench.graph import PreparedModel, load_network
from qbench.network import Network, Precision, ScaleGroup
from qbench.plan import Plan, check_fits
from qbench.protocols import Dataset, Progress, silent
from qbench.samples import DEFAULT, load_sample
from qbench.statistics import Statistics
from qbench.target import QuantScheme
from qbench.walk import Walk, samples_of
from qbench.workbench.case import Shapes, Values, open_data, refuse_odd_outputs
from qbench.workbench.plans import FIXED_OUTPUTS, makers, ranges_of, schemes_of, statistics_of
from qbench.workbench.precisions import allowed_precisions

OUT = Path("qbench-out")
"""Where `qbench search` leaves its results."""
PLAN = "plan.json"
BEST = "mse"
"""The calibrator that every range is compared with: least squared error of the tensor itself."""
ABOVE = {Precision.INT8: (Precision.INT16, Precision.FP16), Precision.INT16: (Precision.FP16,)}


@dataclass(frozen=True)
class Subject:
    """What is analyzed: a model, a plan, and data.

    plan_file   where the plan came from
    """

    prepared: PreparedModel
    plan: Plan
    plan_file: Path
    data: Dataset


def open_subject(arguments: tuple[Path, ...], data: str | None = None, *, sample: str | None = None, preprocess: str | None = None,
                 input_shapes: Shapes | None = None, input_values: Values | None = None, limit: int | None = None) -> Subject:
    """The model, plan and data that a command line names.

    arguments   MODEL PLAN; MODEL alone (then the plan of its last search); PLAN alone, or nothing, for a built-in sample.
                A plan is a .json file or the folder of a search.
    Raises InputError, with what is missing; PlanError when the plan was made for another model.
    """
    models = [a for a in arguments if not _is_plan(a)]
    plans = [a for a in arguments if _is_plan(a)]
    if len(models) > 1 or len(plans) > 1:
        raise InputError(f"expected a model and a plan, got {', '.join(str(a) for a in arguments)}; a plan is a .json file or the folder of a search")
    if not models:
        if data is not None:
            raise InputError("--data without a model: give MODEL PLAN --data D, or leave all of it out to use a built-in sample")
        if preprocess or input_shapes or input_values or limit:
            raise InputError("--preprocess, --input-shape, --input-value and --limit are for a model of your own; the built-in samples are ready (see --samples)")
        chosen = load_sample(sample or DEFAULT)
        plan_file = plan_path(plans[0]) if plans else last_plan(chosen.name)
        return _fitting(load_network(chosen.model), plan_file, chosen.calibration)
    model = models[0]
    if sample is not None:
        raise InputError(f"--sample {sample} and the model {model}: give one of the two")
    if data is None:
        raise InputError(f"{model}: no data; add --data FILE.npz, a folder, or module:function (labels are not needed)")
    prepared = load_network(model, input_shapes, input_values)
    refuse_odd_outputs(prepared)
    plan_file = plan_path(plans[0]) if plans else last_plan(prepared.network.name)
    return _fitting(prepared, plan_file, open_data(data, prepared, preprocess, limit))


def _is_plan(path: Path) -> bool:
    return path.suffix == ".json" or path.is_dir()


def plan_path(path: Path) -> Path:
    """The plan of a result folder, or the file itself. Raises InputError for a folder without one."""
    if not path.is_dir():
        return path
    if not (path / PLAN).is_file():
        raise InputError(f"{path}: holds no {PLAN}; give the result folder of a `qbench search`, or a plan file")
    return path / PLAN


def last_plan(name: str) -> Path:
    """The plan of the newest search for a model or sample. Raises InputError when there is none."""
    found = [p for p in OUT.glob(f"*/{PLAN}") if p.parent.name == name or p.parent.name.startswith(f"{name}-")]
    if not found:
        raise InputError(f"no plan given, and no {OUT}/{name}-*/{PLAN} of an earlier search here; run `qbench search` first, or name a plan file")
    return max(found, key=lambda p: p.stat().st_mtime)


def _fitting(prepared: PreparedModel, plan_file: Path, data: Dataset) -> Subject:
    plan = Plan.load(plan_file)
    if plan.model_key.partition("+")[0] != prepared.network.model_key.partition("+")[0]:
        check_fits(plan, prepared.network)
    prepared = rewritten(prepared, plan)
    check_fits(plan, prepared.network)
    return Subject(prepared, plan, plan_file, data)


def analyze_plan(subject: Subject, *, samples: int = 32, checks: int = 3, policy: str = "stop", threads: int | None = None,
                 progress: Progress = silent) -> tuple[Analysis, tuple[Finding, ...]]:
    """Measure, try the best proposals, and say it in words.

    samples   how many to walk over, the first of the data
    checks    layers to try at a higher precision; 0 tries nothing, and the verdict then tells no gains
    """
    prepared, plan = subject.prepared, subject.plan
    network = prepared.network
    kept = subject.plan_file.parent if (subject.plan_file.parent / "summary.json").is_file() else None
    statistics = statistics_of(prepared, subject.data, keep=kept, policy=policy, progress=progress)
    taken = samples_of(subject.data, samples)
    walk = Walk(prepared, plan, taken, threads=threads, progress=progress)
    schemes, precisions = higher(network, plan, statistics)
    fixed = prescribed(network, plan, schemes)
    analysis, outputs = analyze(walk, statistics, best=best_ranges(network, plan, statistics, fixed), data=subject.data.name,
                                warnings=_warnings(subject.data, taken, samples))
    if analysis.integer and checks:
        options = Options(precisions, schemes, fresh_ranges(statistics, plan, schemes, fixed), checks)
        analysis = replace(analysis, checks=run_checks(analysis, outputs, network, options, progress))
    return analysis, verdict(analysis)


def _warnings(data: Dataset, taken: list[Any], asked: int) -> list[str]:
    there = min(asked, len(data))
    if len(taken) < there:
        return [f"{len(taken)} of {there} samples have the shape of the first one; the others were not walked over"]
    return []


def higher(network: Network, plan: Plan, statistics: Statistics) -> tuple[dict[str, QuantScheme], dict[str, tuple[Precision, ...]]]:
    """How the target stores integers, and the precisions above the plan's own that each unit may take there.

    A plan without a target, or for one that is no longer known, may go to FP16, and to INT16 where it has that already.
    """
    try:
        target = targets.load(plan.target)
        schemes = schemes_of(target, plan.toolkit)
        allowed, _ = allowed_precisions(network, statistics, target, plan.toolkit)
    except QbenchError:
        schemes = dict(plan.schemes)
        every = tuple(p for p in (Precision.INT16, Precision.FP16) if p.is_float or str(p) in schemes)
        allowed = {u.name: every for u in network.units}
    return {**schemes, **plan.schemes}, {u: tuple(p for p in ABOVE.get(now, ()) if p in allowed[u]) for u, now in plan.precision.items()}


def prescribed(network: Network, plan: Plan, schemes: Mapping[str, QuantScheme]) -> dict[int, dict[str, Range]]:
    """bits -> tensor -> range that a convention prescribes, in a plan that follows one; {} for other plans."""
    if FIXED_OUTPUTS not in plan.corrections:
        return {}
    try:
        style = targets.load(plan.target).fixed_outputs
    except QbenchError:
        style = UNIT
    return {s.activation.bits: {t: r for t, op in makers(network).items() if (r := fixed_range(op, style, s.activation)) is not None}
            for s in schemes.values()}


def fresh_ranges(statistics: Statistics, plan: Plan, schemes: Mapping[str, QuantScheme], fixed: Mapping[int, Mapping[str, Range]]) -> Fresh:
    """Ranges as the plan's calibrator gives them for 8 bits; all that was seen for 16, which need not clip; what is prescribed as it is."""
    by_bits = {s.activation.bits: s.activation for s in schemes.values()}
    try:
        calibrator = calibrators.make(plan.calibrator)
    except QbenchError:
        calibrator = calibrators.make("minmax")

    def fresh(group: ScaleGroup, bits: int) -> Range | None:
        seen = [statistics[t] for t in group.sources if t in statistics and statistics[t].count]
        if not seen or len(seen) != len(group.sources):
            return None
        scheme = by_bits.get(bits)
        parts = [fixed.get(bits, {}).get(s.name) or (Range(s.minimum, s.maximum) if bits > 8 or scheme is None
                                                      else calibrator.range(s, scheme.levels, scheme.symmetric)) for s in seen]
        return reduce(Range.union, parts).including_zero()

    return fresh


def best_ranges(network: Network, plan: Plan, statistics: Statistics, fixed: Mapping[int, Mapping[str, Range]]) -> dict[int, dict[str, Range]]:
    """bits -> scale group -> range of least squared error; groups whose range is prescribed are left out."""
    calibrator = calibrators.make(BEST)
    schemes = {s.activation.bits: s.activation for s in plan.schemes.values()}
    return {bits: {g: r for g, r in ranges_of(network, statistics, calibrator, s.levels, s.symmetric).items()
                   if not any(t in fixed.get(bits, {}) for t in network.group_of[g].sources)} for bits, s in schemes.items()}
