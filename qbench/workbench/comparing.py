"""`qbench compare`: calibrators times scales on one case, each plan a real Q/DQ model that is built, run, weighed and priced."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from qbench import calibrators, qdq, targets
from qbench.comparison import FLOAT, Comparison, Gap, Ladder, Row, VendorRow, ladders, ranked
from qbench.corrections import rewritten
from qbench.cost import CostTable
from qbench.errors import InputError, QbenchError
from qbench.evaluation import OnnxEvaluator
from qbench.files import make_folder, write_text
from qbench.graph import PreparedModel
from qbench.network import Precision
from qbench.plan import Granularity, Plan
from qbench.protocols import Accuracy, Price, Progress, silent
from qbench.report import compare_text as words
from qbench.report.compare_page import write_comparison
from qbench.statistics import Statistics
from qbench.target import Target
from qbench.workbench import auto
from qbench.workbench.case import Case
from qbench.workbench.comparing_vendor import check_vendor, vendor_rows
from qbench.workbench.correcting import Recipe, corrected
from qbench.workbench.costing import unpriced
from qbench.workbench.gaps import range_gap, weight_gap
from qbench.workbench.jobs import DEFAULT_CALIBRATORS, OUT
from qbench.workbench.layers import LayerErrors, size_bytes
from qbench.workbench.placing import placed
from qbench.workbench.plans import schemes_of, statistics_of
from qbench.workbench.precisions import precision_of
from qbench.workbench.quantizing import granularity_named

ALL = "all"
DEFAULT_SCALES = (Granularity.GLOBAL, Granularity.PER_LAYER, Granularity.PER_CHANNEL)
LAYER_SAMPLES, WALK_SAMPLES = 8, 4
"""Evaluation samples on which layers are compared, and those of the closer look at weights."""
LONGEST = 120
"""Characters of a plan's file name."""
FILES = ("compare.html", "compare.json")


@dataclass(frozen=True)
class CompareJob:
    """What `qbench compare` was asked for, as texts; see its help for each."""

    case: Case
    target: str = "rk3588"
    calibrators: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    toolkit: str | None = None
    op_point: str | None = None
    seed: int = 0
    policy: str = "stop"
    out: Path | None = None
    command: str = ""
    vendor: str = ""
    plans: tuple[Path, ...] = ()

    @property
    def name(self) -> str:
        return self.case.sample.name if self.case.sample else self.case.network.name

    @property
    def folder(self) -> Path:
        return self.out or OUT / f"{self.name}-compare"


def run_compare(job: CompareJob, progress: Progress = silent) -> Comparison:
    """Measure every combination, explain the gaps, and write compare.json, compare.html and the plans into `job.folder`.

    Ctrl-C ends it early: what was measured by then is written, and `partial` says so. Raises InputError for a combination that
    the target does not have, before any work.
    """
    asked = _asked(job)
    make_folder(job.folder)
    return _Run(job, asked, progress).run()


@dataclass(frozen=True)
class _Asked:
    """The job with its texts read and checked."""

    target: Target
    toolkit: str
    op_point: str
    calibrators: tuple[str, ...]
    scales: tuple[Granularity, ...]
    precisions: tuple[Precision, ...]


