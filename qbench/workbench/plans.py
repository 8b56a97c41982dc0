"""From statistics to plans: ranges by any calibrator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from pathlib import Path

from qbench import calibrators
from qbench.affine import Range, Scheme
from qbench.corrections.mask import finite_masks
from qbench.errors import PlanError
from qbench.fixed import CALIBRATED, fixed_range
from qbench.graph import PreparedModel
from qbench.network import Network, Precision
from qbench.packed import Packed
from qbench.plan import BIAS_GUARD, Granularity, Plan, make_plan
from qbench.protocols import Dataset, Progress, silent
from qbench.qdq import watched_tensors
from qbench.statistics import Statistics, collect, content_key
from qbench.target import QuantScheme, Target

FIXED_OUTPUTS = "fixed-outputs"
"""The correction step under which a plan lists ranges that a convention prescribes."""


def statistics_of(prepared: PreparedModel, dataset: Dataset, *, keep: Path | None = None, policy: str = "stop",
                  progress: Progress = silent) -> Statistics:
    """One pass over `dataset`, or the file of an earlier equal pass in the folder `keep`; masks of infinity count as huge numbers."""
    prepared = finite_masks(prepared)
    names = watched_tensors(prepared.network)
    key = content_key(prepared.network.model_key, [dataset.key], list(names), policy)
    path = keep / f"statistics-{key}.npz" if keep else None
    if path is not None and path.is_file():
        found = Statistics.load(path)
        if found.key == key:
            return found
    found = collect(prepared.model, names, dataset, model_key=prepared.network.model_key, policy=policy, progress=progress)
    if path is not None:
        found.save(path)
    return found


@dataclass
class Plans:
    """Makes plans of one network from one set of statistics; ranges are computed once per calibrator and width.

    schemes        how the target stores integers, by precision
    fixed_outputs  the target's convention for Softmax, Sigmoid and their like (`qbench.fixed`); "" leaves them calibrated. Where it
                   set a range, the plan lists the step "fixed-outputs"
    choices        scale group -> calibrator spec, for plans whose calibrator is "auto"; a group without one is left to `auto` itself
    overrides      scale group -> range that wins over calibrated and fixed ones
    corrections    specs of the other steps, and what they found: both go into every plan
    """

    network: Network
    statistics: Statistics
    schemes: Mapping[str, QuantScheme]
    target: str = ""
    toolkit: str = ""
    fixed_outputs: str = CALIBRATED
    choices: Mapping[str, str] = field(default_factory=dict)
    overrides: Mapping[str, Range] = field(default_factory=dict)
    corrections: tuple[str, ...] = (BIAS_GUARD,)
    tensors: Mapping[str, Packed] = field(default_factory=dict)
    _ranges: dict[tuple[str, Scheme], dict[str, Range]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if odd := sorted(set(self.overrides) - {g.name for g in self.network.groups}):
            raise PlanError(f"a range was given for {odd[0]!r}, which leads no scale group of {self.network.name!r}")

    def __call__(self, precision: Mapping[str, Precision], calibrator: str, granularity: Granularity, op_point: str) -> Plan:
        plan = make_plan(self.network, precision, self._mixed(precision, calibrator), self.schemes, calibrator=calibrator, granularity=granularity,
                         target=self.target, toolkit=self.toolkit, op_point=op_point, corrections=self.corrections, tensors=self.tensors)
        return replace(plan, corrections=self._steps(plan))

    def _steps(self, plan: Plan) -> tuple[str, ...]:
        """The corrections, with "fixed-outputs" in front of the guard where a range of the plan was fixed."""
        steps = [c for c in self.corrections if c != FIXED_OUTPUTS]
        if any(g.name in plan.ranges and g.name not in self.overrides and self.fixed & set(g.sources) for g in self.network.groups):
            steps.insert(steps.index(BIAS_GUARD) if BIAS_GUARD in steps else len(steps), FIXED_OUTPUTS)
        return tuple(steps)

    @cached_property
    def fixed(self) -> frozenset[str]:
        """Tensors whose range the convention prescribes."""
        return frozenset(t for t, op in makers(self.network).items()
                         if any(fixed_range(op, self.fixed_outputs, s.activation) is not None for s in self.schemes.values()))

    def _mixed(self, precision: Mapping[str, Precision], calibrator: str) -> dict[str, Range]:
        """Ranges for 8-bit codes where any 8-bit unit reads or writes the group, for 16-bit ones elsewhere."""
        schemes = {p: s.activation for p, s in self.schemes.items()}
        narrow = self._of(calibrator, schemes.get("int8", min(schemes.values(), key=lambda s: s.levels, default=Scheme(8, False, False))))
        if Precision.INT16 not in precision.values() or "int16" not in schemes:
            return narrow
        wide = self._of(calibrator, schemes["int16"])
        eight = {self.network.group_of[t].name for k in self.network.kernels
                 if precision[self.network.unit_of_kernel[k.name]] is Precision.INT8
                 for t in (*k.inputs, *k.inner, *k.outputs) if t in self.network.group_of}
        return {g: narrow[g] if g in eight else wide[g] for g in narrow}

    def _of(self, calibrator: str, scheme: Scheme) -> dict[str, Range]:
        """Range of every observed scale group for codes of `scheme`: the union over its sources, or what overrides it."""
        key = (calibrator, scheme)
        if key not in self._ranges:
            prescribed = {t: r for t, op in makers(self.network).items()
                          if (r := fixed_range(op, self.fixed_outputs, scheme)) is not None}
            chosen = {g: calibrators.make(c) for g, c in self.choices.items()} if calibrators.is_auto(calibrator) else {}
            calibrated = ranges_of(self.network, self.statistics, calibrators.make(calibrator), scheme.levels, scheme.symmetric,
                                   choices=chosen, fixed=prescribed)
            self._ranges[key] = {g: self.overrides.get(g, r) for g, r in calibrated.items()}
        return self._ranges[key]


def ranges_of(network: Network, statistics: Statistics, calibrator: calibrators.Calibrator, levels: int, symmetric: bool = False, *,
              choices: Mapping[str, calibrators.Calibrator] | None = None, fixed: Mapping[str, Range] | None = None) -> dict[str, Range]:
    """scale group -> range, for the groups whose sources were all observed.

    choices   scale group -> the calibrator that it has instead of `calibrator`
    fixed     tensor -> range that takes the place of a calibrated one
    """
    found: dict[str, Range] = {}
    for group in network.groups:
        seen = {t: statistics[t] for t in group.sources if t in statistics and statistics[t].count}
        if len(seen) != len(group.sources):
            continue
        chosen = (choices or {}).get(group.name, calibrator)
        parts = [(fixed or {}).get(t) or chosen.range(s, levels, symmetric) for t, s in seen.items()]
        found[group.name] = reduce(Range.union, parts)
    return found


def makers(network: Network) -> dict[str, str]:
    """Tensor -> ONNX operator whose output it is, for the tensors that kernels make."""
    found: dict[str, str] = {}
    for kernel in network.kernels:
        ops = kernel.op.split("+")
        found |= dict.fromkeys(kernel.outputs, ops[-1])
        if len(kernel.inner) == len(ops) - 1:              # one output each: the chain's tensors in their order
            found |= dict(zip(kernel.inner, ops, strict=False))
    return found


def schemes_of(target: Target, toolkit: str | None) -> dict[str, QuantScheme]:
    """Integer storage of every integer precision that the toolkit offers."""
    return {str(p): s for p in target.available(toolkit) if (s := target.support(p, toolkit).scheme) is not None}
