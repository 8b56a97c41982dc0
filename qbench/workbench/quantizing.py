"""`qbench quantize`: a Q/DQ model from statistics, from data, or from a plan, with corrections and what they gained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from qbench import calibrators, qdq, targets
from qbench.corrections import rewritten
from qbench.coverage import coverage
from qbench.errors import InputError, unknown
from qbench.graph import PreparedModel, load_network
from qbench.modelfiles import refuse_overwriting
from qbench.plan import Granularity, Plan
from qbench.protocols import Dataset, Progress, silent
from qbench.samples import DEFAULT, load_sample
from qbench.schemes import scheme_of
from qbench.statistics import Statistics
from qbench.target import QuantScheme, Target
from qbench.workbench.case import Shapes, Values, open_data
from qbench.workbench.correcting import Gain, Recipe, corrected
from qbench.workbench.plans import schemes_of
from qbench.workbench.precisions import precision_of


@dataclass(frozen=True)
class Quantization:
    """What `qbench quantize` was asked for, as texts; see its help for each.

    model        None: the built-in `sample`
    data, stats_file   where ranges come from; both: ranges from the statistics, corrections learn from the data
    corrections  beside the default ones; "none" leaves those out
    activation, weight   schemes that take the place of the target's, e.g. "int8:symmetric"; "" as the target has it
    weight_block input channels that share a weight scale under per-group granularity; 0 as the target has it
    """

    output: Path
    model: Path | None = None
    sample: str | None = None
    plan_file: Path | None = None
    stats_file: Path | None = None
    data: str | None = None
    calibrator: str = "minmax"
    precision: str = "int8"
    granularity: str = "per-channel"
    target_name: str = "rk3588"
    toolkit: str | None = None
    corrections: tuple[str, ...] = ()
    activation: str = ""
    weight: str = ""
    weight_block: int = 0
    save_plan: Path | None = None
    input_shapes: Shapes | None = None
    input_values: Values | None = None
    preprocess: str | None = None
    limit: int | None = None
    policy: str = "stop"


def quantize(model: Path | str | None, output: Path | str, *, progress: Progress = silent, **options: Any) -> dict[str, Any]:
    """Write the Q/DQ model of a plan, or of one precision. Returns what was written, JSON-ready.

    model     None: the built-in sample
    options   the other fields of `qbench.workbench.quantizing.Quantization`
    """
    wanted = Quantization(Path(output), None if model is None else Path(model), **options)
    _refuse_overwriting(wanted)
    _refuse_contradictions(wanted)
    prepared, data = _opened(wanted)
    gains: tuple[Gain, ...] = ()
    doubts: Sequence[str] = ()
    if wanted.plan_file is not None:
        plan = Plan.load(wanted.plan_file)
    else:
        statistics = _statistics(wanted.stats_file, prepared)
        found = corrected(prepared, _recipe(wanted), wanted.corrections, statistics=statistics, dataset=data, policy=wanted.policy, progress=progress)
        plan, gains, doubts = found.plan, found.gains, found.statistics.warnings()
    written = qdq.write(prepared, plan)
    qdq.save(written.model, wanted.output)
    if wanted.save_plan is not None:
        plan.save(wanted.save_plan)
    remarks = [*prepared.notes, *_asked_for(wanted), *doubts, *written.remarks(), *(f"unit {unit}: {why}" for unit, why in plan.notes.items())]
    return {"file": str(wanted.output), "plan_file": str(wanted.save_plan) if wanted.save_plan else None, "plan_key": plan.key, "layers": plan.layers,
            "calibrator": plan.calibrator, "granularity": str(plan.granularity), "steps": list(plan.corrections),
            "corrections": [asdict(g) for g in gains], "remarks": remarks, "coverage": coverage(rewritten(prepared, plan).network, plan).to_dict()}


def granularity_named(text: str) -> Granularity:
    """Raises UnknownName that lists the granularities."""
    try:
        return Granularity(text)
    except ValueError:
        raise unknown("scale", text, map(str, Granularity)) from None


def schemes_for(target: Target, toolkit: str, activation: str = "", weight: str = "", weight_block: int = 0) -> dict[str, QuantScheme]:
    """How the target stores integers, with what the user wants otherwise."""
    changes: dict[str, Any] = {"activation": scheme_of(activation)} if activation else {}
    changes |= {"weight": scheme_of(weight)} if weight else {}
    changes |= {"weight_block": weight_block} if weight_block else {}
    return {p: replace(s, **changes) for p, s in schemes_of(target, toolkit).items()}


def _recipe(wanted: Quantization) -> Recipe:
    target = targets.load(wanted.target_name)
    toolkit = target.toolkit(wanted.toolkit)
    precision = precision_of(wanted.precision)
    target.support(precision, toolkit)                             # refused with the reason (BUG case B24)
    return Recipe(target, toolkit, schemes_for(target, toolkit, wanted.activation, wanted.weight, wanted.weight_block), precision,
                  calibrators.spec(calibrators.make(wanted.calibrator)), granularity_named(wanted.granularity), target.fixed_outputs)


def _opened(wanted: Quantization) -> tuple[PreparedModel, Dataset | None]:
    """The model, and the calibration data where there are any."""
    if wanted.model is not None:
        prepared = load_network(wanted.model, wanted.input_shapes, wanted.input_values)
        return prepared, open_data(wanted.data, prepared, wanted.preprocess, wanted.limit) if wanted.data else None
    sample = load_sample(wanted.sample or DEFAULT, wanted.limit)
    prepared = load_network(sample.model)
    return prepared, sample.calibration


def _statistics(path: Path | None, prepared: PreparedModel) -> Statistics | None:
    if path is None:
        return None
    found = Statistics.load(path)
    if found.model_key != prepared.network.model_key:
        raise InputError(f"{path}: the statistics belong to model {found.model_key[:12]}, this one is {prepared.network.model_key[:12]}; "
                         "collect them again with `qbench stats`")
    return found


def _asked_for(wanted: Quantization) -> Iterator[str]:
    for what, text in (("activations", wanted.activation), ("weights", wanted.weight)):
        if text and wanted.plan_file is None:
            yield f"{what} are stored as {text}, as asked for; whether {wanted.target_name} has that was not checked"
    if calibrators.is_auto(wanted.calibrator) and wanted.plan_file is None and wanted.model is not None and wanted.data is None:
        yield "auto: without samples it chose by the error of each tensor itself; with --data it looks at the layers' outputs"


def _refuse_overwriting(wanted: Quantization) -> None:
    inputs: Mapping[str, Path | str | None] = {
        "model": wanted.model, "plan": wanted.plan_file, "statistics_file": wanted.stats_file, "data": wanted.data}
    refuse_overwriting(wanted.output, **inputs)
    if wanted.save_plan is not None:
        refuse_overwriting(wanted.save_plan, **inputs, quantized_model=wanted.output)


def _refuse_contradictions(wanted: Quantization) -> None:
    if wanted.model is not None and wanted.sample is not None:
        raise InputError(f"--sample {wanted.sample} and the model {wanted.model}: give one of the two")
    if wanted.model is None and (wanted.input_shapes or wanted.input_values or wanted.preprocess):
        raise InputError("--preprocess, --input-shape and --input-value are for a model of your own: the built-in samples come ready")
    if wanted.plan_file is not None:
        sources: Sequence[tuple[str, Any]] = (("--stats", wanted.stats_file), ("--data", wanted.data), ("--correct", wanted.corrections),
                                              ("--activation", wanted.activation), ("--weight", wanted.weight), ("--weight-block", wanted.weight_block))
        if given := next((name for name, value in (*sources, *_changed(wanted)) if value), None):
            raise InputError(f"--plan holds its own ranges, schemes and corrections: give --plan or {given}, not both")
    elif wanted.model is None and wanted.data is not None:
        raise InputError("--data without a model: give the model that the data belong to, or leave both out to use the built-in sample")
    elif wanted.model is not None and wanted.stats_file is None and wanted.data is None:
        raise InputError("no ranges: give --plan plan.json, or --stats FILE from `qbench stats`, or --data D with calibration samples")
    if wanted.weight_block and wanted.granularity != Granularity.PER_GROUP:
        raise InputError(f"--weight-block {wanted.weight_block} is for --scale per-group, and the scale here is {wanted.granularity}: change one of the two")
    if wanted.model is not None and wanted.data is None and (given := next((n for n, v in _of_samples(wanted) if v), None)):
        raise InputError(f"{given} says how samples are read, and there are none: add --data D, or leave {given} out")


def _changed(wanted: Quantization) -> Iterator[tuple[str, bool]]:
    """Options that say how ranges are made, and whether they are other than by default."""
    for name, field in (("--calibrator", "calibrator"), ("--precision", "precision"), ("--scale", "granularity"), ("--target", "target_name"),
                        ("--toolkit", "toolkit")):
        yield name, getattr(wanted, field) != getattr(Quantization, field)
    yield from _of_samples(wanted)


def _of_samples(wanted: Quantization) -> Iterator[tuple[str, bool]]:
    yield from (("--preprocess", wanted.preprocess is not None), ("--limit", wanted.limit is not None), ("--non-finite", wanted.policy != Quantization.policy))