def _asked(job: CompareJob) -> _Asked:
    target = targets.load(job.target)
    toolkit = target.toolkit(job.toolkit)
    if job.vendor:
        check_vendor(job.vendor, target)
    elif job.plans:
        raise InputError("--plan is for --with: give --with rknn, or evaluate plans with qbench analyze")
    texts = job.calibrators or tuple(c for c in (*DEFAULT_CALIBRATORS, auto.AUTO) if c.partition(":")[0] in calibrators.names())
    specs = dict.fromkeys(s for t in texts for s in (calibrators.names() if t == ALL else (calibrators.spec(calibrators.make(t)),)))
    scales = dict.fromkeys(granularity_named(s) for s in job.scales) or dict.fromkeys(DEFAULT_SCALES)
    precisions = tuple(dict.fromkeys(precision_of(p) for p in job.precisions)) or (Precision.INT8,)
    for precision in precisions:
        if precision.is_float:
            raise InputError(f"--precision {precision}: a float precision has no scales and no calibrator; compare takes int8 and int16, "
                             "and shows the float network beside them")
        support = target.support(precision, toolkit)
        if Granularity.PER_GROUP in scales and (support.scheme is None or not support.scheme.weight_block):
            raise InputError(f"--scale per-group: target {target.name} has no per-group weights at {precision}; it takes "
                             f"{', '.join(g for g in Granularity if g is not Granularity.PER_GROUP)}")
    coarse_first = tuple(g for g in Granularity if g in scales)
    return _Asked(target, toolkit, target.operating_point(job.op_point).name, tuple(specs), coarse_first, precisions)


