"""Models that store or compute in float16, bfloat16 or float64, read as float32: qbench itself decides what runs in FP16."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from qbench.graph import operators as ops
from qbench.graph.values import STANDARD, Array

HALVES = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
TYPE_ATTRIBUTES = {"to", "dtype", "output_datatype", "output_dtype", "stash_type", "softmax_precision"}
"""Attributes that name a data type."""


def widened(model: ir.Model, lazy: bool) -> str:
    """Makes every such tensor of `model` float32, in place. Returns what the user should know, "" when there was none.

    float64 is left alone where only shape arithmetic is done in it: rounded to float32 it could give other shapes.
    lazy   convert each weight when it is asked for: for models whose weights do not fit in memory twice
    """
    wanted = HALVES | ({ir.DataType.DOUBLE} if _computes_in_double(model) else set())
    found: Counter[str] = Counter()
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None and value.const_value.dtype in wanted:
                found[_name(value.const_value.dtype)] += 1
                value.const_value = _weight(value.const_value, str(value.name), lazy)
    ends = sorted({_name(v.dtype) for v in (*model.graph.inputs, *model.graph.outputs) if v.dtype in wanted})
    changed = sum([_retype(v, wanted) for g in model.graphs() for v in _values(g)]) + sum([_attributes(n, wanted) for n in model.graph.all_nodes()])
    if not found and not changed:
        return ""
    told = [f"{n} {name} weight{'s' if n > 1 else ''}" for name, n in sorted(found.items())] or ["computation in float16, bfloat16 or float64"]
    return (f"{' and '.join(told)} read as float32" + (f"; inputs and outputs in {' and '.join(ends)} are float32 now" if ends else "")
            + ": qbench decides what runs in FP16")


def drop_idle_casts(model: ir.Model) -> None:
    """Casts from float32 to float32 become Identities. Types must be inferred."""
    for node in list(model.graph.all_nodes()):
        source = node.inputs[0] if node.inputs else None
        to = node.attributes.get("to")
        if node.op_type != "Cast" or node.domain not in STANDARD or to is None or source is None:
            continue
        if source.dtype == ir.DataType.FLOAT and to.as_int() == ir.DataType.FLOAT:
            node.op_type = "Identity"
            node.attributes.clear()


def _computes_in_double(model: ir.Model) -> bool:
    double = ir.DataType.DOUBLE
    return any(v.dtype == double for v in model.graph.inputs) or any(
        v is not None and v.dtype == double for n in model.graph.all_nodes() if n.op_type in ops.ANCHORS for v in n.inputs)


def _name(dtype: ir.DataType | None) -> str:
    return "" if dtype is None else {"DOUBLE": "float64"}.get(dtype.name, dtype.name.lower())


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def _retype(value: ir.Value, wanted: set[ir.DataType]) -> bool:
    """Element type of a tensor, or inside a sequence or optional."""
    if value.type is None or value.dtype not in wanted:
        return False
    value.dtype = ir.DataType.FLOAT
    return True


def _attributes(node: ir.Node, wanted: set[ir.DataType]) -> int:
    changed = 0
    for name, attribute in list(node.attributes.items()):
        if attribute.type == ir.AttributeType.INT and name in TYPE_ATTRIBUTES and attribute.as_int() in {int(w) for w in wanted}:
            node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))
        elif attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype in wanted:
            node.attributes[name] = ir.AttrTensor(name, _weight(attribute.as_tensor(), name, False))
        else:
            continue
        changed += 1
    return changed


def _weight(tensor: ir.TensorProtocol, name: str, lazy: bool) -> ir.TensorProtocol:
    if lazy:
        return ir.LazyTensor(lambda: ir.tensor(_single(tensor.numpy())), ir.DataType.FLOAT, ir.Shape(tensor.numpy().shape), name=name)
    return ir.tensor(_single(tensor.numpy()), name=name)


def _single(data: Array) -> Array:
    """As float32; what is finite in float64 stays finite."""
    limit = np.finfo(np.float32).max
    if data.dtype == np.float64:
        data = np.where(np.isfinite(data), np.clip(data, -limit, limit), data)
    return data.astype(np.float32)
