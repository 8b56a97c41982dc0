"""onnx's shape inference, helped where it or its reader falls short."""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as passes

from qbench.graph.values import STANDARD, bodies

KEEPS_SHAPE = {"GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization", "Gelu", "Mish", "Swish", "HardSwish",
               "Softplus", "Softsign", "ThresholdedRelu", "Selu", "Celu", "Elu", "Clip", "LRN", "MeanVarianceNormalization"}
"""Operators whose output has the shape of their first input; onnx does not infer all of them in every opset."""


def infer_shapes(model: ir.Model) -> None:
    """Types and shapes of all values, as far as they can be known."""
    _mark_containers(model.graph, model.opset_imports.get("", 0))
    while True:
        passes.ShapeInferencePass()(model)
        helped = False
        for node in model.graph.all_nodes():
            source = node.inputs[0] if node.inputs else None
            if node.op_type in KEEPS_SHAPE and node.outputs[0].shape is None and source is not None and source.shape is not None:
                node.outputs[0].shape, node.outputs[0].type = source.shape.copy(), source.type
                helped = True
        if not helped:
            return


def _mark_containers(graph: ir.Graph, opset: int) -> None:
    """Give sequences and optionals their type: onnx_ir takes the result of inference for tensors, and the file no longer loads."""
    for node in graph:
        for body in bodies(node):
            _mark_containers(body, opset)
        for index, value in enumerate(node.outputs):
            if value.type is None and node.domain in STANDARD:
                value.type = _container(node, index, opset)


def _container(node: ir.Node, index: int, opset: int) -> ir.TypeProtocol | None:
    """The type of an output that is a sequence or an optional; None for tensors."""
    import onnx

    if node.op_type in ("If", "Loop"):
        leaves = [b.outputs[index + (node.op_type == "Loop")] for b in bodies(node) if index + (node.op_type == "Loop") < len(b.outputs)]
        return next((v.type for v in leaves if isinstance(v.type, ir.SequenceType | ir.OptionalType)), None)
    source = node.inputs[0] if node.inputs else None
    if node.op_type == "Identity":
        return source.type if source is not None and isinstance(source.type, ir.SequenceType | ir.OptionalType) else None
    try:
        schema = onnx.defs.get_schema(node.op_type, opset)
    except onnx.defs.SchemaError:
        return None
    formal = schema.outputs[min(index, len(schema.outputs) - 1)]
    element = source.dtype if source is not None and source.dtype is not None else ir.DataType.FLOAT
    if all(t.startswith("seq(") for t in formal.types):
        return ir.SequenceType(ir.TensorType(element))
    if all(t.startswith("optional(") for t in formal.types):
        return ir.OptionalType(source.type if source is not None and source.type is not None else ir.TensorType(element))
    return None


def drop_half_types(model: ir.Model) -> None:
    """In bodies, a type without a shape is dropped: onnx's checker takes no type at all, but not half of one."""
    for graph in model.graphs():
        if graph is not model.graph:
            for value in (*graph.inputs, *graph.outputs):
                if value.type is not None and value.shape is None:
                    value.type = None
