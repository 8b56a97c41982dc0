"""Normalisations that a model spells in primitive operators, found by structure (BUG case B14).

A normalisation divides a tensor by a statistic of the same tensor. So its last operator, the quotient, is reached from the
tensor (the root) along several paths, all of which begin at the root: the root dominates the quotient. What lies between
them is the chain, if it is arithmetic and reductions only. That finds layer, batch, group, instance, RMS and L2
normalisation and softmax in whatever spelling: Pow(x, 2) or Mul(x, x), Sqrt and Div or Reciprocal and Mul or Pow(x, -0.5),
torch's (x - mean) / std or TensorFlow's x * inv + (shift - mean * inv).

Source of dominators: Cooper, Harvey, Kennedy, A Simple, Fast Dominance Algorithm (2001), for a graph in topological order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from qbench.graph.values import STANDARD, activations_of, constant, moves_values, single, sizes

REDUCTIONS = {"ReduceMean", "ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceMax", "ReduceMin", "GlobalAveragePool",
              "AveragePool", "CumSum"}
ARITHMETIC = {"Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Reciprocal", "Abs", "Neg", "Max", "Min", "Clip", "Exp", "Sum", "Mean", "Cast",
              "Where", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal", "Not"}
LONGEST = 64
"""Operators in a chain at most: more is a network that happens to be arithmetic only."""


@dataclass(frozen=True, slots=True)
class Chain:
    """One normalisation. nodes   names in execution order; softmax   True where it exponentiates"""

    nodes: tuple[str, ...]
    softmax: bool

    @property
    def reason(self) -> str:
        where = f"written as {len(self.nodes)} operators ({self.nodes[0]!r} to {self.nodes[-1]!r})"
        if self.softmax:
            return f"softmax {where}: its sums and quotients have no integer form, so it is kept in float as one"
        return f"normalisation {where}: small variances vanish on an integer grid and are divided by, so it is kept in float as one"


def normalisations(graph: ir.Graph) -> tuple[Chain, ...]:
    """The chains of the static twin's `graph`, disjoint, in execution order."""
    return _Finder(graph).chains()


def inverts(node: ir.Node) -> bool:
    """True when the result is unbounded where the first input (of Div: the divisor) nears 0."""
    if node.op_type == "Div":
        return not constant(node.inputs[1])
    if node.op_type == "Pow":
        exponent = single(node.inputs[1]) if len(node.inputs) > 1 else None
        return exponent is None or exponent < 0
    return node.op_type == "Reciprocal"


