"""The operator set that a model asks for."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from qbench.rewriting import Exactness
from qbench.targets.rewrites.registry import whole_graph

OLDER = 19
"""The newest operator set that toolchains of 2025 take (rknn-toolkit2 2.5.0)."""
MORE_TYPES = frozenset({"Cast", "Reshape", "Identity", "Constant", "Transpose", "Squeeze", "Unsqueeze", "Shape", "Size", "Flatten", "Pad", "ConstantOfShape", "If",
                        "IsNaN", "IsInf", "ReduceMax", "ReduceMin", "TopK"})
"""Operators whose newer versions, up to set 24, only take more types (ONNX operator change log)."""
OLD_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.INT64, ir.DataType.INT32, ir.DataType.INT8, ir.DataType.UINT8,
                       ir.DataType.BOOL, None})
NEWEST = 24
LIMIT = f"rknn-toolkit2 2.5.0 takes operator sets up to {OLDER}"


@whole_graph("lower-operator-set", becomes="the same nodes in operator set 19", exactness=Exactness.E, hazards={"rknn": LIMIT})
def lower_operator_set(model: ir.Model) -> None:
    """A model of operator set 20 to 24 is declared as one of set 19, where all of its operators mean the same there."""
    version = model.opset_imports.get("", 0)
    if OLDER < version <= NEWEST and all(_the_same(n, version) for n in model.graph.all_nodes()):
        model.opset_imports[""] = model.graph.opset_imports[""] = OLDER


def _the_same(node: ir.Node, version: int) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return True
    if any(v is not None and v.dtype not in OLD_TYPES for v in (*node.inputs, *node.outputs)):
        return False
    try:
        then, now = onnx.defs.get_schema(node.op_type, OLDER), onnx.defs.get_schema(node.op_type, version)
    except onnx.defs.SchemaError:
        return False
    return then.since_version == now.since_version or (node.op_type in MORE_TYPES and set(node.attributes) <= set(then.attributes))
