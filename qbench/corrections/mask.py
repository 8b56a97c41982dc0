"""Masks that integers can hold: huge negative constants in front of a Softmax become just negative enough.

With logits in [lo, hi], anything at or below lo - margin weighs less than exp(-margin) of whatever is not masked. So a mask that
is added needs -(hi - lo) - margin and no more; one that takes the place of logits needs lo - margin. The tensors behind it span
[lo - margin, hi] then instead of 3.4e38, and what lies below saturates at a weight of exp(-margin).
Source: BUG case B13; the published reports are named there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from qbench.affine import Range
from qbench.corrections.anchors import Array, data_of
from qbench.corrections.mask_pattern import SOFTMAX, Leaf, Masked, masked
from qbench.corrections.rewriting import CONSTANT, filled, with_constants
from qbench.corrections.steps import Mask
from qbench.graph import PreparedModel
from qbench.graph.attributes import whole
from qbench.graph.values import constant
from qbench.network import Network
from qbench.packed import Packed
from qbench.protocols import Seen

FINITE = 1e37
"""Masks as well as infinity does, and eight of them can still be added up."""
UNUSABLE_SPAN = 1000.0
"""A step of 8 bits over logits that span more than this would be 4 or more, and exp(-4) is 2 %. With nothing between the lowest ones
and the others, they are masked, recognised or not."""

Statistics = Mapping[str, Seen]


@dataclass(frozen=True)
class Masking:
    """What the step found.

    constants   initializer -> its new values
    applied     Softmax -> text that says what was replaced by what
    refused     Softmax -> why its mask stays
    floats      unit -> why it must stay in float: it reads or writes values of a mask that stays
    """

    constants: Mapping[str, Packed] = field(default_factory=dict)
    applied: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    floats: Mapping[str, str] = field(default_factory=dict)
    cases: tuple[_Case, ...] = ()

    @property
    def tensors(self) -> dict[str, Packed]:
        """For `Plan.tensors`."""
        return {CONSTANT + name: data for name, data in self.constants.items()}


@dataclass(frozen=True)
class _Case:
    """One masked Softmax.

    low, high  of the sum of all that is no mask, as it arrives at the Softmax; NaN when that is not known
    above      how much the terms beside the logits can add
    fault      why its mask stays, or ""
    """

    found: Masked
    low: float
    high: float
    above: float
    fault: str = ""

    @property
    def name(self) -> str:
        return self.found.name

    def row(self, network: Network) -> int:
        """Values that one Softmax runs over."""
        source = self.found.softmax.inputs[0]
        shape = network.tensors[str(source.name)].shape if source is not None and str(source.name) in network.tensors else ()
        return shape[whole(self.found.softmax, "axis", -1)] if shape else 1

    def limit(self, leaf: Leaf, margin: float) -> float:
        """Magnitude at which the leaf masks everything."""
        enough = self.high - self.low + margin if leaf.added else max(margin + self.above - self.low, 0.0)
        return enough / leaf.factor


def finite_masks(prepared: PreparedModel) -> PreparedModel:
    """The model with masks of infinity, or close to it, cut to FINITE, so that statistics hold numbers; itself when there is none.

    A Softmax over nothing but -inf is NaN; with a finite number it is uniform.
    """
    if any(not leaf.value.is_initializer() for one in masked(prepared.model.graph) for leaf in one.leaves):
        prepared = filled(prepared)
    found: dict[str, Packed] = {}
    for one in masked(prepared.model.graph):
        for leaf in one.leaves:
            data = data_of(leaf.value)
            if (np.abs(data) > FINITE).any() and not np.isnan(data).any():
                found[str(leaf.value.name)] = Packed.of(np.clip(data, np.float32(-FINITE), np.float32(FINITE)))
    return with_constants(prepared, found) if found else prepared


def masking(prepared: PreparedModel, statistics: Statistics, step: Mask, stays: Mapping[str, str] | None = None) -> Masking:
    """What to replace in a model whose masks are finite (`finite_masks`), from the statistics of its activations.

    stays   Softmax -> why its mask must stay, whatever the statistics say
    """
    graph, network = prepared.model.graph, prepared.network
    cases = [_case(one, network, statistics, (stays or {}).get(one.name, "")) for one in masked(graph)]
    limits: dict[str, float] = {}
    for case in cases:
        for leaf in case.found.leaves if np.isfinite(case.low) else ():
            limits[str(leaf.value.name)] = max(limits.get(str(leaf.value.name), 0.0), case.limit(leaf, step.margin))
    cases = [_checked(c, limits, step, cases) for c in cases if any(_beyond(leaf, limits) for leaf in c.found.leaves)]
    cases = _closed(cases)
    good, bad = [c for c in cases if not c.fault], [c for c in cases if c.fault]
    leaves = {str(leaf.value.name): leaf for c in good for leaf in c.found.leaves if _beyond(leaf, limits)}
    refused = {c.name: f"the mask of {c.found.softmax.op_type} {c.name!r} stays: {c.fault}" for c in bad}
    floats = _floats([c.found for c in bad], refused, network) | _unrecognised(graph, network, statistics, {c.name for c in cases})
    return Masking({n: Packed.of(_replaced(leaf, limits[n])) for n, leaf in leaves.items()}, {c.name: _said(c, limits) for c in good}, refused, floats,
                   tuple(good))


def mask_ranges(done: Masking, network: Network, statistics: Statistics, step: Mask, levels: int,
                calibrated: Callable[[Seen], Range]) -> dict[str, Range]:
    """Scale group -> range, for the groups that hold masked sums or masks.

    Masked logits saturate, so the range ends where all of a row together weigh less than half a step of the Softmax output.
    levels       of the codes
    calibrated   what the calibrator says about the values of a tensor
    """
    wanted: dict[str, Range] = {}
    for case in done.cases:
        margin = min(step.margin, float(np.log(2 * levels * case.row(network))))
        terms = [_scaled(*term, network, statistics, calibrated) for term in (case.found.logits, *case.found.extras)]
        low, high = sum(t.low for t in terms), sum(t.high for t in terms)
        for tensor, factor in case.found.chain:
            top = statistics[tensor].maximum if tensor in statistics and statistics[tensor].count else np.inf
            found = Range((low - margin) / factor, max(min(high / factor, top), (low - margin) / factor))
            wanted[tensor] = wanted[tensor].union(found) if tensor in wanted else found
        reach = max(case.limit(leaf, step.margin) for leaf in case.found.leaves)
        signs = {leaf.sign for leaf in case.found.leaves}
        selected = Range(-reach if -1 in signs else 0.0, reach if 1 in signs else 0.0)
        for tensor in case.found.tree:
            seen = _extremes(tensor, network, statistics)
            found = Range(max(seen.low, -reach), min(seen.high, reach)) if seen else selected
            if tensor not in statistics:                             # shares a scale with what a Where selects it from
                found = found.union(selected)
            wanted[tensor] = wanted[tensor].union(found) if tensor in wanted else found
    ranges: dict[str, Range] = {}
    for group in network.groups:
        parts = [wanted[t] for t in group.tensors if t in wanted]
        if parts:
            parts += [calibrated(statistics[t]) for t in group.sources if t not in wanted and t in statistics and statistics[t].count]
            ranges[group.name] = Range(min(p.low for p in parts), max(p.high for p in parts))
    return ranges


def _case(found: Masked, network: Network, statistics: Statistics, fault: str) -> _Case:
    terms = []
    for value, factor in (found.logits, *found.extras):
        seen = _range_of(value, network, statistics)
        if seen is None:
            why = f"tensor {value.name!r} was not observed, so nobody knows what is negative enough"
            return _Case(found, np.nan, np.nan, np.nan, fault or why)
        terms.append(Range(factor * seen.low, factor * seen.high))
    fault = fault or _gate_fault(found, network, statistics)
    above = sum(max(t.high, 0.0) for t in terms[1:])
    return _Case(found, sum(t.low for t in terms), sum(t.high for t in terms), above, fault)


def _range_of(value: ir.Value, network: Network, statistics: Statistics) -> Range | None:
    """Extremes of a constant or of an activation; None when it was not observed."""
    if constant(value):
        data = data_of(value)
        return Range(float(data.min()), float(data.max())) if data.size and np.isfinite(data).all() else None
    return _extremes(str(value.name), network, statistics)


def _extremes(tensor: str, network: Network, statistics: Statistics) -> Range | None:
    group = network.group_of.get(tensor)
    names = [tensor] if tensor in statistics or group is None else list(group.sources)
    seen = [statistics[t] for t in names if t in statistics and statistics[t].count]
    return Range(min(s.minimum for s in seen), max(s.maximum for s in seen)) if len(seen) == len(names) else None


def _scaled(value: ir.Value, factor: float, network: Network, statistics: Statistics, calibrated: Callable[[Seen], Range]) -> Range:
    """The calibrated range of a term, as it arrives at the Softmax."""
    exact = _range_of(value, network, statistics)
    assert exact is not None, "a mask is replaced only when its terms were observed"
    group = network.group_of.get(str(value.name))
    names = [str(value.name)] if str(value.name) in statistics else list(group.sources) if group is not None else []
    parts = [calibrated(statistics[t]) for t in names if t in statistics and statistics[t].count] if not constant(value) else []
    low, high = (min(p.low for p in parts), max(p.high for p in parts)) if parts else (exact.low, exact.high)
    return Range(factor * max(low, exact.low), factor * max(min(high, exact.high), max(low, exact.low)))


def _beyond(leaf: Leaf, limits: Mapping[str, float]) -> bool:
    """True when the constant holds more than is enough; where that is not known, when it is out of all proportion."""
    return bool((data_of(leaf.value) * leaf.sign > limits.get(str(leaf.value.name), UNUSABLE_SPAN)).any())


def _replaced(leaf: Leaf, limit: float) -> Array:
    """The constant with what lies beyond the limit put on it; everything else as it is."""
    data = data_of(leaf.value)
    made: Array = np.where(data * leaf.sign > limit, np.float32(leaf.sign * limit), data).astype(np.float32)
    return made


def _said(case: _Case, limits: Mapping[str, float]) -> str:
    parts = []
    for name, leaf in {str(leaf.value.name): leaf for leaf in case.found.leaves if _beyond(leaf, limits)}.items():
        data = data_of(leaf.value)
        worst = float(data.min() if leaf.sign < 0 else data.max())
        was = f"{worst:.3g}" if abs(worst) < FINITE * 0.99 else "infinity, or next to it,"
        parts.append(f"{was} in {name!r} became {leaf.sign * limits[name]:.4g}")
    return f"{case.found.softmax.op_type} {case.name!r}, logits in [{case.low:.4g}, {case.high:.4g}]: {'; '.join(parts)}"


# -- why a mask stays

def _checked(case: _Case, limits: Mapping[str, float], step: Mask, cases: Sequence[_Case]) -> _Case:
    """The case with its fault, if it has one."""
    fault = case.fault or _foreign_reader(case, limits, cases)
    return replace(case, fault=fault or ("" if step.rows == "any" else _whole_row(case, limits)))


def _foreign_reader(case: _Case, limits: Mapping[str, float], cases: Sequence[_Case]) -> str:
    inside = {t for c in cases for t in (*(name for name, _ in c.found.chain), *c.found.tree)}
    for leaf in case.found.leaves:
        for node, _ in leaf.value.uses() if _beyond(leaf, limits) else ():
            if str(node.outputs[0].name) not in inside:
                return f"its constant {leaf.value.name!r} also serves {node.op_type} {str(node.name)!r}"
    return ""


def _whole_row(case: _Case, limits: Mapping[str, float]) -> str:
    """A constant mask that leaves nothing of a row: the float network's result there would change."""
    softmax = case.found.softmax
    axis = whole(softmax, "axis", -1)
    rank = len(softmax.inputs[0].shape) if softmax.inputs[0] is not None and softmax.inputs[0].shape is not None else 0
    axis = axis - rank if axis >= 0 and rank else axis
    chain = {name for name, _ in case.found.chain}
    for leaf in case.found.leaves:
        data = data_of(leaf.value)
        direct = any(str(n.outputs[0].name) in chain and n.op_type in ("Add", "Sub") for n, _ in leaf.value.uses())
        if leaf.added and direct and axis < 0 and data.ndim >= -axis:
            rows = (data * leaf.sign > limits.get(str(leaf.value.name), np.inf)).all(axis=axis)
            if rows.any():
                return (f"{int(rows.sum())} rows of {leaf.value.name!r} mask everything, and what float makes of them would change; "
                        "if nobody reads those rows: --correct mask:rows=any")
    return ""


