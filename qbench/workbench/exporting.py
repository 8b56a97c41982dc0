"""`qbench export`: a model and its plan through the exporter of a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from qbench import qdq, targets
from qbench.corrections import rewritten
from qbench.errors import InputError, PlanError
from qbench.export import Job, export, planned
from qbench.graph import PreparedModel, load_network
from qbench.plan import Plan
from qbench.protocols import Array, Progress, silent
from qbench.samples import DEFAULT, load_sample
from qbench.target import Target
from qbench.targets.exporters import for_target, make
from qbench.workbench.case import Shapes, Values, input_specs, open_data
from qbench.workbench.placing import placed

SAMPLES = 8
"""Inputs that simulators run."""


@dataclass(frozen=True)
class ExportOptions:
    """model   None: the built-in `sample`; data   where the golden input comes from, else drawn at random; exporter   "" the target's default"""

    plan: Path
    target: str
    output: Path
    model: Path | None = None
    sample: str | None = None
    data: str | None = None
    exporter: str = ""
    toolkit: str | None = None
    preprocess: str | None = None
    input_shapes: Shapes | None = None
    input_values: Values | None = None
    options: Mapping[str, str] = field(default_factory=dict)


def export_plan(wanted: ExportOptions, progress: Progress = silent) -> dict[str, Any]:
    """The manifest of what was written to `wanted.output`.

    Raises InputError for what does not go together, ToolError when the vendor's tool fails or the artefact is not the plan.
    """
    target = targets.load(wanted.target)
    exporter = make(wanted.exporter or for_target(target.name)[0])
    if exporter.name not in for_target(target.name):
        raise InputError(f"exporter {exporter.name!r} is not for {target.name}; there is {', '.join(for_target(target.name))}")
    plan = Plan.load(wanted.plan)
    toolkit = target.toolkit(wanted.toolkit or (plan.toolkit if plan.toolkit in target.toolkits else None))
    _refuse_precisions(plan, target, toolkit, wanted.options)
    prepared, samples, drawn = _opened(wanted)
    written = qdq.write(prepared, plan)
    prepared = rewritten(prepared, plan)
    target = placed(target, prepared, toolkit)
    job = Job(prepared, plan, written, planned(prepared, plan, written, target), target, toolkit, samples, drawn, dict(wanted.options))
    return export(job, exporter, wanted.output, progress)


def _refuse_precisions(plan: Plan, target: Target, toolkit: str, options: Mapping[str, str]) -> None:
    """Raises PrecisionUnavailable for a precision that the target or its toolkit lacks (BUG case B24).

    options   one like int16=fp16 says what stands in for a precision: the exporter takes it, or refuses the option
    """
    for precision in dict.fromkeys(plan.precision.values()):
        if str(precision) != "fp32" and str(precision) not in options:
            target.support(precision, toolkit)
    if plan.target and plan.target != target.name:
        for name, scheme in plan.schemes.items():
            own = next((p.scheme for p in target.precisions if str(p.precision) == name), None)
            if own is not None and own.activation != scheme.activation:
                raise PlanError(f"the plan was made for {plan.target}, which stores {name} activations otherwise than {target.name}: search for {target.name}")


def _opened(wanted: ExportOptions) -> tuple[PreparedModel, tuple[Mapping[str, Array], ...], bool]:
    """The model, a few inputs of batch 1, and whether they are random."""
    if wanted.model is None:
        if wanted.data is not None or wanted.preprocess or wanted.input_shapes or wanted.input_values:
            raise InputError("--data, --preprocess, --input-shape and --input-value are for a model of your own: give it, or leave them out for the sample")
        sample = load_sample(wanted.sample or DEFAULT)
        prepared = load_network(sample.model)
        return prepared, tuple(dict(b.feeds) for b in islice(sample.calibration.batches(1), SAMPLES)), False
    if wanted.sample is not None:
        raise InputError(f"--sample {wanted.sample} and the model {wanted.model}: give one of the two")
    prepared = load_network(wanted.model, wanted.input_shapes, wanted.input_values)
    if wanted.data is not None:
        data = open_data(wanted.data, prepared, wanted.preprocess)
        return prepared, tuple(dict(b.feeds) for b in islice(data.batches(1), SAMPLES)), False
    rng = np.random.default_rng(0)
    made: dict[str, Array] = {}
    for name, _, kind in input_specs(prepared):
        shape = prepared.network.tensors[name].shape
        made[name] = rng.standard_normal(shape).astype(kind) if np.dtype(kind).kind == "f" else np.zeros(shape, kind)
    return prepared, (made,), True
