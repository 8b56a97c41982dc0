"""Recognise models that somebody has quantized already, in whatever form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx_ir as ir

from qbench.errors import ModelError

STARTS = ("QLinear", "Quantize", "Dequantize", "DynamicQuantize", "FakeQuant", "QOrdered", "QAttention", "QEmbed", "QGemm", "QMoE")
"""Beginnings of operator names, in any domain: QDQ pairs, QOperator form, dynamic quantization, training-time fakes."""
NAMES = {"ConvInteger", "MatMulInteger", "MatMulIntegerToFloat", "ConvTransposeInteger", "MatMulNBits", "MatMulBnb4", "MatMulFpQ4",
         "GatherBlockQuantized", "NhwcMaxPool", "LinearQuantize", "LinearDequantize", "BFPQuantize"}
NARROW = {"INT4", "UINT4", "INT2", "UINT2", "FLOAT4E2M1", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT8E8M0"}
"""Types that only quantized weights have."""


def refuse_quantized(model: ir.Model) -> None:
    """Raises ModelError that counts the operators of quantization and names the first and where it is."""
    found = [(n, where) for n, where in _nodes(model) if is_quantized(n)]
    if found:
        first, where = found[0]
        counts = ", ".join(f"{n} {op}" for op, n in Counter(n.op_type for n, _ in found).most_common(4))
        raise ModelError(f"the model is already quantized: {counts}; the first is node {first.name!r} ({first.op_type}){where}. "
                         "Give the float model that it was made from: qbench decides anew what is quantized and how")
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None and value.const_value.dtype.name in NARROW:
                raise ModelError(f"the model is already quantized: weight {value.name!r} is stored as {value.const_value.dtype.name.lower()}. "
                                 "Give the float model that it was made from")


def is_quantized(node: ir.Node) -> bool:
    return node.op_type in NAMES or node.op_type.startswith(STARTS)


def _nodes(model: ir.Model) -> Iterator[tuple[ir.Node, str]]:
    """Every node, in bodies and functions too, with words for where it is."""
    for node in model.graph.all_nodes():
        inside = node.graph is not model.graph and node.graph is not None
        yield node, f" in the body {node.graph.name!r}" if inside and node.graph is not None else ""
    for function in model.functions.values():
        for node in function.all_nodes():
            yield node, f" in the function {function.name!r}"