def _gate_fault(found: Masked, network: Network, statistics: Statistics) -> str:
    """What huge constants are multiplied with must be a switch."""
    for value, sign in found.gates:
        name = str(value.name)
        if constant(value) or name not in statistics or not statistics[name].count:
            continue
        seen = statistics[name]
        centres, counts = seen.histogram()
        switch = np.isclose(centres, 0.0, atol=1e-6) | np.isclose(centres, sign, rtol=1e-3)
        if int(counts[switch].sum()) < seen.count:
            return f"tensor {name!r}, which it is multiplied with, holds other values than 0 and {sign}"
    return ""


def _closed(cases: list[_Case]) -> list[_Case]:
    """Softmaxes that share a constant share its fate."""
    while True:
        faulty = {str(leaf.value.name): c.name for c in cases if c.fault for leaf in c.found.leaves}
        spread = [c if c.fault or not (shared := next((n for leaf in c.found.leaves if (n := str(leaf.value.name)) in faulty), "")) else
                  replace(c, fault=f"it shares {shared!r} with {faulty[shared]!r}, whose mask stays") for c in cases]
        if spread == cases:
            return cases
        cases = spread


def _floats(bad: Sequence[Masked], reasons: Mapping[str, str], network: Network) -> dict[str, str]:
    """The units that touch values of these masks."""
    found: dict[str, str] = {}
    for one in bad:
        touched = {t for t, _ in one.chain} | set(one.tree)
        for kernel in network.kernels:
            if touched & {*kernel.inputs, *kernel.inner, *kernel.outputs}:
                found.setdefault(network.unit_of_kernel[kernel.name], reasons[one.name])
    return found


