"""What is worth trying, from what was measured: the few changes that promise most, each as a plan that can be run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import onnx_ir as ir

from qbench.affine import Range
from qbench.analysis.ablation import check_without, collapsed
from qbench.analysis.checks import Fresh, Outputs, check_cut, raised
from qbench.analysis.records import Analysis, Check, KernelError, MixedGroup, StoredTensor, TensorError
from qbench.metrics.fidelity import MOST_DB
from qbench.network import Network, Precision
from qbench.plan import Granularity, Plan
from qbench.protocols import Progress, silent
from qbench.target import QuantScheme

WORTH_DB = 0.5
"""Gains at an output below this are not worth a higher precision."""
FALLS_DB = 6.0
"""The error grows by more than this beyond what the kernel and its inputs explain: it amplifies."""
POOR_DB = 30.0
"""An output below this (3 % of its amplitude are noise) wants an explanation even where no single layer is to blame."""
SINGLE_DB = 3.0
"""A layer that gains this much alone is to blame."""
SHARES = (0.1, 0.25, 0.5)
"""Of the units, the noisiest first, raised together where no single one is to blame."""
MOST_OF = 0.6
"""A smaller set of units that keeps this share of the gain, in dB, is preferred."""
BAD_NOISE = 10.0 ** -2.5
"""Noise over signal (25 dB) from which a unit is worth trying with its neighbours, where raising it alone does nothing."""
RANGE_DB = 1.0
"""A range that loses this much against the one of least squared error is worth a try."""
SPREAD = 8.0
"""Weights whose widest channel is this many times the median one lose three bits under one scale."""


@dataclass(frozen=True)
class Options:
    """What may be changed.

    precisions   unit -> higher precisions that the target offers it, lowest first
    schemes      how integers of those precisions are stored
    fresh        ranges from the statistics
    count        units to try
    """

    precisions: Mapping[str, tuple[Precision, ...]]
    schemes: Mapping[str, QuantScheme]
    fresh: Fresh
    count: int = 3


def noise(db: float) -> float:
    """Noise over signal."""
    return 0.0 if db >= MOST_DB else 10.0 ** (-db / 10.0)


def own_noise(kernel: KernelError) -> float:
    """Noise over signal that the kernel adds, at its worst tensor."""
    return max((noise(t.isolated.sqnr_db) for t in kernel.tensors), default=0.0)


def amplification_db(kernel: KernelError) -> float:
    """How much more the error grew than the kernel's own and that of its inputs explain; 0 for the first kernels."""
    if kernel.arrives_db >= MOST_DB or not kernel.tensors:
        return 0.0
    worst = min(kernel.tensors, key=lambda t: t.accumulated.sqnr_db)
    explained = noise(kernel.arrives_db) + noise(worst.isolated.sqnr_db)
    made = noise(worst.accumulated.sqnr_db)
    return 10.0 * math.log10(made / explained) if made > 0 and explained > 0 else 0.0


def channel_noise(error: TensorError, dbs: Sequence[float], whole: float) -> float:
    """Mean noise over signal of the channels that are in use, 1 at most for each: what a small channel loses counts as much as what a
    large one does, for the weights behind may make up for the size. That of the whole tensor where channels are not known."""
    found = [min(1.0, noise(db)) for db in error.used(dbs)]
    return sum(found) / len(found) if found else min(1.0, noise(whole))


def worth(error: TensorError, by_channel: bool) -> float:
    """Noise over signal that the kernel adds here, discounted where most of the noise at this point came from before it."""
    alone, whole = noise(error.isolated.sqnr_db), noise(error.accumulated.sqnr_db)
    if by_channel:
        alone = channel_noise(error, error.channels_alone_db, error.isolated.sqnr_db)
        whole = channel_noise(error, error.channels_db, error.accumulated.sqnr_db)
    return alone * min(1.0, alone / whole) if whole > 0 else alone


