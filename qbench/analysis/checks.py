"""Proposals carried out: each changed plan is written, run on the same samples, and compared at the network's outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from qbench import qdq
from qbench.affine import Range
from qbench.analysis.energy import Sums, channel_sums, comparable, error_of, joined
from qbench.analysis.records import Check, MixedGroup, TensorError
from qbench.evaluation import extract, loaded
from qbench.graph import PreparedModel, load_network
from qbench.metrics.fidelity import MOST_DB
from qbench.network import Network, Precision, ScaleGroup
from qbench.plan import Plan, make_plan
from qbench.target import QuantScheme
from qbench.walk import Values, Walk, without_constants

REWRITES = ("cle", "mask")
"""Corrections that the walk's model has behind it: a part of it must not go through them again."""
Fresh = Callable[[ScaleGroup, int], Range | None]
"""Range of a scale group for codes of that many bits, from the statistics; None where it was not observed."""


class Outputs:
    """The network's outputs on the walk's samples.

    plan        the walk's, for its model, which has the plan's new constants already
    reference   of the float model
    before      part of an output -> SQNR under the plan itself
    """

    def __init__(self, walk: Walk, errors: Mapping[str, TensorError]) -> None:
        self.walk, self.errors, self.plan = walk, errors, without_constants(walk.plan)
        names = [o for o in walk.network.outputs if o in errors] or list(walk.network.outputs)
        self.reference = self._run(walk.prepared.model, names, simulate=False)
        for odd in [n for n in names if not comparable(n, self.reference)]:
            for chunk in self.reference:
                del chunk[odd]
        self.before = self.of(walk.written.model)
        self.known: dict[str, dict[str, float]] = {}

    def of(self, model: ir.Model, simulate: bool | None = None) -> dict[str, float]:
        """SQNR of every output, and of its parts, in dB.

        model      with the network's inputs and outputs
        simulate   default: as the walk does
        """
        found: dict[str, float] = {}
        names = list(self.reference[0])
        made = self._run(model, names, self.walk.simulate if simulate is None else simulate)
        for name in names:
            error = self.errors.get(name)
            parts = error.parts if error else ()
            if not comparable(name, self.reference, made):
                found |= dict.fromkeys((name, *(f"{name}: {p.name}" for p in parts)), -MOST_DB)
                continue
            sums = summed(self.reference, made, name, name, error.axis if error else None)
            found[name] = error_of(sums).sqnr_db
            found |= {f"{name}: {p.name}": error_of(sums[slice(*p.channels)]).sqnr_db for p in parts}
        return found

    def check(self, kind: str, subject: str, change: str, plan: Plan, units: tuple[str, ...] = ()) -> Check:
        """What `plan` gains over the one that was walked over; equal plans are run once."""
        if plan.key not in self.known:
            self.known[plan.key] = self.of(qdq.write(self.walk.prepared, plan).model)
        after = self.known[plan.key]
        return Check(kind, subject, change, tuple((name, before, after[name]) for name, before in self.before.items()), units)

    def _run(self, model: ir.Model, names: Sequence[str], simulate: bool) -> Values:
        return run(model, self.walk, names, simulate)


def run(model: ir.Model, walk: Walk, names: Sequence[str], simulate: bool) -> Values:
    """The outputs `names` of `model` on the walk's samples."""
    with loaded(model, walk.threads, simulate) as session:
        return [{n: made[n] for n in names} for feeds in walk.feeds for made in [session.run(feeds)]]


def summed(reference: Values, made: Values, name: str, other: str, axis: int | None) -> Sums:
    """Sums over all chunks of tensor `name` in float against `other` as made."""
    total: Sums | None = None
    for r, o in zip(reference, made, strict=True):
        total = joined(total, channel_sums(r[name], o[other], axis))
    assert total is not None, "a walk holds at least one chunk"
    return total


# -- changed plans

