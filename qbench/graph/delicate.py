"""Operators whose output must not lie on an integer grid, because its small values decide something unbounded (BUG case B14).

A grid rounds small values to 0. Where they are divided by, rooted, raised to a negative power or have their logarithm taken,
that rounding becomes infinity or garbage. So whoever makes such an operand stays in float, back to where the values come from:
  * through arithmetic and reductions, up to and including the first operator of another kind (a convolution, a pool, ...);
  * no further than a square or an exponential: what lies before it is an ordinary activation. Unless it is divided by (or its
    logarithm taken) and nothing keeps it away from 0, such as an added epsilon: then the maker of the squared tensor is included;
  * no further than the beginning of a normalisation that is kept from 0: its dividend is rounded alike.
How far an unguarded 0 may come from cannot be followed to the end of the network; a model that divides by the length of a
vector and lets it be 0 is not finite in float either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from qbench.graph.norms import REDUCTIONS, Chain, inverts
from qbench.graph.values import STANDARD, constant, held, moved_inputs, moves_values, single

DOMAINS = {"Log": "logarithm", "Sqrt": "root", "Acos": "arc", "Asin": "arc", "Acosh": "arc", "Atanh": "arc", "ReduceLogSum": "logarithm"}
"""Operators that leave their domain, or become unbounded, when their operand is rounded."""
PASSED = REDUCTIONS | {"Add", "Sub", "Mul", "Div", "Max", "Min", "Clip", "Neg", "Abs", "Sqrt", "Pow", "Sum", "Mean", "Cast", "Where", "Reciprocal"}
"""Arithmetic that the walk back goes through."""
SQUARES = {"ReduceL2", "ReduceSumSquare"}
MOST_JOINS = 2
"""Sums of two activations on one way back: past them lies a residual stream, which is the whole network."""


@dataclass
class Delicate:
    """reasons  node name -> why its output must stay in float
    guards      names of the nodes whose constant keeps such an operand away from 0
    """

    reasons: dict[str, str] = field(default_factory=dict)
    guards: set[str] = field(default_factory=set)


def delicate(graph: ir.Graph, chains: Sequence[Chain] = ()) -> Delicate:
    """All such operators of the static twin's `graph`; `chains` are its normalisations."""
    found, member = Delicate(), {n: i for i, c in enumerate(chains) for n in c.nodes}
    for node in graph:
        operand = _operand(node)
        if operand is not None and not constant(operand):
            why = f"its output is what {node.op_type} {str(node.name)!r} depends on near 0, and small values vanish on an integer grid"
            _back(operand, why, inverts(node) or "Log" in node.op_type, found, member)
    return found


def _operand(node: ir.Node) -> ir.Value | None:
    """The input of `node` whose small values matter out of proportion."""
    if node.domain not in STANDARD or not node.inputs:
        return None
    if node.op_type in ("Div", "Mod"):
        return node.inputs[1]
    if node.op_type == "Pow":
        exponent = single(node.inputs[1])
        return None if exponent is not None and exponent >= 0 and exponent == int(exponent) else node.inputs[0]
    return node.inputs[0] if node.op_type in DOMAINS or inverts(node) else None


def _back(operand: ir.Value, why: str, unbounded: bool, found: Delicate, member: Mapping[str, int]) -> None:
    """Mark the makers of `operand`.

    unbounded   a 0 there becomes infinity; member   node -> number of its normalisation
    """
    stack = [(operand, not unbounded, 0)]                       # value, whether it may be 0, sums on the way
    seen: set[tuple[int, bool]] = set()
    while stack:
        value, guarded, joins = stack.pop()
        node = value.producer()
        if node is None or constant(value) or (id(value), guarded) in seen or node.op_type == "Shape":
            continue
        seen.add((id(value), guarded))
        found.reasons.setdefault(str(node.name), f"{node.op_type}: {why}")
        reads = [v for v in node.inputs if v is not None and not constant(v)]
        if node.domain not in STANDARD:
            continue
        floor = _floor(node)
        if str(node.name) in member and (guarded or floor):
            reads = [v for v in reads if (p := v.producer()) is not None and member.get(str(p.name)) == member[str(node.name)]]
        if _squares(node):
            if not guarded:
                _mark(reads, why, found)
        elif moves_values(node):
            stack += [(v, guarded, joins) for v in moved_inputs(node) if not constant(v)]
        elif node.op_type in PASSED:
            if floor:
                found.guards.add(str(node.name))
            joins += len({id(v) for v in reads}) > 1
            if joins <= MOST_JOINS:
                stack += [(v, guarded or floor, joins) for v in reads]
            else:
                _mark(reads, why, found)


def _mark(values: list[ir.Value], why: str, found: Delicate) -> None:
    """The makers of `values`, seen through what only moves them."""
    stack, seen = list(values), set[int]()
    while stack:
        node = stack.pop().producer()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        found.reasons.setdefault(str(node.name), f"{node.op_type}: {why}")
        stack += moved_inputs(node) if moves_values(node) else []


def _squares(node: ir.Node) -> bool:
    if node.op_type == "Mul":
        return node.inputs[0] is node.inputs[1]
    if node.op_type == "Pow":
        exponent = single(node.inputs[1])
        return exponent is not None and exponent > 1
    return node.op_type in SQUARES


def _floor(node: ir.Node) -> bool:
    """Whether a constant of the node keeps what is not negative away from 0."""
    if node.op_type == "Clip":
        low = single(node.inputs[1]) if len(node.inputs) > 1 else None
        return low is not None and low > 0
    if node.op_type in ("Add", "Max", "Sum"):
        return any((data := held(v)) is not None and data.size > 0 and float(data.min()) > 0 for v in node.inputs)
    return False
