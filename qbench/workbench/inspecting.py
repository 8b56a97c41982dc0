"""`qbench inspect`: everything a compiler would stumble over, before it is called. Works on models with open axes too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from qbench import targets
from qbench.cost import CostTable
from qbench.graph import PreparedModel
from qbench.inspection.counts import graph_counts
from qbench.inspection.cures import Offer, offers
from qbench.inspection.dtypes import type_findings
from qbench.inspection.layouts import layouts
from qbench.inspection.onchip import on_chip
from qbench.inspection.opening import Sized, as_option, spelled, with_sizes
from qbench.inspection.operator_table import place_operators
from qbench.inspection.padding import padding
from qbench.inspection.record import AxisLine, Inspection, OnTarget, Shapes
from qbench.inspection.shapes import cure, open_axes
from qbench.inspection.sizes import Neighbours, input_sizes, neighbours
from qbench.network import Precision
from qbench.placement.judging import judge
from qbench.placement.operators import operators_of
from qbench.placement.record import Operator, Placement
from qbench.placement.segments import fallback
from qbench.target import Target
from qbench.targets.rewrites import REWRITES, named
from qbench.targets.rules import rules_of
from qbench.workbench.needless import REWRITE, slimmed
from qbench.workbench.placing import by_verdicts, placed
from qbench.workbench.precisions import precision_of


def inspect_model(model: Path, target_names: Sequence[str], *, precision: str | None = None, toolkit: str | None = None,
                  input_shapes: Mapping[str, tuple[int, ...]] | None = None, input_values: Mapping[str, str] | None = None) -> list[Inspection]:
    """One report per target, at its fastest operating point.

    precision   of every layer that can take it; default: the target's first
    Raises ModelError for what is no model, TargetError or UnknownName for what is no target; open axes raise nothing.
    """
    chips = [targets.load(name) for name in dict.fromkeys(target_names)]
    file = spelled(model)
    opset = file.opset_imports.get("", 0)
    sized = with_sizes(model, file.graph, input_shapes or {}, input_values or {})
    shapes = _shapes(file.graph, sized, input_shapes or {})
    if sized.prepared is None or sized.static is None:
        return [_without(t, toolkit, precision, model.stem, shapes) for t in chips]
    facts = _Facts(model.stem, shapes, file.graph, sized.prepared, sized.static, operators_of(sized.static.graph, opset), neighbours(sized.prepared),
                   *slimmed(sized.prepared, sized.static))
    return [_on(t, toolkit, precision, facts) for t in chips]


@dataclass(frozen=True)
class _Facts:
    """What no target changes. file   the graph as spelled; static   folded at static shapes; slim   without the nodes that do nothing: `gone`"""

    name: str
    shapes: Shapes
    file: ir.Graph
    prepared: PreparedModel
    static: ir.Model
    operators: Mapping[str, Operator]
    around: Neighbours
    slim: PreparedModel
    gone: tuple[tuple[str, str], ...]


def _shapes(graph: ir.Graph, sized: Sized, asked: Mapping[str, tuple[int, ...]]) -> Shapes:
    fixes = {name: as_option(name, shape) for name, shape in sized.shapes.items()}
    fixed: dict[str, Any] = {str(v.name): v.shape for v in _values(sized.static.graph)} if sized.static else {}
    lines = []
    for a in open_axes(graph):
        later = fixed.get(a.tensor)
        size = later[a.axis] if later is not None and a.axis is not None and a.axis < len(later) else None
        lines.append(AxisLine(a.tensor, a.axis, a.symbol, a.origins, tuple(cure(o, fixes) for o in a.origins),
                              size if isinstance(size, int) else None, sized.static is not None and a.tensor not in fixed))
    beyond_batch = {str(v.name) for v in graph.inputs if any(not isinstance(d, int) for d in list(v.shape or ())[1:])}
    assumed = {n: s for n, s in sized.shapes.items() if n not in asked and n in beyond_batch}
    return Shapes(len(_values(graph)), tuple(lines), assumed, sized.reason, type_findings(graph))


def _values(graph: ir.Graph) -> list[ir.Value]:
    return [*graph.inputs, *(v for n in graph for v in n.outputs if v.name and n.op_type != "Constant")]


def _precision(target: Target, version: str, asked: str | None) -> Precision:
    chosen = precision_of(asked) if asked else target.available(version)[0]
    target.support(chosen, version)
    return chosen


def _without(target: Target, toolkit: str | None, precision: str | None, name: str, shapes: Shapes) -> Inspection:
    version = target.toolkit(toolkit)
    return Inspection(name, target.name, version, str(_precision(target, version, precision)), target.operating_points[-1].name, shapes, None, asdict(target.provenance))


def _on(target: Target, toolkit: str | None, precision: str | None, facts: _Facts) -> Inspection:
    chip, version, point, network = target, target.toolkit(toolkit), target.operating_points[-1], facts.prepared.network
    chosen, rules = _precision(target, version, precision), rules_of(target)
    judged = judge(facts.operators, rules, target, version)
    target = by_verdicts(target, network, judged).target
    table = CostTable.build(network, replace(target, operating_points=(point,)), version)
    codes = table.uniform(chosen)
    price, rows = table.price(codes[None], point.name)[0], table.kernel_table(codes, point.name)
    runs = {n: Precision(r.precision) for r in rows if r.name in network.kernel for n in network.kernel[r.name].nodes}
    listed = place_operators(facts.operators, network, rules, judged, version, {n: runs.get(n, chosen) for n in facts.operators})
    found = OnTarget(
        price.latency_ms, price.latency_ms_low, price.latency_ms_high, listed.lines, listed.remarks,
        fallback(network, listed.kernels, table.model, rows, chosen, point, target.sources.get("cost.cpu_bytes_per_s", "")),
        padding(table, rows, point), input_sizes(facts.around, target, version, chosen, point), layouts(table, rows, chosen, point),
        on_chip(table, chosen),
        graph_counts(facts.file, facts.static.graph, network, table.model, chosen), 
        (*needless(facts, chip, version, chosen, price.latency_ms), *hazards(facts.static, target), *offers(listed, facts.operators)))
    return Inspection(facts.name, target.name, version, str(chosen), point.name, facts.shapes, found, asdict(target.provenance))


def needless(facts: _Facts, target: Target, version: str, precision: Precision, ms: float) -> tuple[Offer, ...]:
    """Nodes that do nothing, an operator type a line, where the network is priced lower without them."""
    if not facts.gone:
        return ()
    point = target.operating_points[-1]
    table = CostTable.build(facts.slim.network, replace(placed(target, facts.slim, version), operating_points=(point,)), version)
    less = table.price(table.uniform(precision)[None], point.name)[0].latency_ms
    if less >= ms:
        return ()
    exactness = named(REWRITE).exactness
    nodes = {op: tuple(n for n, o in facts.gone if o == op) for _, op in facts.gone}
    return tuple(Offer(op, str(Placement.NPU), names, "nothing", str(exactness), exactness.meaning,
                       f"idle, or undone by the next one; without all of them {less:.3g} ms in place of {ms:.3g} ms predicted; qbench rewrite: {REWRITE}")
                 for op, names in nodes.items())


def hazards(model: ir.Model, target: Target) -> tuple[Offer, ...]:
    """Patterns at which the target's toolchain stops although it knows each operator, with the rewrite that takes them away."""
    found = []
    for rewrite in REWRITES.values():
        why = rewrite.hazards.get(target.rules)
        nodes = [n for place in rewrite.places(model) for n in place] if why else []
        if why and nodes:
            found.append(Offer(" + ".join(rewrite.ops), str(Placement.REFUSED), tuple(nodes), rewrite.becomes, str(rewrite.exactness), rewrite.exactness.meaning,
                               f"{why}; qbench rewrite: {rewrite.name}"))
    return tuple(found)