def noisy_units(analysis: Analysis, by_channel: bool = True) -> list[str]:
    """Integer units that add noise, those first whose own noise is worth most."""
    total: dict[str, float] = {}
    for kernel in analysis.integer:
        total[kernel.unit] = total.get(kernel.unit, 0.0) + max(worth(t, by_channel) for t in kernel.tensors)
    return sorted((u for u, n in total.items() if n > 0), key=lambda u: -total[u])


def is_bad(analysis: Analysis, unit: str) -> bool:
    """Whether a unit loses much, by a tensor or by its channels."""
    return any(max(worth(t, True), worth(t, False)) >= BAD_NOISE for k in analysis.integer if k.unit == unit for t in k.tensors)


def feeding_units(analysis: Analysis, kernels: Sequence[KernelError]) -> tuple[str, ...]:
    """Integer units that write what the kernels read, execution order."""
    reads = {t for k in kernels for t in k.inputs}
    return tuple(dict.fromkeys(k.unit for k in analysis.integer if any(t.tensor in reads for t in k.tensors)))


def reading_units(analysis: Analysis, kernels: Sequence[KernelError]) -> tuple[str, ...]:
    """Integer units that read what the kernels write, execution order."""
    writes = {t.tensor for k in kernels for t in k.tensors}
    return tuple(dict.fromkeys(k.unit for k in analysis.integer if writes & set(k.inputs)))


def with_neighbours(analysis: Analysis, unit: str) -> list[tuple[str, ...]]:
    """The unit with those that feed it and read it, then with the former alone, then with the latter; none twice, execution order.

    A tensor between two integer units is stored by both: raising one leaves it as coarse as it was.
    """
    kernels = [k for k in analysis.kernels if k.unit == unit]
    feeding, reading = feeding_units(analysis, kernels), reading_units(analysis, kernels)
    order = list(dict.fromkeys(k.unit for k in analysis.kernels))
    sets = [frozenset((unit, *more)) for more in ((*feeding, *reading), feeding, reading)]
    return [tuple(sorted(s, key=order.index)) for s in dict.fromkeys(sets) if len(s) > 1]


def run_checks(analysis: Analysis, outputs: Outputs, network: Network, options: Options, progress: Progress = silent) -> tuple[Check, ...]:
    """Every proposal, carried out on the walk's samples."""
    if not outputs.before:
        return ()
    plan, model = outputs.plan, outputs.walk.prepared.model
    found: list[Check] = []
    jobs: list[Callable[[], list[Check]]] = []
    jobs += [partial(_raise, outputs, analysis, network, model, units, options, found) for units in units_to_raise(analysis, options)]
    jobs += [partial(_cut, outputs, analysis, mixed, options) for mixed in analysis.mixed]
    told = {m.group for m in analysis.mixed}
    jobs += [partial(check_without, outputs, e) for e in [e for _, e in collapsed(analysis) if e.group not in told][:options.count]]
    jobs += [partial(_changed, outputs, *p) for p in (*range_proposals(analysis, plan), *granularity_proposals(analysis, plan, options))]
    for number, job in enumerate(jobs):
        progress("proposals", number, len(jobs) + 1)
        found += job()
    found += _together(found, outputs, network, model, options)
    if is_spread(analysis, found):
        found += _noisiest(analysis, outputs, network, model, options)
    progress("proposals", len(jobs) + 1, len(jobs) + 1)
    return tuple(found)


