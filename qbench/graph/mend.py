"""Small liberties that exporters take and other tools forgive: nodes out of order, two names of the standard domain, graphs without a name."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from qbench.errors import ModelError
from qbench.graph.values import STANDARD, bodies


def mend(model: ir.Model) -> None:
    """Makes `model` what the rest of qbench, and onnx's checker, expect, in place.

    Raises ModelError naming the node that reads a tensor which nothing makes, and for a graph with a cycle.
    """
    for domain in STANDARD[1:]:
        if domain in model.opset_imports:
            model.opset_imports[""] = max(model.opset_imports.pop(domain), model.opset_imports.get("", 0))
    _link(model.graph, {})
    for graph in model.graphs():
        graph.name = graph.name or "graph"
        for node in graph:
            node.domain = "" if node.domain in STANDARD else node.domain
    for value in model.graph.outputs:
        if value.producer() is None and not value.is_graph_input() and not value.is_initializer():
            raise ModelError(f"output {value.name!r} is made by no node, and it is neither an input nor a weight: export the model anew")
    try:
        ir.passes.common.TopologicalSortPass()(model)
    except Exception as error:                                   # the pass wraps its ValueError
        raise ModelError("the model's graph has a cycle: some node reads, by way of others, what it makes itself; export the model anew") from error


def _link(graph: ir.Graph, outer: Mapping[str, ir.Value]) -> None:
    """Connect readers with makers that come later in the file: onnx_ir takes those for unknown tensors."""
    known = {**outer, **{str(v.name): v for v in (*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs))}}
    own = {id(v) for v in known.values()}
    for node in graph:
        for index, value in enumerate(node.inputs):
            if value is None or id(value) in own or value.const_value is not None:
                continue
            if value.name not in known:
                raise ModelError(f"node {node.name!r} ({node.op_type}) reads {value.name!r}, which no node makes and which is neither an input nor "
                                 "a dense weight (sparse initializers are not read): export the model anew, with dense weights")
            node.replace_input_with(index, known[str(value.name)])
        for body in bodies(node):
            _link(body, known)
