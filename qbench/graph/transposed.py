"""An activation behind a Transpose goes in front of it, next to the convolution whose layout was turned.

Exporters from channels-last frameworks write Conv, Transpose, Relu: left alone, the convolution's output is stored once more, with a
range that holds the negative values which the Relu drops. Exact: these functions look at one value at a time.
"""

from __future__ import annotations

import onnx_ir as ir

from qbench.graph import operators as ops
from qbench.graph.values import STANDARD, constant

_MOVABLE = ops.ACTIVATIONS - {"PRelu"}
"""PRelu has a slope for each channel, along an axis that the Transpose moves."""


def lift_activations(model: ir.Model) -> None:
    """In place."""
    for node in list(model.graph):
        if node.op_type in _MOVABLE and node.domain in STANDARD and all(constant(v) for v in node.inputs[1:] if v is not None):
            _lift(node)


def _lift(node: ir.Node) -> None:
    turn = only_source(node.inputs[0], "Transpose")
    conv = only_source(turn.inputs[0], "Conv", "ConvTranspose") if turn is not None else None
    graph = node.graph
    if turn is None or conv is None or graph is None:
        return
    made, turned, out = conv.outputs[0], turn.outputs[0], node.outputs[0]
    name, leads_out = out.name, out.is_graph_output()
    ir.convenience.replace_all_uses_with(out, turned, replace_graph_outputs=leads_out)
    turned.shape, turned.type = out.shape if out.shape is not None else turned.shape, turned.type or out.type
    out.shape, out.type = made.shape, out.type or made.type
    node.replace_input_with(0, made)
    turn.replace_input_with(0, out)
    out.name, turned.name = turned.name, name
    graph.remove(turn)
    graph.insert_after(node, turn)


def only_source(value: ir.Value | None, *operators: str) -> ir.Node | None:
    """The node that makes `value`, when it is one of `operators` and nobody else reads it."""
    maker = value.producer() if value is not None else None
    if value is None or maker is None or maker.op_type not in operators or maker.domain not in STANDARD or value.is_graph_output():
        return None
    return maker if len(list(value.uses())) == 1 else None
