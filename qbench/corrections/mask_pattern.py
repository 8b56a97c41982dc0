"""Attention masks in a graph: the huge negative constants in front of a Softmax, wherever they are added, multiplied or selected.

From the Softmax back: what moves values or scales them is passed; an Add (Sub, Where, Max) with a mask on one side leads on to
the logits on the other. The mask itself is a small tree of constants, comparisons, casts and products with huge numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

import numpy as np
import onnx_ir as ir

from qbench.graph.operators import ANCHORS
from qbench.graph.values import STANDARD, constant, held, single

SOFTMAX = ("Softmax", "LogSoftmax")
MOVERS = {"Reshape", "Unsqueeze", "Squeeze", "Expand", "Cast", "Transpose", "Identity", "Slice", "Dropout", "Flatten", "Tile", "Gather", "Split"}
LEAST = 15.0
"""A constant nearer to 0 than this masks nothing: exp(-15) is 3e-7."""
NOT_A_MASK = ANCHORS | {"Softmax", "LogSoftmax", "LayerNormalization", "LSTM", "GRU", "Attention", "Einsum"}
"""Operators that no mask is computed with: behind them lie logits."""


@dataclass(frozen=True)
class Leaf:
    """A constant that holds huge values.

    value   an initializer; or the output of a ConstantOfShape, which `qbench.corrections.rewriting.filled` gives one
    sign    -1: the huge values are negative; 1: positive, and subtracted or multiplied by what is not positive
    added   True: added to the logits; False: stands in their place, or bounds them from below
    factor  product of the positive numbers that its sum with the logits is multiplied by on the way to the Softmax
    """

    value: ir.Value
    sign: int
    added: bool
    factor: float


@dataclass
class Masked:
    """A Softmax whose logits are masked.

    logits   what is masked, and its factor on the way to the Softmax
    extras   other terms of the sum (a relative position bias), with factor
    chain    tensors from the first masked sum to the Softmax, with factor: their lowest values are masked logits
    tree     tensors inside masks
    gates    tensors that huge constants are multiplied with, and 1 or -1: each value must be 0 or that
    """

    softmax: ir.Node
    logits: tuple[ir.Value, float]
    leaves: list[Leaf] = field(default_factory=list)
    extras: list[tuple[ir.Value, float]] = field(default_factory=list)
    chain: list[tuple[str, float]] = field(default_factory=list)
    tree: list[str] = field(default_factory=list)
    gates: list[tuple[ir.Value, int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.softmax.name)


@dataclass
class _Tree:
    """A mask: what its huge values come from. other  terms that are added to it and are no mask"""

    leaves: list[tuple[ir.Value, int]] = field(default_factory=list)
    tensors: list[str] = field(default_factory=list)
    gates: list[tuple[ir.Value, int]] = field(default_factory=list)
    other: list[ir.Value] = field(default_factory=list)

    def joined(self, *more: _Tree) -> _Tree:
        trees = (self, *more)
        return _Tree(*([x for t in trees for x in getattr(t, f.name)] for f in fields(self)))


def masked(graph: ir.Graph) -> list[Masked]:
    """Every Softmax of `graph` with a mask in front of it."""
    return [found for node in graph if node.op_type in SOFTMAX and node.domain in STANDARD and (found := _walk_back(node)) is not None]


def _walk_back(softmax: ir.Node) -> Masked | None:
    value, factor = softmax.inputs[0], 1.0
    found: Masked | None = None
    waiting = Masked(softmax, (softmax.outputs[0], 1.0))             # what was passed since the last mask
    while value is not None and (node := value.producer()) is not None and node.domain in STANDARD:
        waiting.chain.append((str(value.name), factor))
        step = _step(node, factor)
        if step is None:
            break
        value, factor = step.value, step.factor
        waiting.leaves += step.leaves
        waiting.extras += [(v, factor) for v in step.tree.other]
        waiting.tree += step.tree.tensors
        waiting.gates += step.tree.gates
        if step.masks and value is not None:
            found = found or Masked(softmax, (value, factor))
            found.logits = value, factor
            for name in ("leaves", "extras", "chain", "tree", "gates"):
                getattr(found, name).extend(getattr(waiting, name))
            waiting = Masked(softmax, (value, factor))
    return found


@dataclass(frozen=True)
class _Step:
    """One operator back. value  what leads on to the logits, and its factor; masks  whether the operator applies a mask"""

    value: ir.Value | None
    factor: float
    leaves: list[Leaf] = field(default_factory=list)
    tree: _Tree = field(default_factory=_Tree)
    masks: bool = False


def _step(node: ir.Node, factor: float) -> _Step | None:
    """None at the logits."""
    op, inputs = node.op_type, node.inputs
    if op in MOVERS:
        return _Step(inputs[0], factor)
    if op in ("Mul", "Div"):
        return _scaled(node, factor)
    if op in ("Add", "Sub"):
        return _sum(node, factor)
    if op == "Where":
        for logits, other in ((1, 2), (2, 1)):
            tree = _mask(inputs[other], -1)
            if tree is not None and not constant(inputs[logits]):
                return _Step(inputs[logits], factor, [Leaf(v, s, False, factor) for v, s in tree.leaves], tree, True)
        return None
    if op == "Clip" or (op == "Max" and len(inputs) == 2):
        for logits, other in ((0, 1), (1, 0)) if op == "Max" else ((0, 1),):
            tree = _leaf(inputs[other], -1) if len(inputs) > other else None
            if tree is not None:
                return _Step(inputs[logits], factor, [Leaf(v, s, False, factor) for v, s in tree.leaves], tree)
        return _Step(inputs[0], factor) if op == "Clip" else None
    return None


def _scaled(node: ir.Node, factor: float) -> _Step | None:
    """Through a product with a positive number."""
    for index in (1, 0) if node.op_type == "Mul" else (1,):
        number = single(node.inputs[index])
        if number is not None and 0.0 < number < np.inf:
            return _Step(node.inputs[1 - index], factor * (number if node.op_type == "Mul" else 1.0 / number))
    return None


def _sum(node: ir.Node, factor: float) -> _Step | None:
    sides = ((0, 1), (1, 0)) if node.op_type == "Add" else ((0, 1),)
    for logits, other in sides:
        tree = _mask(node.inputs[other], -1 if node.op_type == "Add" else 1)
        if tree is not None:
            return _Step(node.inputs[logits], factor, [Leaf(v, s, True, factor) for v, s in tree.leaves], tree, True)
    for logits, other in sides:                                     # a bias on top of a masked sum
        side = node.inputs[other]
        if node.op_type == "Add" and side is not None and (constant(side) or _is_mask_only(side)):
            return _Step(node.inputs[logits], factor, tree=_Tree(other=[side]))
    return None


def _mask(value: ir.Value | None, sign: int) -> _Tree | None:
    """The mask that `value` is, with huge values of this sign; None when it is none."""
    if value is None:
        return None
    if constant(value):
        return _leaf(value, sign)
    node = value.producer()
    if node is None or node.domain not in STANDARD or not _is_mask_only(value):
        return None
    op, inputs, here = node.op_type, node.inputs, _Tree(tensors=[str(value.name)])
    if op == "ConstantOfShape":
        return _leaf(value, sign)
    if op in MOVERS or op in ("Clip", "Trilu"):
        inner = _mask(inputs[0], sign)
        return None if inner is None else here.joined(inner)
    if op == "Where":
        sides = [_mask(v, sign) for v in inputs[1:3]]
        if not any(sides):
            return None
        return here.joined(*(s for s in sides if s is not None))
    if op in ("Add", "Sub", "Max", "Min"):
        signs = [sign, -sign if op == "Sub" else sign]
        sides = [_mask(v, s) for v, s in zip(inputs[:2], signs, strict=False)]
        if not any(sides):
            return None
        beside = [v for s, v in zip(sides, inputs[:2], strict=False) if s is None and v is not None and op in ("Add", "Sub")]
        return here.joined(*(s for s in sides if s is not None), _Tree(other=beside))
    if op == "Mul":
        for gate, huge in ((0, 1), (1, 0)):
            for s in (sign, -sign):                                  # 1e4 * (mask - 1) is as good as -1e4 * (1 - mask)
                leaf = _leaf(inputs[huge], s)
                if leaf is not None and inputs[gate] is not None:
                    return here.joined(leaf, _Tree(gates=[(v, s * sign) for v in [inputs[gate]] if v is not None]))
    return None


def _leaf(value: ir.Value | None, sign: int) -> _Tree | None:
    """A constant that holds a huge value of this sign, through what moves it."""
    data = held(value)
    if value is not None and data is not None:
        huge = data.size > 0 and bool((data * sign > LEAST).any())
        return _Tree([(value, sign)]) if huge and value.is_initializer() else None
    node = None if value is None else value.producer()
    if value is None or node is None:
        return None
    if node.op_type == "ConstantOfShape" and (fill := node.attributes.get("value")) is not None:
        number = fill.as_tensor().numpy()
        return _Tree([(value, sign)]) if number.dtype == np.float32 and bool((number * sign > LEAST).any()) else None
    if node.op_type not in MOVERS:
        return None
    inner = _leaf(node.inputs[0], sign)
    return None if inner is None else inner.joined(_Tree(tensors=[str(value.name)]))


def _is_mask_only(value: ir.Value | None) -> bool:
    """True when nothing behind `value` is of the kind that logits are made with."""
    return value is None or not any(n.op_type in NOT_A_MASK for n in _behind(value))


def _behind(value: ir.Value) -> Iterator[ir.Node]:
    """Every node that the values of `value` depend on; shapes carry none."""
    stack, seen = [value], set[int]()
    while stack:
        node = stack.pop().producer()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if node.op_type not in ("Shape", "Size"):
            stack += [v for v in node.inputs if v is not None]
