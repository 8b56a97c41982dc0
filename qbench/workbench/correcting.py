"""Plans with corrections: which steps, in which order, on which statistics, and what each of them gained."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from qbench import calibrators, qdq
from qbench.affine import Range, Scheme
from qbench.corrections import STEPS, chosen, name_of, text_of
from qbench.corrections.adaround import learned_rounding
from qbench.corrections.bias import Found, corrected_biases
from qbench.corrections.mask import Masking, finite_masks, mask_ranges, masking
from qbench.corrections.mask_check import changed
from qbench.corrections.mask_pattern import masked
from qbench.corrections.rewriting import MASKED, equalized_once, with_constants
from qbench.corrections.steps import AdaRound, BiasCorrection, Correction, Equalization, Mask
from qbench.errors import InputError
from qbench.evaluation import batch_size, loaded
from qbench.graph import PreparedModel
from qbench.metrics import Fidelity
from qbench.metrics.fidelity import MOST_DB
from qbench.network import Network, Precision
from qbench.packed import Packed
from qbench.plan import BIAS_GUARD, Granularity, Plan
from qbench.protocols import Array, Dataset, Progress, Seen, silent
from qbench.runtime import Session, integer_kernels_saturate
from qbench.statistics import Statistics
from qbench.target import QuantScheme, Target
from qbench.workbench import auto
from qbench.workbench.plans import Plans, statistics_of
from qbench.workbench.precisions import allowed_precisions

CHECKED = 32
"""Calibration samples on which a gain is measured."""
WORSE_DB = 0.5
"""A step that learns and loses more than that is told to be left out; masks are compared with float, and conventions are conventions."""
FEW, MANY, VALUES = 16, 1024, 1 << 25
"""Samples that a step learns from: as many as make VALUES values of the largest activation, within these bounds. A walk holds a few
activations of all samples, each twice."""
NEED_DATA = {"cle": "the equalized network has activations of its own, which must be observed",
             "adaround": "rounding is learned on calibration samples", "bias": "mean errors are measured on calibration samples"}


@dataclass(frozen=True)
class Recipe:
    """What a plan is made to.

    schemes     how tensors are stored, by precision
    precision   of every unit that can take it; or of each unit by name
    """

    target: Target
    toolkit: str
    schemes: Mapping[str, QuantScheme]
    precision: Precision | Mapping[str, Precision]
    calibrator: str
    granularity: Granularity
    fixed_outputs: str = ""
    op_point: str = ""


@dataclass(frozen=True)
class Gain:
    """What one step did. sqnr_before_db, sqnr_after_db   of the network's first float output against float, on calibration samples; None without data"""

    step: str
    sqnr_before_db: float | None
    sqnr_after_db: float | None
    seconds: float
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Corrected:
    """prepared   the network that the plan is about: equalized, with new masks
    statistics  of that network
    gains       one for each step that was asked for, in the order in which they were applied
    masks, mask  what became of attention masks, and by which options
    """

    prepared: PreparedModel
    statistics: Statistics
    plan: Plan
    gains: tuple[Gain, ...]
    masks: Masking = field(default_factory=Masking)
    mask: Mask = field(default_factory=Mask)


@dataclass(frozen=True)
class _State:
    """Where the work stands. done   texts of the steps that the plan lists; the writer's two are switches"""

    prepared: PreparedModel
    statistics: Statistics
    masks: Masking
    mask: Mask = field(default_factory=Mask)
    done: tuple[str, ...] = ()
    fixed: bool = False
    tensors: Mapping[str, Packed] = field(default_factory=dict)


