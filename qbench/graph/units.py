"""Which tensors share a scale, which kernels change precision together, and which must stay in float, with the reason."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from qbench.graph import operators as ops
from qbench.graph.norms import Chain
from qbench.graph.values import STANDARD, constant, held, infinite, is_float, mark_of, moved_inputs, moves_values
from qbench.network import Kernel, ScaleGroup, TensorSpec, Unit

DIVISOR_STEPS = 8
"""The smallest constant divisor must be that many steps of an 8-bit grid: below it the quotient is garbage, at 0 infinite."""


class _Union:
    """Disjoint sets of names; the first name seen leads its set."""

    def __init__(self, names: Iterable[str]) -> None:
        self.parent = {n: n for n in names}
        self.rank = {n: i for i, n in enumerate(self.parent)}

    def find(self, a: str) -> str:
        while self.parent[a] != a:
            self.parent[a] = self.parent[self.parent[a]]
            a = self.parent[a]
        return a

    def join(self, names: Iterable[str]) -> None:
        first = ""
        for other in names:
            first = first or other
            a, b = self.find(first), self.find(other)
            if a != b:
                low, high = sorted((a, b), key=self.rank.__getitem__)
                self.parent[high] = low

    def sets(self) -> list[tuple[str, ...]]:
        found: dict[str, list[str]] = {}
        for name in self.parent:
            found.setdefault(self.find(name), []).append(name)
        return [tuple(v) for v in found.values()]


def scale_groups(graph: ir.Graph, tensors: Mapping[str, TensorSpec]) -> tuple[ScaleGroup, ...]:
    """Every float tensor in one group, but for those that some operator takes for sizes."""
    sizes = {str(v.name) for n in graph if n.op_type in ops.SIZE_OPERANDS for i, v in enumerate(n.inputs) if v is not None and i in ops.SIZE_OPERANDS[n.op_type]}
    union = _Union(t for t, spec in tensors.items() if is_float(spec) and t not in sizes)
    for node in graph:
        if not moves_values(node):
            continue
        names = [str(v.name) for v in (*moved_inputs(node), *node.outputs) if not constant(v) and str(v.name) in union.parent]
        if names:
            union.join(names)
    copies = {str(v.name) for n in graph if moves_values(n) and not all(constant(v) for v in moved_inputs(n)) for v in n.outputs}
    joined = _joined(graph, tensors)
    return tuple(ScaleGroup(s, tuple(t for t in s if t not in copies) or s, tuple(c for t in s for c in joined.get(t, ()))) for s in union.sets())


def _joined(graph: ir.Graph, tensors: Mapping[str, TensorSpec]) -> dict[str, list[tuple[str, float, float]]]:
    """Output of a Concat or Where -> the finite constants among the values that it moves. Shapes are known here, so that what the user's
    model expands to the size of its input is a constant, too."""
    found: dict[str, list[tuple[str, float, float]]] = {}
    for node in graph:
        for value in moved_inputs(node) if node.op_type in ops.JOINS and moves_values(node) else ():
            data = held(value) if constant(value) else None
            if data is not None and data.size and not infinite(data):
                found.setdefault(str(node.outputs[0].name), []).append((str(value.name), float(data.min()), float(data.max())))
    return found


def units_of(graph: ir.Graph, kernels: tuple[Kernel, ...], groups: tuple[ScaleGroup, ...], tensors: Mapping[str, TensorSpec],
             chains: Sequence[Chain], small: Mapping[str, str]) -> tuple[Unit, ...]:
    """Kernels joined by the groups they write and by the normalisations they are part of.

    small   node -> why its small values may not vanish
    """
    nodes = {str(n.name): n for n in graph}
    spelled = {n: c.reason for c in chains for n in c.nodes}
    float_for = {k.name: next((spelled[n] for n in k.nodes if n in spelled), "") or _stays_float(k, nodes, tensors, small) for k in kernels}
    copies = {k.name for k in kernels if all(moves_values(nodes[n]) for n in k.nodes)}
    producer = {t: k.name for k in kernels for t in (*k.outputs, *k.inner)}
    union = _Union(k.name for k in kernels)
    for group in groups:
        union.join(_together([producer[t] for t in group.tensors if t in producer], float_for, copies))
    kernel_of = {n: k.name for k in kernels for n in k.nodes}
    for chain in chains:
        union.join(kernel_of[n] for n in chain.nodes)
    return tuple(Unit(m[0], m, not (reason := _first(m, float_for, {kernel_of[n] for n in spelled})), reason) for m in union.sets())


def _together(makers: list[str], float_for: Mapping[str, str], copies: Collection[str]) -> list[str]:
    """The makers of a scale group that change precision together: those that stay float anyway do not hold the others back.

    Where the others only hand values on, nothing is gained by storing what a float kernel made as integers in between.
    """
    free = [k for k in makers if not float_for[k]]
    return free if any(k not in copies for k in free) else makers


def _first(members: Iterable[str], float_for: Mapping[str, str], spelled: Collection[str]) -> str:
    """The reason of a unit: that of the normalisation in it, else that of its first kernel with one."""
    reasons = [(k not in spelled, float_for[k]) for k in members if float_for[k]]
    return min(reasons, key=lambda r: r[0])[1] if reasons else ""


def _stays_float(kernel: Kernel, nodes: Mapping[str, ir.Node], tensors: Mapping[str, TensorSpec], small: Mapping[str, str]) -> str:
    """Reason that a kernel cannot be stored as integers, or ""."""
    for name in kernel.nodes:
        node = nodes[name]
        if node.domain not in STANDARD:
            return f"{node.op_type}: operator of domain {node.domain!r}, unknown to qbench"
        if why := _odd_constant(node):
            return why
        if node.op_type == "Div" and constant(node.inputs[1]):
            continue                                             # a multiplication in other words
        if node.op_type not in ops.INTEGER:
            return ops.why_float(node.op_type)
    odd = [t for t in kernel.outputs if not is_float(tensors.get(t))]
    if odd:
        return f"writes {odd[0]!r} of type {tensors[odd[0]].dtype if odd[0] in tensors else '?'}, which is not float32"
    if not any(is_float(tensors.get(t)) for t in kernel.inputs):
        return "reads no float tensor"
    return next((small[n] for n in kernel.nodes if n in small), "")


def _odd_constant(node: ir.Node) -> str:
    """Reason that a constant operand has no integer form; padding values are copied, not computed with."""
    if node.op_type not in ops.ANCHORS | ops.ELEMENTWISE | {"Concat", "Where"}:
        return ""
    for value in node.inputs:
        data = held(value)
        if value is not None and data is not None and infinite(data):
            return f"{node.op_type}: its constant {value.name!r} holds infinity or NaN, which no scale can cover"
    mark = mark_of(node)
    data = held(mark)
    if mark is not None and data is not None:
        return f"{node.op_type}: its constant {mark.name!r} holds {np.abs(data).max():.3g}, a mark that would own the scale of all values beside it"
    divisor = node.inputs[1] if node.op_type == "Div" else None
    data = held(divisor)
    if divisor is not None and data is not None and data.size:
        least, span = float(np.abs(data).min()), float(max(data.max(), 0.0) - min(data.min(), 0.0))
        if least * 255 < DIVISOR_STEPS * span:
            return (f"Div: its constant divisor {divisor.name!r} reaches from {least:.3g} to {span:.3g}: on one integer grid "
                    "the small values vanish, and they are divided by")
    return ""
