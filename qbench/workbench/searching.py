"""What a search makes its plans with: masks corrected, and `auto` decided, before the first candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from qbench import calibrators
from qbench.affine import Scheme
from qbench.corrections import DEFAULTS, name_of, text_of
from qbench.corrections import make as make_correction
from qbench.corrections.mask_pattern import masked
from qbench.errors import InputError
from qbench.network import Precision
from qbench.plan import Granularity, Plan
from qbench.protocols import Progress
from qbench.search.problem import MakePlan
from qbench.statistics import Statistics
from qbench.target import Target
from qbench.workbench.auto import choose_on
from qbench.workbench.case import Case
from qbench.workbench.correcting import Corrected, Recipe, corrected, masked_sums
from qbench.workbench.plans import Plans, schemes_of


@dataclass(frozen=True)
class MaskedPlans:
    """Makes plans of a network whose masks were corrected, whatever calibrator is asked for.

    plans   of the corrected network; the ranges of masked sums, which depend on the calibrator, are filled in
    """

    plans: Plans
    base: Corrected
    _kept: dict[tuple[str, tuple[Scheme, ...]], Plans] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, precision: Mapping[str, Precision], calibrator: str, granularity: Granularity, op_point: str) -> Plan:
        used = tuple(s.activation for p, s in self.plans.schemes.items() if p in {str(x) for x in precision.values()})
        if (key := (calibrator, used)) not in self._kept:
            ranges = masked_sums(self.base.masks, self.base.mask, self.base.prepared, self.base.statistics, calibrator, used)
            self._kept[key] = replace(self.plans, overrides=ranges)
        return self._kept[key](precision, calibrator, granularity, op_point)


@dataclass
class CorrectedPlans:
    """Makes plans with one correction more, which learns once per calibrator and granularity, every unit at its narrowest precision.

    What it found for a layer goes into the plans that have the layer in that precision, and for biases in any integers.
    """

    case: Case
    recipe: Recipe
    narrow: Mapping[str, Precision]
    step: str
    plans: Plans
    policy: str
    progress: Progress
    _kept: dict[tuple[str, Granularity], Plans] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, precision: Mapping[str, Precision], calibrator: str, granularity: Granularity, op_point: str) -> Plan:
        if (key := (calibrator, granularity)) not in self._kept:
            recipe = replace(self.recipe, calibrator=calibrator, granularity=granularity)
            found = corrected(self.case.prepared, recipe, (self.step,), statistics=self.plans.statistics, dataset=self.case.calibration,
                              policy=self.policy, progress=self.progress)
            self._kept[key] = replace(self.plans, network=found.prepared.network, statistics=found.statistics, corrections=found.plan.corrections,
                                      tensors=found.plan.tensors)
        plans = self._kept[key]
        unit_of = {node: plans.network.unit_of_kernel[k.name] for k in plans.network.kernels for node in k.nodes}
        weights = {str(v.name): unit_of[str(n.name)] for n in self.case.prepared.model.graph if str(n.name) in unit_of
                   for v in n.inputs if v is not None and v.is_initializer()}
        units = {f"round:{name}": unit for name, unit in weights.items()} | {f"bias:{node}": unit for node, unit in unit_of.items()}

        def holds(name: str) -> bool:
            unit = units.get(name)
            if unit is None:
                return True
            return precision[unit] is self.narrow[unit] if name.startswith("round:") else not precision[unit].is_float

        return replace(plans, tensors={name: t for name, t in plans.tensors.items() if holds(name)})(precision, calibrator, granularity, op_point)


def corrected_makers(case: Case, texts: Sequence[str], plans: MakePlan, allowed: Mapping[str, Sequence[Precision]], target: Target, toolkit: str,
                     policy: str, progress: Progress) -> dict[str, MakePlan]:
    """Spec of a correction -> maker of plans that have it. Raises UnknownName or InputError for a spec that names none that could be chosen."""
    if not texts:
        return {}
    if not isinstance(plans, Plans):
        raise InputError("--correct: the network has attention masks, which the search corrects already; it cannot vary other corrections beside them yet. "
                         "Leave --correct out, and try them on the chosen plan's precisions with `qbench quantize --correct`")
    narrow = {u: min(options, key=lambda p: p.activation_bytes) for u, options in allowed.items()}
    found: dict[str, MakePlan] = {}
    for step in (make_correction(t) for t in texts):
        if name_of(step) in DEFAULTS:
            raise InputError(f"--correct {name_of(step)}: every plan has it already; a search chooses among cle, bias and adaround")
        recipe = Recipe(target, toolkit, plans.schemes, narrow, "", Granularity.PER_CHANNEL, plans.fixed_outputs)
        found[text_of(step)] = CorrectedPlans(case, recipe, narrow, text_of(step), plans, policy, progress)
    return found


def with_masks(case: Case, target: Target, toolkit: str, granularity: Granularity, policy: str, progress: Progress) -> Corrected | None:
    """The network with attention masks that integers can hold, and its statistics; None where it has no mask (BUG case B13)."""
    integer = next((p for p in target.available(toolkit) if not p.is_float), None)
    if integer is None or not masked(case.prepared.model.graph):
        return None
    recipe = Recipe(target, toolkit, schemes_of(target, toolkit), integer, "minmax", granularity, target.fixed_outputs)
    return corrected(case.prepared, recipe, dataset=case.calibration, policy=policy, progress=progress)


def plan_maker(case: Case, statistics: Statistics, masks: Corrected | None, allowed: Mapping[str, Sequence[Precision]], specs: Sequence[str],
               granularity: Granularity, target: Target, toolkit: str, simulate: bool, progress: Progress) -> MakePlan:
    """Makes the plans of a search. Where "auto" is among `specs`, it decides here, once, with every unit at its narrowest precision."""
    plans = Plans(case.network, statistics, schemes_of(target, toolkit), target.name, toolkit, target.fixed_outputs)
    if masks is not None:
        plans = replace(plans, corrections=masks.plan.corrections, tensors=masks.plan.tensors)
    if (spec := next((s for s in specs if calibrators.is_auto(s)), None)) is not None:
        narrow = {u: min(options, key=lambda p: p.activation_bytes) for u, options in allowed.items()}
        maker = plans if masks is None else MaskedPlans(plans, masks)
        found = choose_on(case.calibration, case.prepared, maker, narrow, granularity, spec=spec, metric=case.metric, simulate=simulate, progress=progress)
        plans = replace(plans, choices=found.by_group)
    return plans if masks is None else MaskedPlans(plans, masks)
