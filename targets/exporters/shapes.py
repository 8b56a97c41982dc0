"""Static shapes, which no toolchain does without."""

from __future__ import annotations

import onnx_ir as ir

from qbench.network import Network


def with_static_shapes(model: ir.Model, network: Network) -> None:
    """Every shape as the network has it, batch 1; in place."""
    for value in (*model.graph.inputs, *model.graph.outputs):
        spec = network.tensors.get(str(value.name))
        if spec is not None:
            value.shape = ir.Shape(spec.shape)
    ends = {*model.graph.inputs, *model.graph.outputs}
    for node in model.graph:
        for value in node.outputs:
            if value not in ends:
                value.shape = None
