"""`qbench quantize`: a Q/DQ model from statistics or from a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from qbench import calibrators, qdq, targets
from qbench.errors import InputError
from qbench.files import refuse_overwriting
from qbench.network import Network, Precision
from qbench.plan import Granularity, Plan
from qbench.statistics import Statistics
from qbench.target import Target
from qbench.workbench.case import Shapes, open_model
from qbench.workbench.plans import Plans, schemes_of
from qbench.workbench.precisions import allowed_precisions, precision_of


def quantize(model: Path, output: Path, *, plan_file: Path | None = None, stats_file: Path | None = None, calibrator: str = "minmax",
             precision: str = "int8", granularity: str = "per-channel", target_name: str = "rk3588", toolkit: str | None = None,
             input_shapes: Shapes | None = None) -> dict[str, Any]:
    """Write the Q/DQ model of a plan, or of one precision with ranges from statistics. Returns what was written, JSON-ready."""
    refuse_overwriting(output, model=model, plan=plan_file, statistics_file=stats_file)
    prepared = open_model(model, input_shapes)
    if plan_file is not None:
        if stats_file is not None:
            raise InputError("--plan holds its own ranges: give --plan or --stats, not both")
        plan = Plan.load(plan_file)
    elif stats_file is not None:
        plan = _uniform_plan(prepared.network, Statistics.load(stats_file), targets.load(target_name), toolkit, precision_of(precision),
                             calibrator, granularity_named(granularity))
    else:
        raise InputError("give --plan plan.json, or --stats FILE from `qbench stats` with --calibrator and --precision")
    written = qdq.write(prepared, plan)
    qdq.save(written.model, output)
    remarks = [f"weight {name}: scale widened {factor:.4g} times so that its bias fits int32" for name, factor in written.widened.items()]
    remarks += [f"weight {name}: one scale per tensor; {why}" for name, why in written.per_tensor.items()]
    remarks += [f"unit {unit}: {why}" for unit, why in plan.notes.items()]
    return {"file": str(output), "plan_key": plan.key, "layers": plan.layers, "calibrator": plan.calibrator, "granularity": str(plan.granularity),
            "remarks": remarks}


def granularity_named(text: str) -> Granularity:
    """Raises InputError that lists the granularities."""
    try:
        return Granularity(text)
    except ValueError:
        raise InputError(f"no scale {text!r}; known: {', '.join(Granularity)}") from None


def _uniform_plan(network: Network, statistics: Statistics, target: Target, toolkit: str | None, precision: Precision, calibrator: str,
                  granularity: Granularity) -> Plan:
    version = target.toolkit(toolkit)
    target.support(precision, version)
    if statistics.model_key != network.model_key:
        raise InputError(f"the statistics belong to model {statistics.model_key[:12]}, this one is {network.model_key[:12]}; "
                         "collect them again with `qbench stats`")
    allowed, reasons = allowed_precisions(network, statistics, target, version)
    chosen = {u: precision if precision in options else next((p for p in options if p.is_float), options[-1]) for u, options in allowed.items()}
    plans = Plans(network, statistics, schemes_of(target, version), target.name, version)
    return replace(plans(chosen, calibrators.spec(calibrators.make(calibrator)), granularity, ""),
                   notes={u: why for u, why in reasons.items() if chosen[u] is not precision})
