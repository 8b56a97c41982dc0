"""Registry of rewrites: one function a rewrite, whose docstring is the text that users see.

    @rewrite("abs-to-max", "Abs", becomes="Max(x, -x)", exactness=E)
    def abs_to_max(op, y):
        \"""What it does, and when it does not apply.\"""
        ...builds nodes with `op` and returns the value that replaces `y`, or None where it does not apply

The pattern is one operator, or what `pattern=` builds; matching is onnxscript's. A rewrite of the graph as a whole is marked with `whole_graph`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import RewriteRule

from qbench.graph.inference import infer_shapes
from qbench.rewriting import Change, Exactness, Rewrite, Wanted

REWRITES: dict[str, Rewrite] = {}
"""By name, in the order in which they are tried."""
NORM_ROUNDED = 1e-4
"""Tolerance where a division by a deviation enlarges that rounding."""
ROUNDED = 1e-5
"""Tolerance of a rewrite that only rounds in another order: 80 units in the last place of float32."""
Replacement = Callable[..., Any]


@dataclass(frozen=True)
class _Described:
    name: str
    ops: tuple[str, ...]
    becomes: str
    exactness: Exactness
    tolerance: float
    text: str
    source: str
    hazards: Mapping[str, str] = field(default_factory=dict)
    tidies: bool = False
    speeds: bool = False


@dataclass(frozen=True)
class PatternRewrite(_Described):
    """rules   alternatives, tried in order at every node"""

    rules: tuple[RewriteRule, ...] = ()

    def places(self, model: ir.Model) -> tuple[tuple[str, ...], ...]:
        twin = model.clone()                                       # a replacement decides while it builds, so a copy is rewritten
        return tuple(c.old for c in self.apply(twin))

    def apply(self, model: ir.Model, wanted: Wanted = lambda names: True) -> tuple[Change, ...]:
        changes = []
        for node in list(model.graph):
            if node.graph is not None and (change := self._at(model, node, wanted)) is not None:
                changes.append(change)
        if changes:
            tidy(model)
        return tuple(changes)

    def _at(self, model: ir.Model, node: ir.Node, wanted: Wanted) -> Change | None:
        for rule in self.rules:
            match = rule.match(model, model.graph, node)
            if not match or not wanted(tuple(str(n.name) for n in match.nodes)):
                continue
            delta = rule.try_rewrite(model, model.graph, node)
            if delta is None:
                continue
            old = tuple(n for n in model.graph if n in set(delta.match.nodes))
            _name(model.graph, node, delta.new_nodes, delta.new_initializers)
            ir.convenience.replace_nodes_and_values(model.graph, node, list(old), list(delta.new_nodes), list(delta.match.outputs), list(delta.new_outputs))
            return Change(self.name, tuple(str(n.name) for n in old), tuple(str(n.name) for n in delta.new_nodes))
        return None


@dataclass(frozen=True)
class GraphRewrite(_Described):
    """run   changes a model in place"""

    run: Callable[[ir.Model], None] = lambda model: None

    def places(self, model: ir.Model) -> tuple[tuple[str, ...], ...]:
        return tuple(c.old for c in self.apply(model.clone()))

    def apply(self, model: ir.Model, wanted: Wanted = lambda names: True) -> tuple[Change, ...]:
        before = _spelled(model)
        if not wanted(tuple(before)):
            return ()
        self.run(model)
        tidy(model)
        after = _spelled(model)
        gone, come = tuple(n for n in before if after.get(n) != before[n]), tuple(n for n in after if after[n] != before.get(n))
        removed = tuple(n for n in gone if n not in after)
        return (Change(self.name, removed or gone, come),) if gone else ()


def _spelled(model: ir.Model) -> dict[str, tuple[object, ...]]:
    """What a node does, by its name."""
    version = model.opset_imports.get("", 0)
    return {str(n.name): (version, n.op_type, *(v.name if v else "" for v in n.inputs)) for n in model.graph}


def rewrite(name: str, *ops: str, becomes: str, exactness: Exactness, source: str = "", tolerance: float | None = None,
            pattern: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None, hazards: Mapping[str, str] | None = None,
            tidies: bool = False, speeds: bool = False) -> Callable[[Replacement], Replacement]:
    """Registers the decorated function.

    tolerance  default: 0 for a bit-exact one, ROUNDED for another rounding
    pattern    onnxscript patterns; default: any one node of `ops`, its output bound to `y`
    """
    def add(function: Replacement) -> Replacement:
        patterns = [_single(o) for o in ops] if pattern is None else [pattern] if callable(pattern) else list(pattern)
        rules = tuple(RewriteRule(p, function, name=name) for p in patterns)
        _add(PatternRewrite(name, ops, becomes, exactness, _tolerance(exactness, tolerance), _text(function), source, hazards or {}, tidies, speeds, rules))
        return function
    return add


def whole_graph(name: str, *ops: str, becomes: str, exactness: Exactness, source: str = "", tolerance: float | None = None, hazards: Mapping[str, str] | None = None,
                tidies: bool = False, speeds: bool = False) -> Callable[[Callable[[ir.Model], None]], Callable[[ir.Model], None]]:
    """Registers the decorated function, which changes a model in place."""
    def add(function: Callable[[ir.Model], None]) -> Callable[[ir.Model], None]:
        _add(GraphRewrite(name, ops, becomes, exactness, _tolerance(exactness, tolerance), _text(function), source, hazards or {}, tidies, speeds, function))
        return function
    return add


def _add(made: Rewrite) -> None:
    assert made.name not in REWRITES, made.name
    REWRITES[made.name] = made


def _single(op_type: str) -> Callable[..., Any]:
    return lambda op: getattr(op, op_type)(_allow_other_inputs=True, _outputs=["y"])


def _tolerance(exactness: Exactness, given: float | None) -> float:
    return given if given is not None else 0.0 if exactness is Exactness.E else ROUNDED


def _text(function: Callable[..., Any]) -> str:
    return " ".join((function.__doc__ or "").split())


def _name(graph: ir.Graph, replaced: ir.Node, nodes: Sequence[ir.Node], initializers: Sequence[ir.Value]) -> None:
    """New nodes are called after the one that they replace, "ROOT/Op_1", and the last of its own type like it; so are their tensors."""
    root, heir = str(replaced.name), next((n for n in reversed(nodes) if n.op_type == replaced.op_type), None)
    taken = {n.name for n in graph} | {v.name for n in graph for v in n.outputs} | set(graph.initializers) | {v.name for v in graph.inputs}

    def free(stem: str) -> str:
        number, name = 0, stem
        while name in taken:
            number += 1
            name = f"{stem}_{number}"
        taken.add(name)
        return name

    for node in nodes:
        node.name = root if node is heir else free(f"{root}/{node.op_type}")
        for value in node.outputs:
            value.name = free(f"{node.name}.out")
    for value in initializers:
        value.name = free(f"{root}/{value.name}")
        graph.register_initializer(value)


def tidy(model: ir.Model) -> None:
    """Takes away what nothing reads, sorts, and infers shapes anew."""
    from onnx_ir.passes import common as passes

    passes.RemoveUnusedNodesPass()(model)
    passes.TopologicalSortPass()(model)
    infer_shapes(model)