def corrected(prepared: PreparedModel, recipe: Recipe, steps: Sequence[str] = (), *, statistics: Statistics | None = None,
              dataset: Dataset | None = None, policy: str = "stop", threads: int | None = None, progress: Progress = silent) -> Corrected:
    """A plan with corrections, and what each gained.

    steps       specs beside the default ones; "none" leaves those out (`qbench.corrections.chosen`)
    statistics  of `prepared`; collected from `dataset` where there is none
    Raises InputError when there is neither, or a step needs samples and has none.
    """
    wanted = chosen(steps)
    if statistics is None and dataset is None:
        raise InputError("no statistics and no calibration data: give one of the two, --stats FILE or --data D")
    for step in wanted:
        if dataset is None and (why := NEED_DATA.get(name_of(step))):
            raise InputError(f"correction {name_of(step)!r} needs calibration data ({why}): add --data D")
    return _Work(prepared, recipe, dataset, policy, threads, progress).run(wanted, statistics)


def masked_sums(masks: Masking, mask: Mask, prepared: PreparedModel, statistics: Statistics, calibrator: str, used: Sequence[Scheme]) -> dict[str, Range]:
    """scale group -> range of what masks were added to; `used` are the schemes of activations that the plan has."""
    if not masks.cases or not used:
        return {}
    scheme, made = min(used, key=lambda s: s.levels), calibrators.make(calibrator)

    def calibrated(seen: Seen) -> Range:
        return made.range(seen, scheme.levels, scheme.symmetric)

    return mask_ranges(masks, prepared.network, statistics, mask, max(s.levels for s in used), calibrated)


def _units_in(network: Network, reasons: Mapping[str, str]) -> dict[str, str]:
    """Reasons by unit of `network`, from reasons by unit of one whose constants are others: units are named after a kernel."""
    return {network.unit_of_kernel[u]: why for u, why in reasons.items() if u in network.unit_of_kernel}


