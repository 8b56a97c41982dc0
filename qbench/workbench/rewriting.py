"""`qbench rewrite`: which rewrites a target needs or gains by, each proven and priced before it stays."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from qbench import targets
from qbench.cost import CostTable
from qbench.data import open_dataset, parse_preprocessing
from qbench.errors import InputError, ModelError
from qbench.graph import load_network
from qbench.inspection.opening import Sized, spelled, with_sizes
from qbench.modelfiles import refuse_overwriting
from qbench.network import Precision
from qbench.placement.operators import operators_of
from qbench.placement.record import Placement, Verdict
from qbench.qdq.saving import save
from qbench.rewriting import Change, Exactness, Rewrite
from qbench.target import Target
from qbench.targets.rewrites import REWRITES, named
from qbench.targets.rewrites.outputs import host_part
from qbench.targets.rules import rules_of
from qbench.workbench.case import input_specs
from qbench.workbench.placing import placed
from qbench.workbench.precisions import precision_of
from qbench.workbench.proving import (
    OTHER_INDICES,
    Answers,
    Feeds,
    allowed,
    amplification,
    answers,
    difference,
    random_feeds,
    weightless,
    with_random_weights,
)

ROUNDS = 4
"""New nodes may want a rewrite of their own; chains end after two rounds in all networks tried."""
GAIN = 0.999
"""A rewrite for speed stays where the price falls below this share of the one before."""
DATA_SAMPLES = 4
HOST = "post-processing-to-host"
AWAY = (Placement.CPU, Placement.PARTLY, Placement.REFUSED)


@dataclass(frozen=True)
class Step:
    """One rewrite that fits the model.

    why       it is applied, or why it is not
    kept      False: the graph is as before
    error     largest difference at the outputs, over their largest magnitude; None when it was not run
    limit     that the error was held against; None where consent stands in its place
    ms        price of one inference, before and after; None when it was not priced
    """

    rewrite: str
    exactness: str
    meaning: str
    becomes: str
    why: str
    kept: bool
    changes: tuple[Change, ...] = ()
    error: float | None = None
    limit: float | None = None
    ms_before: float | None = None
    ms_after: float | None = None


@dataclass(frozen=True)
class Left:
    """Operators of one type that the target still does not run on its NPU."""

    op: str
    placement: str
    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Rewritten:
    """What `qbench rewrite` did.

    error    at the outputs, the rewritten graph against the one before all rewrites
    read     nodes of the file, and of the graph with constants, BatchNormalization and idle nodes folded on reading
    notes    what the proof rests on
    """

    model: str
    target: str
    toolkit: str
    precision: str
    op_point: str
    read: tuple[int, int]
    nodes: int
    steps: tuple[Step, ...]
    left: tuple[Left, ...]
    error: float
    ms_before: float
    ms_after: float
    output: str
    host: str
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def rewrite_model(model: Path, target: str, output: Path, *, allow: Sequence[str] = (), only: Sequence[str] = (), precision: str | None = None,
                  toolkit: str | None = None, data: str | None = None, preprocess: str | None = None,
                  input_shapes: Mapping[str, tuple[int, ...]] | None = None, input_values: Mapping[str, str] | None = None) -> Rewritten:
    """Writes the rewritten model to `output`, its part for the host beside it.

    allow   names that are applied wherever they fit, consent given
    only    names beside which no other rewrite is tried; applied wherever they fit
    data    calibration data to prove on, beside random inputs; preprocess   how pictures become inputs
    Raises UnknownName for a rewrite that does not exist; ModelError, TargetError as `qbench inspect`.
    """
    asked = {named(n).name for n in (*allow, *only)}
    refuse_overwriting(output, model=model)
    file = spelled(model)
    sized = with_sizes(model, file.graph, input_shapes or {}, input_values or {})
    if sized.static is None or sized.prepared is None:
        raise ModelError(f"{model}: {sized.reason}")
    chip = targets.load(target)
    version = chip.toolkit(toolkit)
    chosen = precision_of(precision) if precision else chip.available(version)[0]
    chip.support(chosen, version)
    work = _Work.begin(sized.static, chip, version, chosen, _samples(sized, data, preprocess))
    tried = [REWRITES[n] for n in only] if only else sorted(REWRITES.values(), key=lambda r: (not r.tidies, chip.rules not in r.hazards, r.speeds))
    for number in range(ROUNDS):
        before = len([s for s in work.steps if s.kept])
        for rewrite in tried:
            work.attempt(rewrite, asked if number == 0 else (), set(allow) | set(only))
        if len([s for s in work.steps if s.kept]) == before:
            break
    return _written(work, model, output, (len(file.graph), len(sized.static.graph)), _notes(work, sized, input_shapes or {}, data))


def _samples(sized: Sized, data: str | None, preprocess: str | None) -> list[Feeds]:
    """Random inputs, and a few of the data set."""
    assert sized.static is not None and sized.prepared is not None
    found: list[Feeds] = list(random_feeds(sized.static))
    if data is not None:
        pictures = None if preprocess is None else parse_preprocessing(preprocess)
        dataset = open_dataset(data, inputs=input_specs(sized.prepared), preprocessing=pictures, limit=DATA_SAMPLES)
        found += [dict(batch.feeds) for batch in dataset.batches(1)]
    return found


def _notes(work: _Work, sized: Sized, given: Mapping[str, tuple[int, ...]], data: str | None) -> tuple[str, ...]:
    notes = [f"proven on {len(work.feeds)} inputs: " + ("random ones and calibration data" if data else "random ones; give --data for real ones")]
    if work.probe is not work.model:
        notes.append("the file's weights are zeros: proven with random weights in their place")
    notes += [f"input {n} was taken as {list(s)}" for n, s in sized.shapes.items() if n not in given]
    return tuple(notes)


@dataclass
class _Work:
    """The graph while it is rewritten. probe   the same with random weights where the file has none; parts   graphs that run one behind the other"""

    target: Target
    toolkit: str
    precision: Precision
    feeds: list[Feeds]
    model: ir.Model
    probe: ir.Model
    host: ir.Model | None
    probe_host: ir.Model | None
    reference: Answers
    last: Answers
    growth: float
    ms_before: float
    ms: float
    steps: list[Step]

    @staticmethod
    def begin(model: ir.Model, target: Target, toolkit: str, precision: Precision, feeds: list[Feeds]) -> _Work:
        model = model.clone()
        probe = with_random_weights(model) if weightless(model) else model
        reference = answers([probe], feeds)
        price = _price(model, target, toolkit, precision)
        return _Work(target, toolkit, precision, feeds, model, probe, None, None, reference, reference, amplification(probe, feeds, reference), price, price, [])

    def attempt(self, rewrite: Rewrite, asked: Collection[str], consent: Collection[str]) -> None:
        """Applies `rewrite` where it is asked for, needed or pays; keeps it where it is proven."""
        if (rewrite.ops and not any(n.op_type in rewrite.ops for n in self.model.graph)) or (rewrite.name == HOST and self.host is not None):
            return
        places = rewrite.places(self.model)
        verdicts = self._verdicts(self.model)
        wanted, why = self._reason(rewrite, places, verdicts, rewrite.name in asked)
        if not wanted:
            return
        if rewrite.exactness.needs_consent and rewrite.name not in consent:
            if not any(s.rewrite == rewrite.name for s in self.steps):
                self.steps.append(_step(rewrite, f"{why}; needs consent: --allow {rewrite.name}", False))
            return
        if not any(s.rewrite == rewrite.name and not s.kept for s in self.steps):
            self.steps.append(self._tried(rewrite, wanted, why, rewrite.name in asked, verdicts))

    def _reason(self, rewrite: Rewrite, places: Sequence[tuple[str, ...]], verdicts: Mapping[str, Verdict], asked: bool) -> tuple[set[str], str]:
        """Nodes that are to go, and why; no nodes: it is not applied."""
        every = {n for p in places for n in p}
        if asked or rewrite.tidies or self.target.rules in rewrite.hazards:
            return every, rewrite.hazards.get(self.target.rules, "asked for" if asked else "less to do")
        ops = {str(n.name): n.op_type for n in self.model.graph}
        away = {n for n in every if ops.get(n) in rewrite.ops and verdicts[n].placement in AWAY}
        if away:
            worst = max((verdicts[n] for n in away), key=lambda v: v.placement.severity)
            return away, f"{worst.placement}: {worst.why}" if worst.why else str(worst.placement)
        return (every, "tried for speed") if rewrite.speeds else (set(), "")

    def _tried(self, rewrite: Rewrite, wanted: set[str], why: str, asked: bool, verdicts: Mapping[str, Verdict]) -> Step:
        trial = self.model.clone()
        changes = rewrite.apply(trial, lambda names: bool(wanted.intersection(names)))
        if not changes:
            return _step(rewrite, f"{why}; it fits nowhere", False)
        ms = _price(trial, self.target, self.toolkit, self.precision)
        found = replace(_step(rewrite, why, False), changes=changes, ms_before=self.ms, ms_after=ms)
        if reason := "" if asked else self._against(rewrite, changes, verdicts, self._verdicts(trial), ms):
            return replace(found, why=f"{why}; not kept: {reason}")
        probe = trial
        if self.probe is not self.model:
            probe = self.probe.clone()
            rewrite.apply(probe, lambda names: bool(wanted.intersection(names)))
        hosts = (host_part(self.model, trial), host_part(self.probe, probe)) if rewrite.name == HOST else (self.host, self.probe_host)
        got = answers([probe] if hosts[1] is None else [probe, hosts[1]], self.feeds)
        error = difference(self.last, got)
        limit = None if rewrite.exactness.needs_consent else allowed(rewrite.tolerance, self.growth)
        if limit is not None and error > limit and not (rewrite.exactness is Exactness.N and self._only_indices(got, limit)):
            return replace(found, error=error, limit=limit, why=f"{why}; not kept: the answers differ by {error:.1e}, {limit:.1e} is allowed")
        self.model, self.probe, self.last, self.ms = trial, probe, got, ms
        self.host, self.probe_host = hosts
        return replace(found, kept=True, error=error, limit=limit)

    def _only_indices(self, got: Answers, limit: float) -> bool:
        """Whether only a few indices differ that other rounding tips over."""
        real = Answers(tuple({k: v for k, v in o.items() if v.dtype.kind == "f"} for o in self.last.outputs))
        whole = Answers(tuple({k: v for k, v in o.items() if v.dtype.kind != "f"} for o in self.last.outputs))
        return difference(real, got) <= limit and difference(whole, got) <= OTHER_INDICES

    def _against(self, rewrite: Rewrite, changes: Sequence[Change], old: Mapping[str, Verdict], new: Mapping[str, Verdict], ms: float) -> str:
        """Why a rewrite that nobody asked for does not stay; "" when it does."""
        if self.target.rules in rewrite.hazards:
            return ""
        if rewrite.tidies:
            return f"it costs {ms:.3g} ms in place of {self.ms:.3g} ms" if ms > self.ms else ""
        before = max((old[n].placement for c in changes for n in c.old if n in old), key=lambda p: p.severity)
        after = max((new[n].placement for c in changes for n in c.new if n in new), key=lambda p: p.severity, default=Placement.NPU)
        if before in AWAY and after.severity >= before.severity:
            return f"what stands there instead is {after} too"
        if before is Placement.REFUSED:
            return ""
        if rewrite.name == HOST:
            return "the toolchain runs it on the CPU itself"
        if before in AWAY:
            return f"it costs {ms:.3g} ms in place of {self.ms:.3g} ms" if ms > self.ms else ""
        if after in AWAY:
            return f"what stands there instead is {after}"
        return f"it costs {ms:.3g} ms in place of {self.ms:.3g} ms" if ms > self.ms * GAIN else ""

    def _verdicts(self, model: ir.Model) -> dict[str, Verdict]:
        rules = rules_of(self.target)
        return {n: rules.judge(o, self.target, self.precision, self.toolkit)
                for n, o in operators_of(model.graph, model.opset_imports.get("", 0)).items()}

    def left(self) -> tuple[Left, ...]:
        """What does not run on the NPU yet, the worst first."""
        groups: dict[tuple[str, Placement], list[tuple[str, str]]] = {}
        ops = {str(n.name): n.op_type for n in self.model.graph}
        for name, verdict in self._verdicts(self.model).items():
            if verdict.placement in AWAY:
                groups.setdefault((ops[name], verdict.placement), []).append((name, verdict.why))
        ordered = sorted(groups.items(), key=lambda g: (-g[0][1].severity, -len(g[1])))
        return tuple(Left(op, str(placement), tuple(n for n, _ in found), found[0][1]) for (op, placement), found in ordered)


def _step(rewrite: Rewrite, why: str, kept: bool) -> Step:
    return Step(rewrite.name, str(rewrite.exactness), rewrite.exactness.meaning, rewrite.becomes, why, kept)


def _price(model: ir.Model, target: Target, toolkit: str, precision: Precision) -> float:
    """Milliseconds of one inference at the fastest operating point, every layer at `precision` where it can take it, on the CPU what the target
    leaves there."""
    point, prepared = target.operating_points[-1], load_network(model)
    table = CostTable.build(prepared.network, replace(placed(target, prepared, toolkit), operating_points=(point,)), toolkit)
    return float(table.price(table.uniform(precision)[None], point.name)[0].latency_ms)


def _written(work: _Work, source: Path, output: Path, read: tuple[int, int], notes: tuple[str, ...]) -> Rewritten:
    host = output.with_suffix(".host.onnx") if work.host is not None else None
    if host is not None and work.host is not None:
        if host.exists() and host.resolve() == source.resolve():
            raise InputError(f"{host}: the part for the host would overwrite the model; choose another -o")
        save(work.host, host)
    save(work.model, output)
    return Rewritten(source.stem, work.target.name, work.toolkit, str(work.precision), work.target.operating_points[-1].name, read, len(work.model.graph),
                     tuple(work.steps), work.left(), difference(work.reference, work.last), work.ms_before, work.ms, str(output), str(host or ""), notes)