@dataclass
class _Run:
    """One comparison at work: what is kept between its plans."""

    job: CompareJob
    asked: _Asked
    progress: Progress
    start: float = field(default_factory=time.perf_counter)
    plans: dict[tuple[str, str, str], Plan] = field(default_factory=dict)
    rows: dict[tuple[str, str, str], Row] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    unmeasured: dict[str, str] = field(default_factory=dict)
    known: dict[str, Row] = field(default_factory=dict)
    made: dict[tuple[Precision, str, Granularity], Plan] = field(default_factory=dict)
    tables: dict[int, tuple[PreparedModel, CostTable]] = field(default_factory=dict)
    errors: dict[int, tuple[PreparedModel, LayerErrors]] = field(default_factory=dict)
    vendor: tuple[VendorRow, ...] = ()

    def run(self) -> Comparison:
        case, job = self.job.case, self.job
        self.statistics: Statistics = statistics_of(case.prepared, case.calibration, keep=job.folder, policy=job.policy, progress=self.progress)
        self.evaluator = OnnxEvaluator(case.prepared, case.evaluation, case.metric, seed=job.seed, policy=job.policy, progress=self.progress)
        self.samples = auto.spread(case.evaluation, LAYER_SAMPLES)
        self._refuse_float_only()
        self.reference = self._reference()
        partial = False
        try:
            self._measure()
            self._explain()
            self._against_vendor()
        except KeyboardInterrupt:
            if not self.rows:
                raise
            partial = True
        return self._write(partial)

    # -- measuring

    def _measure(self) -> None:
        """Every combination, calibrator by calibrator, so that a stop leaves whole lines of the first table."""
        keys = [(p, c, g) for p in self.asked.precisions for c in self.asked.calibrators for g in self.asked.scales]
        for number, (precision, spec, scale) in enumerate(keys):
            self.progress("plans", number, len(keys))
            key = (str(precision), spec, str(scale))
            try:
                plan, note = self._plan(precision, spec, scale)
                self.plans[key], self.rows[key] = plan, self._row(key, plan, note)
            except QbenchError as error:                     # one calibrator of many refuses this network; the others go on
                if len(self.asked.calibrators) == 1:
                    raise
                self.unmeasured[", ".join(key)] = str(error)
            if self.rows and (number + 1 == len(keys) or keys[number + 1][1] != spec):
                self._write_json(self._result(partial=True))
        self.progress("plans", len(keys), len(keys))
        if not self.rows:
            raise InputError(f"nothing could be measured: {'; '.join(f'{what}: {why}' for what, why in self.unmeasured.items())}")

    def _recipe(self, precision: Precision, spec: str, scale: Granularity) -> Recipe:
        target, toolkit = self.asked.target, self.asked.toolkit
        return Recipe(target, toolkit, schemes_of(target, toolkit), precision, spec, scale, target.fixed_outputs)

    def _made(self, precision: Precision, spec: str, scale: Granularity) -> Plan:
        """The plan of one calibrator, the default corrections included: what `qbench quantize` writes from the same statistics."""
        key = (precision, spec, scale)
        if key not in self.made:
            self.made[key] = corrected(self.job.case.prepared, self._recipe(precision, spec, scale), statistics=self.statistics).plan
        return self.made[key]

    def _plan(self, precision: Precision, spec: str, scale: Granularity) -> tuple[Plan, str]:
        """The plan, and what its calibrator says of its choice."""
        if not calibrators.is_auto(spec):
            return self._made(precision, spec, scale), ""

        def alone(units: Mapping[str, Precision], calibrator: str, granularity: Granularity, op_point: str) -> Plan:
            return self._made(precision, calibrator, granularity)

        case, uniform = self.job.case, {c: self._made(precision, c, scale) for c in auto.candidates_of(spec)}
        first = next(iter(uniform.values()))
        choice = auto.choose_on(case.calibration, case.prepared, alone, first.precision, scale, spec=spec, metric=case.metric,
                                simulate=self.evaluator.simulate, progress=self.progress)
        return replace(auto.mixed(uniform, choice.by_group, spec), notes={**first.notes, **choice.reasons}), choice.text

    def _row(self, key: tuple[str, str, str], plan: Plan, note: str) -> Row:
        """The plan measured; calibrators that lead to the same ranges share the measurement."""
        same = replace(plan, calibrator="").key
        name = re.sub(r"[^\w.=-]+", "_", "-".join(key))
        name = name if len(name) <= LONGEST else f"{name[:LONGEST]}-{plan.key}"
        plan.save(self.job.folder / "plans" / f"{name}.json")
        about: dict[str, Any] = {"calibrator": key[1], "plan": f"plans/{name}.json", "plan_key": plan.key, "note": note}
        if same not in self.known:
            prepared = rewritten(self.job.case.prepared, plan)
            written = qdq.write(prepared, plan)
            self.known[same] = Row(key[0], key[1], key[2], self.evaluator.evaluate_model(written.model), self._layers_of(prepared).worst(written),
                                   size_bytes(written.model), self._price(prepared, plan), plan.layers)
        return replace(self.known[same], **about)

    def _evaluate(self, plan: Plan) -> Accuracy:
        return self.evaluator.evaluate_model(qdq.write(rewritten(self.job.case.prepared, plan), plan).model)

    def _layers_of(self, prepared: PreparedModel) -> LayerErrors:
        if id(prepared) not in self.errors:
            self.errors[id(prepared)] = prepared, LayerErrors(prepared, self.samples, simulate=self.evaluator.simulate)
        return self.errors[id(prepared)][1]

    def _table(self, prepared: PreparedModel) -> CostTable:
        if id(prepared) not in self.tables:
            self.tables[id(prepared)] = prepared, CostTable.build(prepared.network, placed(self.asked.target, prepared, self.asked.toolkit), self.asked.toolkit)
        return self.tables[id(prepared)][1]

    def _price(self, prepared: PreparedModel, plan: Plan) -> Price:
        table = self._table(prepared)
        return table.price(table.codes(plan)[None], self.asked.op_point)[0]

    def _reference(self) -> Row:
        prepared, table = self.job.case.prepared, self._table(self.job.case.prepared)
        wide = next((p for p in (Precision.FP32, Precision.FP16) if p in table.available), table.available[0])
        price = table.price(table.uniform(wide)[None], self.asked.op_point)[0]
        return Row(FLOAT, "", "", self.evaluator.reference(), None, size_bytes(prepared.model), price, {"fp32": len(prepared.network.units)})

    def _refuse_float_only(self) -> None:
        plan = self._made(self.asked.precisions[0], "minmax", Granularity.PER_LAYER)
        if all(p.is_float for p in plan.precision.values()):
            why = next(iter(plan.notes.values()), "it has no layer that integers serve")
            raise InputError(f"{self.job.case.network.name}: no layer can run in {self.asked.precisions[0]}, so there is nothing to compare: {why}")

    # -- explaining

    def _explain(self) -> None:
        """The gaps of the best calibrator of each precision, one for each step of the scales."""
        for precision in self.asked.precisions:
            rows = [r for r in self.rows.values() if r.precision == precision]
            for ladder in ladders(rows):
                if ladder.calibrator == ranked(rows)[0].calibrator:
                    for gap in self._steps(ladder):
                        self.gaps.append(gap)

    def _steps(self, ladder: Ladder) -> Iterator[Gap]:
        prepared = self.job.case.prepared
        for coarse, fine in ladder.steps():
            a, b = ((row, self.plans[row.precision, row.calibrator, row.scale]) for row in (coarse, fine))
            model = rewritten(prepared, a[1])
            if (coarse.scale, fine.scale) == (Granularity.GLOBAL, Granularity.PER_LAYER):
                yield range_gap(model, a, b, self.samples[:WALK_SAMPLES], self._evaluate, self.progress)
            elif (coarse.scale, fine.scale) == (Granularity.PER_LAYER, Granularity.PER_CHANNEL):
                yield weight_gap(model, a, b, self.samples[:WALK_SAMPLES], self._evaluate, self.progress)
            else:
                why = "only neighbouring scales are explained: give those between them, too"
                self.unmeasured[f"why {fine.scale} differs from {coarse.scale}"] = why

    # -- the vendor's own

    def _against_vendor(self) -> None:
        """The best row of each precision and the plans that were given, beside the vendor's results."""
        if not self.job.vendor:
            return
        best = {f"{p}, {r.calibrator}": r for p in self.asked.precisions for r in ranked([r for r in self.rows.values() if r.precision == p])[:1]}
        plans = {name: self.plans[r.precision, r.calibrator, r.scale] for name, r in best.items()} | {p.stem: Plan.load(p) for p in self.job.plans}
        self.vendor = vendor_rows(self.job.vendor, self.job.case, self.asked.target, self.asked.toolkit, plans, self.job.folder / "vendor", self.progress)

    # -- what comes out

    def _result(self, partial: bool) -> Comparison:
        case, job, evaluator = self.job.case, self.job, self.evaluator
        told = (*case.warnings, *self.statistics.warnings(), *evaluator.warnings, *unpriced(case.network))
        return Comparison(case.network.name, case.sample is not None, self.asked.target.name, self.asked.toolkit, self.reference,
                          tuple(self.rows.values()), tuple(self.gaps), self.asked.calibrators, len(self.samples), time.perf_counter() - self.start,
                          _provenance(job, self.asked, evaluator), tuple(dict.fromkeys(told)), partial, dict(self.unmeasured), self.vendor)

    def _write(self, partial: bool) -> Comparison:
        """compare.json and compare.html; plans of an earlier comparison in the folder go."""
        result, folder = self._result(partial), self.job.folder
        mine = {folder / row.plan for row in result.rows}
        for stale in set((folder / "plans").glob("*.json")) - mine:
            stale.unlink()
        self._write_json(result)
        write_comparison(result, folder / "compare.html")
        return result

    def _write_json(self, result: Comparison) -> None:
        write_text(self.job.folder / "compare.json", json.dumps(words.json_body(result), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _provenance(job: CompareJob, asked: _Asked, evaluator: OnnxEvaluator) -> dict[str, str]:
    """What the report prints beside its figures."""
    target, case, sample = asked.target, job.case, job.case.sample
    about = {"sample_name": sample.title, "sample_licence": sample.licence, "sample_caveats": " ".join(sample.caveats)} if sample else {}
    return about | {
        "command": job.command, "calibrated on": f"{case.calibration.name}, {len(case.calibration)} samples",
        "evaluated on": f"{case.evaluation.name}, {len(case.evaluation)} samples", "operating point": asked.op_point,
        **asdict(target.provenance),
        "accuracy": "Q/DQ run in float: this CPU's integer kernels saturate" if evaluator.simulate else "integer kernels of onnxruntime"}