class _Work:
    def __init__(self, prepared: PreparedModel, recipe: Recipe, dataset: Dataset | None, policy: str, threads: int | None, progress: Progress) -> None:
        self.original, self.recipe, self.dataset, self.policy, self.threads, self.progress = prepared, recipe, dataset, policy, threads, progress
        self.samples = {} if dataset is None else {CHECKED: auto.spread(dataset, CHECKED)}
        self.choices: dict[str, Mapping[str, str]] = {}
        self.simulate = integer_kernels_saturate()
        self.output = next((o for o in prepared.network.outputs if prepared.network.tensors[o].dtype == "float32"), None)
        self.reference = self._outputs(prepared) if dataset is not None and self.output is not None else []

    def run(self, wanted: Sequence[Correction], statistics: Statistics | None) -> Corrected:
        steps = {name_of(s): s for s in wanted}
        seen = statistics or self._observe(self.original)
        state = _State(self.original, seen, self._masks_as_they_are(self.original, seen))
        plan = self._plan(state)
        before = self._sqnr(state, plan)
        gains = []
        for name in STEPS:
            if name not in steps:
                continue
            start = time.perf_counter()
            state, remarks = self._apply(name, steps[name], state, plan)
            changed_plan = self._plan(state)
            seconds = time.perf_counter() - start
            after = before if changed_plan == plan else self._sqnr(state, changed_plan)
            plan = changed_plan
            if name in NEED_DATA and before is not None and after is not None and after < before - WORSE_DB:
                remarks.append(f"the output is {before - after:.1f} dB worse with this step than without: leave it out here")
            gains.append(Gain(text_of(steps[name]), before, after, seconds, tuple(remarks)))
            before = after
        return Corrected(state.prepared, state.statistics, plan, tuple(gains), state.masks, state.mask)

    # -- the steps

    def _apply(self, name: str, step: Correction, state: _State, plan: Plan) -> tuple[_State, list[str]]:
        """The state after a step, and what a reader wants to know about it."""
        match step:
            case Equalization():
                return self._equalize(step, state)
            case Mask():
                return self._mask(step, state)
            case AdaRound():
                found = learned_rounding(state.prepared, plan, self._learn_from(step.samples), step, threads=self.threads, progress=self.progress)
                return self._with(state, step, found)
            case BiasCorrection():
                found = corrected_biases(state.prepared, plan, self._learn_from(step.samples), step, threads=self.threads, progress=self.progress)
                return self._with(state, step, found)
        if name == BIAS_GUARD:
            done = replace(state, done=(*state.done, name))
            widened = qdq.write(done.prepared, self._plan(done)).widened
            return done, [f"weight {w}: scale widened {factor:.4g} times so that its bias fits int32" for w, factor in widened.items()] or [
                "every bias fits int32 as it is"]
        done = replace(state, fixed=True)
        fixed = self._plan(done).ranges.items() - plan.ranges.items()
        return done, [f"{group}: [{r.low:g}, {r.high:g}]" for group, r in sorted(fixed, key=lambda item: item[0])] or [
            "the target prescribes no range that this network has" if self.recipe.fixed_outputs else "the target prescribes none"]

    def _with(self, state: _State, step: Correction, found: Found) -> tuple[_State, list[str]]:
        remarks = [f"{layer}: {why}" for layer, why in found.remarks.items()]
        if not found.tensors:
            return state, [*remarks, "nothing was found to correct"]
        return replace(state, done=(*state.done, text_of(step)), tensors={**state.tensors, **found.tensors}), remarks

    def _equalize(self, step: Equalization, state: _State) -> tuple[_State, list[str]]:
        found = equalized_once(state.prepared, step)
        skipped = [f"{layer}: not equalized with the next layer: {why}" for layer, why in found.skipped.items()]
        if not found.pairs:
            return state, [*skipped, "no two layers of this network can be equalized"]
        seen = self._observe(found.model)
        masks = self._masks_as_they_are(found.model, seen)
        return replace(state, prepared=found.model, statistics=seen, masks=masks, done=(*state.done, text_of(step))), [
            f"{len(found.pairs)} pairs of layers; largest factor of a channel {found.largest:.4g}", *skipped]

    def _mask(self, step: Mask, state: _State) -> tuple[_State, list[str]]:
        stays: dict[str, str] = {}
        finite = finite_masks(state.prepared)
        while True:
            found = masking(finite, state.statistics, step, stays)
            after = with_constants(state.prepared, dict(found.constants), MASKED) if found.constants else state.prepared
            odd = changed(self.original, after, found.applied, self.samples[CHECKED], rows=step.rows, threads=self.threads) if self.dataset else {}
            stays |= odd
            if not odd:
                break
        remarks = [*found.applied.values(), *found.refused.values()]
        found = replace(found, floats=_units_in(after.network, found.floats))
        if freed := sorted(set(state.masks.floats) - set(found.floats)):
            remarks.append(f"units that need not stay in float for their mask now: {', '.join(freed)}")
        if not found.constants:
            return replace(state, masks=found), remarks or ["no attention mask"]
        if self.dataset is None:
            remarks.append("not looked at on samples: rows that are masked entirely may change; give --data to have it checked")
        seen = self._observe(after) if self.dataset else replace(state.statistics, model_key=after.network.model_key)
        return replace(state, prepared=after, statistics=seen, masks=found, mask=step, done=(*state.done, text_of(step)),
                       tensors={**state.tensors, **found.tensors}), remarks

    # -- plans, statistics, samples

    def _plan(self, state: _State) -> Plan:
        recipe, network = self.recipe, state.prepared.network
        cured = {t for c in state.masks.cases for t in (*(name for name, _ in c.found.chain), *c.found.tree)}
        allowed, reasons = allowed_precisions(network, state.statistics, recipe.target, recipe.toolkit, masked=cured)
        floats = {u: tuple(p for p in options if p.is_float) or (Precision.FP32,) for u, options in allowed.items()}
        options = {u: floats[u] if u in state.masks.floats else allowed[u] for u in allowed}
        asked = {u: recipe.precision if isinstance(recipe.precision, Precision) else recipe.precision[u] for u in options}
        precision = {u: asked[u] if asked[u] in options[u] else next((p for p in options[u] if p.is_float), options[u][-1]) for u in options}
        guard = (BIAS_GUARD,) if BIAS_GUARD in state.done else ()
        before, after = ("cle", "mask"), ("adaround", "bias")
        listed = [c for names in (before, guard, after) for c in state.done if c.partition(":")[0] in names]
        plans = Plans(network, state.statistics, recipe.schemes, recipe.target.name, recipe.toolkit, recipe.fixed_outputs if state.fixed else "",
                      overrides=self._overrides(state, asked), corrections=tuple(listed), tensors=state.tensors)
        notes = {u: state.masks.floats.get(u) or reasons.get(u, "") for u in options
                 if precision[u] is not asked[u] or (precision[u] is Precision.FP16 and "FP16" in reasons.get(u, ""))}
        made = replace(plans, choices=self._choices(state, plans, precision))(precision, recipe.calibrator, recipe.granularity, recipe.op_point)
        return replace(made, notes={**{u: why for u, why in notes.items() if why}, **made.notes})

    def _choices(self, state: _State, plans: Plans, precision: Mapping[str, Precision]) -> Mapping[str, str]:
        """What "auto" chooses for each scale group by the error behind it, once for a network; nothing without samples to look at."""
        key, recipe = state.prepared.network.model_key, self.recipe
        if self.dataset is None or not calibrators.is_auto(recipe.calibrator) or all(p.is_float for p in precision.values()):
            return {}
        if key not in self.choices:
            self.choices[key] = auto.choose_on(self.dataset, state.prepared, plans, precision, recipe.granularity, spec=recipe.calibrator,
                                               simulate=self.simulate, progress=self.progress).by_group
        return self.choices[key]

    def _overrides(self, state: _State, asked: Mapping[str, Precision]) -> dict[str, Range]:
        """Ranges of masked sums: calibrated for the narrowest integers that the plan has, masked for the widest."""
        used = [self.recipe.schemes[str(p)].activation for p in dict.fromkeys(asked.values()) if str(p) in self.recipe.schemes]
        return masked_sums(state.masks, state.mask, state.prepared, state.statistics, self.recipe.calibrator, used)

    def _masks_as_they_are(self, prepared: PreparedModel, seen: Statistics) -> Masking:
        """Every mask stays: what a plan without the step has to keep in float."""
        off = {one.name: 'the correction "mask" is not applied' for one in masked(prepared.model.graph)}
        found = masking(finite_masks(prepared), seen, Mask(), off)
        return replace(found, floats=_units_in(prepared.network, found.floats))

    def _observe(self, prepared: PreparedModel) -> Statistics:
        assert self.dataset is not None
        return statistics_of(prepared, self.dataset, policy=self.policy, progress=self.progress)

    def _learn_from(self, count: int) -> list[dict[str, Array]]:
        assert self.dataset is not None
        size = max(t.elements for t in self.original.network.tensors.values())
        count = count or int(np.clip(VALUES // max(size, 1), FEW, MANY))
        if count not in self.samples:
            self.samples[count] = auto.spread(self.dataset, count)
        return self.samples[count]

    # -- what was gained

    def _sqnr(self, state: _State, plan: Plan) -> float | None:
        if self.dataset is None or self.output is None:
            return None
        fidelity = Fidelity()
        with loaded(qdq.write(state.prepared, plan).model, self.threads, self.simulate) as session:
            for was, now in zip(self.reference, self._run(session), strict=True):
                fidelity.update(was, now)
        return float(np.clip(fidelity.sqnr_db, -MOST_DB, MOST_DB))

    def _outputs(self, prepared: PreparedModel) -> list[Array]:
        with loaded(prepared.model, self.threads, False) as session:
            return self._run(session)

    def _run(self, session: Session) -> list[Array]:
        """The first float output on the checked samples, in batches where the model takes them."""
        assert self.output is not None
        samples, size = self.samples[CHECKED], batch_size(self.original.model, self.original.network)
        chunks = [samples[i:i + size] for i in range(0, len(samples), size)]
        return [np.atleast_1d(session.run({k: np.concatenate([s[k] for s in c]) for k in c[0]})[self.output]) for c in chunks]
