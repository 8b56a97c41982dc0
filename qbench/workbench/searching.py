"""What a search makes its plans with: masks corrected, and `auto` decided, before the first candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from qbench import calibrators
from qbench.affine import Scheme
from qbench.corrections.mask_pattern import masked
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