def _unrecognised(graph: ir.Graph, network: Network, statistics: Statistics, known: set[str]) -> dict[str, str]:
    """Units around a Softmax whose logits are out of all proportion, although no mask was recognised, back to where that comes from."""
    found: dict[str, str] = {}
    for node in graph:
        source = node.inputs[0] if node.op_type in SOFTMAX else None
        if source is None or str(node.name) in known or not _odd(source, network, statistics):
            continue
        seen = _extremes(str(source.name), network, statistics)
        assert seen is not None
        beside = " and hold -infinity" if str(source.name) in statistics and statistics[str(source.name)].negative_inf else ""
        why = (f"the logits of {node.op_type} {str(node.name)!r} span [{seen.low:.3g}, {seen.high:.3g}]{beside}, which no mask that is recognised explains: "
               "one scale cannot serve them")
        touched, stack = set[str](), [source]
        while stack:
            value = stack.pop()
            if str(value.name) not in touched and _odd(value, network, statistics):
                touched.add(str(value.name))
                maker = value.producer()
                stack += [v for v in (maker.inputs if maker is not None else ()) if v is not None]
        for kernel in network.kernels:
            if touched & {*kernel.inputs, *kernel.inner, *kernel.outputs}:
                found.setdefault(network.unit_of_kernel[kernel.name], why)
    return found


def _odd(value: ir.Value, network: Network, statistics: Statistics) -> bool:
    """True when the tensor falls into ordinary values and, far below, with nothing in between, others, or infinity."""
    name = str(value.name)
    seen = None if constant(value) else _extremes(name, network, statistics)
    if name in statistics and statistics[name].negative_inf:
        return True
    if seen is None or seen.high - seen.low <= UNUSABLE_SPAN or seen.low > -UNUSABLE_SPAN / 2:
        return False
    group = network.group_of.get(name)
    for source in [name] if name in statistics or group is None else group.sources:
        high, low = statistics[source].below(np.array([0.1 * seen.low, 0.9 * seen.low]))
        if high > low:
            return False
    return True