def units_to_raise(analysis: Analysis, options: Options) -> list[tuple[str, ...]]:
    """Noisiest units by channel and by tensor, those that feed the kernel which amplifies most, and those of mixed groups."""
    noisiest = [*noisy_units(analysis)[:options.count], *noisy_units(analysis, by_channel=False)[:(options.count + 1) // 2]]
    found: dict[tuple[str, ...], None] = {(u,): None for u in noisiest}
    if options.count:
        found |= {(g.unit,): None for g in analysis.mixed}
        worst = max(analysis.kernels, key=amplification_db, default=None)
        if worst is not None and amplification_db(worst) >= FALLS_DB and (feeding := feeding_units(analysis, [worst])):
            found[feeding] = None
    return [units for units in found if _common(units, options)]


def _common(units: Sequence[str], options: Options) -> tuple[Precision, ...]:
    """Precisions that all of the units may be raised to."""
    first, *others = (options.precisions.get(u, ()) for u in units)
    return tuple(p for p in first if all(p in o for o in others))


def _raise(outputs: Outputs, analysis: Analysis, network: Network, model: ir.Model, units: tuple[str, ...], options: Options,
           before: Sequence[Check]) -> list[Check]:
    """The units alone; where that gains nothing, one unit with its neighbours, and no more of them than it takes.

    before   checks so far: a unit of a set that mended the output is not tried in another
    """
    def tried(some: tuple[str, ...]) -> list[Check]:
        return _at_each_precision(outputs, network, model, some, options)

    alone = tried(units)
    known = {u for c in before if len(c.units) > 1 and c.useful_db >= WORTH_DB and c.part[2] >= POOR_DB for u in c.units}
    if len(units) > 1 or not alone or alone[0].useful_db >= WORTH_DB or units[0] in known or not is_bad(analysis, units[0]):
        return alone
    wide, *narrower = [u for u in with_neighbours(analysis, units[0]) if _common(u, options)] or [()]
    best = tried(wide) if wide else []
    if best and best[0].useful_db >= WORTH_DB:
        smaller = [c for c in map(tried, narrower) if c[0].gain_db >= MOST_OF * best[0].gain_db]
        best = min([best, *smaller], key=lambda c: len(c[0].units))
    return alone + best


def _at_each_precision(outputs: Outputs, network: Network, model: ir.Model, units: tuple[str, ...], options: Options) -> list[Check]:
    """At the lowest precision that may help; the others are tried only where that one does."""
    found: list[Check] = []
    for p in _common(units, options):
        if not found or found[0].useful_db >= WORTH_DB:
            changed = raised(outputs.plan, network, model, units, p, options.schemes.get(str(p)), options.fresh)
            found.append(outputs.check("raise", ", ".join(units), str(p), changed, units))
    return found


def _cut(outputs: Outputs, analysis: Analysis, group: MixedGroup, options: Options) -> list[Check]:
    error = _error_of(analysis, group.tensor)
    check = check_cut(outputs, group, error, options.fresh) if error is not None else None
    return [check] if check is not None else []


def _changed(outputs: Outputs, kind: str, subject: str, change: str, plan: Plan) -> list[Check]:
    return [outputs.check(kind, subject, change, plan)]


def _error_of(analysis: Analysis, tensor: str) -> TensorError | None:
    return next((t for k in analysis.kernels for t in k.tensors if t.tensor == tensor), None)


def poor_ranges(analysis: Analysis) -> list[StoredTensor]:
    """One tensor a group whose range loses RANGE_DB or more against the best one; the largest loss first."""
    worst: dict[str, StoredTensor] = {}
    for s in analysis.stored:
        if s.group not in worst or s.best_db - s.noise_db > worst[s.group].best_db - worst[s.group].noise_db:
            worst[s.group] = s
    return sorted((s for s in worst.values() if s.best_db - s.noise_db >= RANGE_DB), key=lambda s: s.noise_db - s.best_db)


def range_proposals(analysis: Analysis, plan: Plan) -> list[tuple[str, str, str, Plan]]:
    """The two ranges that lose most, and all of them at once."""
    poor = poor_ranges(analysis) if plan.granularity is not Granularity.GLOBAL else []
    single = [("range", s.tensor, f"{s.best_low:.4g} to {s.best_high:.4g}", _with_ranges(plan, [s])) for s in poor[:2]]
    return single + ([("range", f"{len(poor)} tensors", "least squared error", _with_ranges(plan, poor))] if len(poor) > 2 else [])


def _with_ranges(plan: Plan, tensors: Sequence[StoredTensor]) -> Plan:
    return replace(plan, ranges={**plan.ranges, **{s.group: Range(s.best_low, s.best_high) for s in tensors if s.group in plan.ranges}})


def granularity_proposals(analysis: Analysis, plan: Plan, options: Options) -> list[tuple[str, str, str, Plan]]:
    """Finer scales, where there is one for all activations or where weights lose by sharing one."""
    if not analysis.integer:
        return []
    finer = []
    if plan.granularity is Granularity.GLOBAL:
        finer.append(Granularity.PER_LAYER)
    channels = any(s.weight_per_channel for s in plan.schemes.values())
    if channels and plan.granularity in (Granularity.GLOBAL, Granularity.PER_LAYER) and any(
            w.ratio >= SPREAD and not w.per_channel for w in analysis.weights):
        finer.append(Granularity.PER_CHANNEL)
    return [("granularity", str(plan.granularity), str(g), replace(plan, granularity=g)) for g in finer] if options.count else []


def best_raises(checks: Sequence[Check]) -> list[Check]:
    """One "raise" a set of units, that with the largest gain; the largest first.

    Sets are left out that gain no more than one of them alone, and those that overlap with a better one.
    """
    found: dict[tuple[str, ...], Check] = {}
    for c in checks:
        if c.kind == "raise" and (c.units not in found or c.gain_db > found[c.units].gain_db + 0.1):
            found[c.units] = c
    useful: list[Check] = []
    for c in sorted(found.values(), key=lambda c: -c.gain_db):
        taken = {u for other in useful for u in other.units}
        if len(c.units) == 1 or (c.gain_db >= gain_alone(c, checks) + WORTH_DB and not taken & set(c.units)):
            useful.append(c)
    return useful


def gain_alone(check: Check, checks: Sequence[Check]) -> float:
    """The most that one of the check's units gained alone; 0 where none was tried or none gained."""
    return max((c.gain_db for c in checks if c.kind == "raise" and len(c.units) == 1 and c.units[0] in check.units), default=0.0)


def _together(checks: Sequence[Check], outputs: Outputs, network: Network, model: ir.Model, options: Options) -> list[Check]:
    """All raises that are worth it, in one plan."""
    good, plan = [c for c in best_raises(checks) if c.useful_db >= WORTH_DB], outputs.plan
    units = tuple(dict.fromkeys(u for c in good for u in c.units))
    if len(units) < 2 or any(set(c.units) == set(units) for c in good):
        return []
    for c in reversed(good):                        # where two name the same unit, the larger gain has the last word
        plan = raised(plan, network, model, c.units, Precision(c.change), options.schemes.get(c.change), options.fresh)
    return [outputs.check("together", ", ".join(units), ", ".join(dict.fromkeys(c.change for c in good)), plan, units)]


def is_spread(analysis: Analysis, checks: Sequence[Check]) -> bool:
    """An output is poor and no single change mends it: many layers lose a little each."""
    poor = min((db for _, db in analysis.outputs), default=MOST_DB) < POOR_DB
    return poor and any(c.kind == "raise" for c in checks) and all(c.gain_db < SINGLE_DB for c in checks if c.kind in ("raise", "together", "cut"))


def _noisiest(analysis: Analysis, outputs: Outputs, network: Network, model: ir.Model, options: Options) -> list[Check]:
    """The noisiest units raised together, more and more of them."""
    units, found = noisy_units(analysis), []
    for count in dict.fromkeys(math.ceil(share * len(units)) for share in SHARES):
        some = tuple(units[:count])
        if 1 < count < len(units) and (common := _common(some, options)):
            changed = raised(outputs.plan, network, model, some, common[0], options.schemes.get(str(common[0])), options.fresh)
            found.append(outputs.check("noisiest", f"{count} noisiest units", str(common[0]), changed, some))
    return found
