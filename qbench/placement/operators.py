"""The nodes of a graph as rules about operators see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from qbench.graph.norms import REDUCTIONS, Chain, normalisations
from qbench.graph.values import STANDARD, constant
from qbench.placement.record import Operand, Operator

SMALL = 64
"""Elements up to which the data of a constant is shown to the rules: indices, sizes, exponents."""
MEANS = {"ReduceMean", "GlobalAveragePool", "AveragePool"}
PARTS = 4
"""Parts that a 2 x 2 block falls into."""
CHAIN = 3
"""Operators behind an Erf at most that belong to a GELU: + 1, * x, * 0.5."""


def operators_of(graph: ir.Graph, opset: int) -> dict[str, Operator]:
    """The nodes of the main graph by name.

    opset   of the model as the user gave it
    """
    chains = _chains(graph)
    return {str(n.name): Operator(str(n.name), n.op_type, tuple(None if v is None else _operand(v) for v in n.inputs),
                                  tuple(_operand(v) for v in n.outputs), _attributes(n), "" if n.domain in STANDARD else n.domain, opset,
                                  chains.get(str(n.name), ""),
                                  any(v.is_graph_output() for v in n.outputs)) for n in graph}


def _operand(value: ir.Value) -> Operand:
    shape: Any = value.shape
    sizes = None if shape is None else tuple(d if isinstance(d, int) else None for d in shape)
    held = value.const_value
    return Operand(str(value.name), sizes, "" if value.dtype is None else value.dtype.name.lower(), constant(value),
                   np.asarray(held.numpy()) if held is not None and held.size <= SMALL and held.dtype != ir.DataType.STRING else None)


def _attributes(node: ir.Node) -> dict[str, Any]:
    """Numbers and texts; tensors and bodies are left out."""
    plain = (ir.AttributeType.INT, ir.AttributeType.INTS, ir.AttributeType.FLOAT, ir.AttributeType.FLOATS, ir.AttributeType.STRING, ir.AttributeType.STRINGS)
    return {name: a.value for name, a in node.attributes.items() if a.type in plain}


def _chains(graph: ir.Graph) -> dict[str, str]:
    """Node -> the function that it spells together with others."""
    of = {str(n.name): n.op_type for n in graph}
    found = {n: _kind(c, of) for c in normalisations(graph) for n in c.nodes}
    for node in graph:
        if node.op_type == "Erf" and node.domain in STANDARD:
            found |= dict.fromkeys(_gelu(node), "gelu")
        elif node.op_type == "Concat" and node.domain in STANDARD:
            found |= dict.fromkeys(_focus(node), "focus")
    return found


def _kind(chain: Chain, ops: Mapping[str, str]) -> str:
    """Division by an extreme or a plain sum is no normalisation that a toolchain has an operator for."""
    if chain.softmax:
        return "softmax"
    taken = {ops.get(n, "") for n in chain.nodes} & REDUCTIONS
    return "normalisation" if taken <= MEANS else "statistic"


def _gelu(erf: ir.Node) -> list[str]:
    """Names of x / sqrt(2), Erf, + 1, * x, * 0.5 around an Erf; empty when it is no GELU."""
    front = erf.inputs[0].producer() if erf.inputs[0] is not None else None
    members = [erf]
    if front is not None and front.op_type in ("Div", "Mul") and any(constant(v) for v in front.inputs):
        members.append(front)
    here = erf
    for _ in range(CHAIN):
        readers = {id(n): n for n, _ in here.outputs[0].uses()}
        here = next(iter(readers.values())) if len(readers) == 1 else here
        if len(readers) != 1 or here.op_type not in ("Add", "Mul"):
            break
        members.append(here)
    kinds = [m.op_type for m in members]
    return [str(m.name) for m in members] if "Add" in kinds and "Mul" in kinds else []


def _focus(concat: ir.Node) -> list[str]:
    """Names of the Slices with steps that together take a map apart and whose parts `concat` joins; empty when they do not."""
    parts = [v.producer() if v is not None else None for v in concat.inputs]
    if len(parts) < PARTS or any(p is None or not _strided(p) for p in parts):
        return []
    found = [p for p in parts if p is not None]
    above = [v.producer() for p in found if (v := p.inputs[0]) is not None]
    return [str(n.name) for n in (*found, *(a for a in above if a is not None and _strided(a)))]


def _strided(node: ir.Node) -> bool:
    steps = node.inputs[4].const_value if node.op_type == "Slice" and len(node.inputs) > 4 and node.inputs[4] is not None else None
    return steps is not None and bool((np.asarray(steps.numpy()) > 1).any())
