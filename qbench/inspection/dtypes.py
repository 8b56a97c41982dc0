"""Tensors whose declared type is not the one that the network needs: whole numbers kept as float32, float64, 64-bit integers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from qbench.graph.values import constant

INTEGERS = {ir.DataType.INT64, ir.DataType.INT32, ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64}
FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
WHOLE = {"Floor", "Ceil", "Round", "Sign", "NonZero"}
"""Operators that write whole numbers as floats."""
KEEP = {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Concat", "Gather", "Identity", "Expand", "Tile", "Split", "Add", "Sub", "Mul",
        "Max", "Min", "Neg", "Abs", "Clip", "Relu", "Where", "ReduceSum", "ReduceMax", "ReduceMin", "MaxPool"}
"""Operators that write whole numbers when all that they read are whole."""
MOVES = {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Identity", "Expand", "Tile", "Split"}


@dataclass(frozen=True, slots=True)
class TypeFinding:
    """declared, needed   types; why   in a sentence, with the cure"""

    tensor: str
    declared: str
    needed: str
    why: str


def type_findings(graph: ir.Graph) -> tuple[TypeFinding, ...]:
    """In the order of the graph. Types must be inferred."""
    return (*_inputs(graph), *_whole(graph), *_wide(graph))


def _inputs(graph: ir.Graph) -> Iterator[TypeFinding]:
    """Float inputs that the network only ever reads as integers."""
    for value in graph.inputs:
        goals = list(_casts(value)) if value.dtype in FLOATS and value.uses() else []
        if goals and all(g is not None and g in INTEGERS for g in goals):
            needed = str(next(g for g in goals if g is not None).name).lower()
            yield TypeFinding(str(value.name), str(value.dtype.name).lower() if value.dtype else "", needed,
                              f"the network only casts it to {needed}: declare the input so and drop the Cast")


def _casts(value: ir.Value) -> Iterator[ir.DataType | None]:
    """Types that all readers of `value` turn it into; None for a reader that computes with it."""
    for node, _ in value.uses():
        if node.op_type == "Cast":
            yield ir.DataType(node.attributes["to"].as_int())
        elif node.op_type in MOVES:
            for out in node.outputs:
                yield from _casts(out) if out.uses() else (None,)
        else:
            yield None


def _whole(graph: ir.Graph) -> Iterator[TypeFinding]:
    """Float tensors that can only hold whole numbers."""
    whole: set[int] = set()
    for node in graph:
        source = node.inputs[0] if node.inputs else None
        out = node.outputs[0] if node.outputs else None
        if out is None or out.dtype not in FLOATS:
            continue
        from_integers = node.op_type == "Cast" and source is not None and source.dtype in INTEGERS and not constant(source)
        read = [v for v in node.inputs if v is not None and not constant(v)]
        if from_integers or node.op_type in WHOLE or (node.op_type in KEEP and read and all(id(v) in whole for v in read) and _whole_constants(node)):
            whole |= {id(v) for v in node.outputs}
        if id(out) in whole and (reader := _indexing(out)) is not None:
            yield TypeFinding(str(out.name), "float32", "int32", f"{node.op_type} computes the indices of {reader} in the float unit: compute them as integers")
        elif from_integers and source is not None and source.dtype is not None and _arithmetic(out):
            yield TypeFinding(str(out.name), "float32", source.dtype.name.lower(),
                              f"{source.dtype.name.lower()} values cast to float: they are whole and run in the float unit from here on")


def _whole_constants(node: ir.Node) -> bool:
    held = [v.const_value.numpy() for v in node.inputs if v is not None and v.const_value is not None and v.dtype in FLOATS and v.const_value.size <= 1024]
    return all(bool((x == x.round()).all()) for x in held)


def _indexing(value: ir.Value) -> str | None:
    """The operator that uses `value`, cast to an integer, as indices or sizes."""
    for node, _ in value.uses():
        if node.op_type == "Cast" and node.outputs[0].dtype in INTEGERS:
            for reader, index in node.outputs[0].uses():
                if index > 0 and reader.op_type in ("Gather", "GatherElements", "GatherND", "ScatterND", "ScatterElements", "OneHot", "Slice"):
                    return f"{reader.op_type} {reader.name!r}"
    return None


def _arithmetic(value: ir.Value) -> bool:
    return any(n.op_type in ("Add", "Sub", "Mul", "Max", "Min", "Equal", "Greater", "Less", "Where", "Abs", "Neg") for n, _ in value.uses())


def _wide(graph: ir.Graph) -> Iterator[TypeFinding]:
    """float64 anywhere, and 64-bit integers that enter, leave or are gathered with: chips have neither."""
    doubles = [v for n in graph for v in n.outputs if v.dtype == ir.DataType.DOUBLE]
    ends = [*graph.inputs, *(v for v in graph.outputs if v not in graph.inputs)]
    for value in [*(v for v in graph.inputs if v.dtype == ir.DataType.DOUBLE), *doubles]:
        yield TypeFinding(str(value.name), "float64", "float32", "no NPU computes in double precision: export in float32 (qbench reads it as float32)")
    for value in ends:
        if value.dtype == ir.DataType.INT64:
            yield TypeFinding(str(value.name), "int64", "int32", "64-bit integers are moved and compared on the CPU: int32 holds indices up to 2^31 (check the range)")