def raised(plan: Plan, network: Network, model: ir.Model, units: Sequence[str], precision: Precision, scheme: QuantScheme | None,
           fresh: Fresh) -> Plan:
    """`plan` with some units at a higher precision.

    Groups that no 8-bit unit touches any more get their range anew: what 8 bits had to clip, 16 need not. What a correction
    adjusted for the old codes of the units' weights is dropped.
    """
    chosen = {**plan.precision, **dict.fromkeys(units, precision)}
    schemes = {**plan.schemes, **({str(precision): scheme} if scheme is not None else {})}
    ranges = dict(plan.ranges)
    if precision is Precision.INT16:
        narrow = {g for u, p in chosen.items() if p is Precision.INT8 for g in groups_of(network, u)}
        for group in network.groups:
            if any(group.name in groups_of(network, u) for u in units) and group.name not in narrow and (found := fresh(group, 16)) is not None:
                ranges[group.name] = found
    kernels = {k for u in network.units if u.name in units for k in u.kernels}
    nodes = {n for k in network.kernels if k.name in kernels for n in k.nodes}
    read = {str(v.name) for n in model.graph if str(n.name) in nodes for v in n.inputs if v is not None}
    stale = {f"round:{w}" for w in read} | {f"bias:{n}" for n in nodes}
    return replace(plan, precision=chosen, schemes=schemes, ranges=ranges, tensors={k: v for k, v in plan.tensors.items() if k not in stale})


def groups_of(network: Network, unit: str) -> set[str]:
    """Scale groups that a unit's kernels read or write."""
    kernels = next((u.kernels for u in network.units if u.name == unit), ())
    tensors = (t for k in (network.kernel[name] for name in kernels) for t in (*k.inputs, *k.inner, *k.outputs))
    return {network.group_of[t].name for t in tensors if t in network.group_of}


# -- cutting the graph

@dataclass(frozen=True)
class CutModel:
    """The network without a Concat: what entered it leaves as outputs of its own."""

    prepared: PreparedModel
    plan: Plan
    tensors: tuple[str, ...]


def cut(prepared: PreparedModel, plan: Plan, group: MixedGroup, fresh: Fresh) -> CutModel | None:
    """The model and plan that end before the group's Concat, at the same precisions; None when the graph cannot be cut there.

    The tensors that shared a scale get ranges of their own from `fresh`.
    """
    network = prepared.network
    tensors = tuple(t for t in group.inputs if t in network.producer)
    part = extract(prepared.model, network.inputs, tensors) if tensors and not group.blocked else None
    if part is None:
        return None
    new = load_network(part)
    maker = {n: k.name for k in network.kernels for n in k.nodes}
    precision = {u.name: _as_before(plan, network, maker, new.network, u.kernels[0], u.quantizable) for u in new.network.units}
    ranges = dict(_ranges(plan, network, new.network, fresh))
    made = make_plan(new.network, precision, ranges, plan.schemes, calibrator=plan.calibrator, granularity=plan.granularity,
                     target=plan.target, toolkit=plan.toolkit, tensors=plan.tensors,
                     corrections=tuple(c for c in plan.corrections if c.partition(":")[0] not in REWRITES))
    return CutModel(new, made, tensors)


def _as_before(plan: Plan, network: Network, maker: Mapping[str, str], new: Network, kernel: str, quantizable: bool) -> Precision:
    old = next((maker[n] for n in new.kernel[kernel].nodes if n in maker), None)
    found = plan.precision[network.unit_of_kernel[old]] if old is not None else Precision.FP16
    return found if quantizable or found.is_float else Precision.FP16


def _ranges(plan: Plan, network: Network, new: Network, fresh: Fresh) -> Iterator[tuple[str, Range]]:
    """Those of the plan for groups that stay as they were, new ones for those that came apart."""
    for group in new.groups:
        old = network.group_of.get(group.tensors[0])
        kept = plan.ranges.get(old.name) if old is not None and set(old.sources) == set(group.sources) else None
        found = kept or fresh(group, 8 if "int8" in plan.schemes else 16)
        if found is not None:
            yield group.name, found


def check_cut(outputs: Outputs, group: MixedGroup, before: TensorError, fresh: Fresh) -> Check | None:
    """What every part gains by leaving on its own, at the same precision; None when the graph cannot be cut."""
    walk = outputs.walk
    made = cut(walk.prepared, outputs.plan, group, fresh)
    if made is None:
        return None
    reference = run(made.prepared.model, walk, made.tensors, False)
    quantized = run(qdq.write(made.prepared, made.plan).model, walk, made.tensors, walk.simulate)
    old = {p.name: p.accumulated.sqnr_db for p in before.parts}
    return Check("cut", group.group, f"cut before {group.kernel}: " + ", ".join(made.tensors),
                 tuple((t, old.get(t, 0.0), error_of(summed(reference, quantized, t, t, None)).sqnr_db) for t in made.tensors))