class _Finder:
    def __init__(self, graph: ir.Graph) -> None:
        self.nodes = list(graph)
        self.number = {id(n): i for i, n in enumerate(self.nodes)}
        self.maker = {str(v.name): i for i, n in enumerate(self.nodes) for v in n.outputs if v.name}
        self.values = {str(v.name): v for v in (*graph.inputs, *(v for n in self.nodes for v in n.outputs)) if v.name}
        self.reads = [activations_of(n) for n in self.nodes]
        self.dominator = self._dominators()

    # -- dominators: of a node the number of another node, or the name of the graph input, that all its paths begin at; None: there is none

    def _dominators(self) -> list[int | str | None]:
        found: list[int | str | None] = []
        for reads in self.reads:
            starts: list[int | str | None] = [self.maker.get(t, t) for t in reads]
            both = starts[0] if starts else None
            for other in starts[1:]:
                both = self._common(both, other, found)
            found.append(both)
        return found

    @staticmethod
    def _common(a: int | str | None, b: int | str | None, found: list[int | str | None]) -> int | str | None:
        """The nearest point that dominates both; the later one climbs, as dominators come earlier in the order."""
        while a != b:
            if isinstance(a, int) and (not isinstance(b, int) or a > b):
                a = found[a]
            elif isinstance(b, int):
                b = found[b]
            else:
                return None                                     # two inputs, or nothing above
        return a

    # -- what lies between

    def _between(self, root: int | str | None, last: int, limit: int = LONGEST) -> set[int] | None:
        """Nodes on the paths from `root` to node `last`, it included; None where one of them is no arithmetic."""
        if root is None:
            return None
        found, stack = {last}, [last]
        while stack:
            for tensor in self.reads[stack.pop()]:
                maker = self.maker.get(tensor, tensor)
                if maker == root or maker in found:
                    continue
                if not isinstance(maker, int) or len(found) >= limit or not self._arithmetic(maker):
                    return None
                found.add(maker)
                stack.append(maker)
        return found

    def _arithmetic(self, i: int) -> bool:
        node = self.nodes[i]
        return node.domain in STANDARD and (node.op_type in ARITHMETIC or node.op_type in REDUCTIONS or moves_values(node))

    def _above(self, tensor: str, inside: set[int]) -> Iterator[int]:
        """Nodes of `inside` that `tensor` depends on."""
        stack, seen = [tensor], set()
        while stack:
            maker = self.maker.get(stack.pop())
            if maker is not None and maker in inside and maker not in seen:
                seen.add(maker)
                yield maker
                stack += self.reads[maker]

    def _statistic(self, tensor: str, inside: set[int]) -> bool:
        """Whether `tensor` comes out of a reduction inside the chain."""
        return any(self.nodes[i].op_type in REDUCTIONS for i in self._above(tensor, inside))

    # -- quotients

    def chains(self) -> tuple[Chain, ...]:
        groups: list[set[int]] = []
        for i, node in enumerate(self.nodes):
            if node.domain not in STANDARD or node.op_type not in ("Div", "Mul"):
                continue
            chain = self._chain(i)
            if chain:
                touching = [g for g in groups if g & chain]
                groups = [*(g for g in groups if g not in touching), chain.union(*touching)]
        return tuple(Chain(tuple(str(self.nodes[i].name) for i in sorted(g)), any(self.nodes[i].op_type == "Exp" for i in g))
                     for g in sorted(groups, key=min))

    def _chain(self, last: int) -> set[int] | None:
        root = self.dominator[last]
        inside = self._between(root, last)
        if root is None or inside is None or not self._divides(last, inside) or not self._as_wide(last, root, inside):
            return None
        inside, last = self._with_shift(root, last, inside)
        root, inside = self._with_centring(root, inside)
        return self._without_copies(root, inside)

    def _divides(self, last: int, inside: set[int]) -> bool:
        """Whether the node divides by a statistic: directly, or times an inverse of it."""
        node = self.nodes[last]
        if node.op_type == "Div":
            divisor = node.inputs[1]
            return divisor is not None and not constant(divisor) and self._statistic(str(divisor.name), inside)
        for value in node.inputs:
            for i in self._above(str(value.name), inside) if value is not None and not constant(value) else ():
                divisor = self.nodes[i].inputs[1 if self.nodes[i].op_type == "Div" else 0]
                if inverts(self.nodes[i]) and divisor is not None and self._statistic(str(divisor.name), inside):
                    return True
        return False

    def _as_wide(self, last: int, root: int | str, inside: set[int]) -> bool:
        """The quotient has as many values as the root has: what is smaller is part of a statistic."""
        read = {t for i in inside for t in self.reads[i] if self.maker.get(t, t) == root}
        return any(prod(sizes(self.nodes[last].outputs[0])) == prod(sizes(self.values.get(t))) for t in read)

    def _with_shift(self, root: int | str, last: int, inside: set[int]) -> tuple[set[int], int]:
        """Extended over the sum of x * inverse and shift - mean * inverse, TensorFlow's way."""
        while True:
            out = self.nodes[last].outputs[0]
            readers = {self.number.get(id(n)) for n, _ in out.uses()}
            after = next(iter(readers)) if len(readers) == 1 and not out.is_graph_output() else None
            if after is None or self.nodes[after].op_type not in ("Add", "Sub") or self.dominator[after] != root:
                return inside, last
            others = [t for t in self.reads[after] if t != out.name]
            more = self._between(root, after)
            if len(others) != 1 or more is None or not self._statistic(others[0], more):
                return inside, last
            inside, last = inside | more, after

    def _with_centring(self, root: int | str, inside: set[int]) -> tuple[int | str, set[int]]:
        """Extended upwards over the Exp of a softmax, and over the subtraction of a mean or a maximum."""
        if isinstance(root, int) and self.nodes[root].op_type == "Exp" and (above := self.dominator[root]) is not None:
            inside = {*inside, root}
            root = above
        above = self.dominator[root] if isinstance(root, int) and self.nodes[root].op_type in ("Sub", "Add") else None
        more = self._between(above, root) if isinstance(root, int) else None
        if above is None or more is None or not isinstance(root, int) or any(inverts(self.nodes[i]) for i in more):
            return root, inside
        statistic = [self._statistic(t, more) for t in self.reads[root]]
        return (above, inside | more) if any(statistic) and not all(statistic) else (root, inside)

    def _without_copies(self, root: int | str, inside: set[int]) -> set[int]:
        """Less what only moves the root's own values: that belongs to whoever made the root, and may be integers with it.

        Where nobody made them, as they are an input of the model, such moves are part of the chain: nothing need round them.
        """
        moves: set[int] = set()
        start = root
        while isinstance(start, int) and moves_values(self.nodes[start]) and len(self.reads[start]) == 1:
            moves.add(start)
            start = self.maker.get(self.reads[start][0], self.reads[start][0])
        if not isinstance(start, int):
            return inside | moves
        copies: set[int] = set()
        for i in sorted(inside):
            if moves_values(self.nodes[i]) and all((m := self.maker.get(t, t)) == root or m in copies for t in self.reads[i]):
                copies.add(i)
        return inside - copies
