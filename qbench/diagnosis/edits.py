"""What another machine may compute otherwise, each as an edit of the Q/DQ model that onnxruntime then runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qbench.diagnosis.graph import Graph, Point, Product
from qbench.diagnosis.records import Cause, Edit
from qbench.protocols import Array

BITS = (16, 20, 24)
WOBBLE = 1 / 64
"""Of a step: requantization with 16-bit multipliers is that far off at the ends of 8-bit codes, and no further."""
PITCHES = (1013.0, 2477.0)
"""Radians a step of two wobbles: far from any ratio of scales."""


class Chain:
    """Nodes one after another on one value; `at` is the name of the last result."""

    def __init__(self, start: str, tag: str) -> None:
        self.at, self.tag, self.number = start, tag, count()
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, value: Array | float) -> str:
        name = f"{self.tag}_c{next(self.number)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, None if isinstance(value, np.ndarray) else np.float32), name))
        return name

    def then(self, op: str, *others: Array | float | str, **attributes: Any) -> Chain:
        """op(at, *others)."""
        names = [o if isinstance(o, str) else self.constant(o) for o in others]
        made = f"{self.tag}_v{next(self.number)}"
        self.nodes.append(helper.make_node(op, [self.at, *names], [made], **attributes))
        self.at = made
        return self


def before_codes(graph: Graph, points: Sequence[Point], write: Callable[[Chain, Point], None]) -> Callable[[onnx.ModelProto], onnx.ModelProto]:
    """An edit that changes the real value in front of each of the points' QuantizeLinear."""
    def edit(model: onnx.ModelProto) -> onnx.ModelProto:
        inserted: dict[int, list[onnx.NodeProto]] = {}
        copy = copy_of(model)
        for p in points:
            chain = Chain(p.raw, f"diagnosis_{p.node}")
            write(chain, p)
            copy.graph.node[p.node].input[0] = chain.at
            inserted[p.node] = chain.nodes
            copy.graph.initializer.extend(chain.constants)
        return _with(copy, inserted, after=False)
    return edit


def after_products(products: Sequence[Product], write: Callable[[Chain, Product], None]) -> Callable[[onnx.ModelProto], onnx.ModelProto]:
    """An edit that changes what the products put out."""
    def edit(model: onnx.ModelProto) -> onnx.ModelProto:
        inserted: dict[int, list[onnx.NodeProto]] = {}
        copy = copy_of(model)
        for p in products:
            node = copy.graph.node[p.node]
            node.output[0] = f"diagnosis_{p.node}_sum"
            chain = Chain(node.output[0], f"diagnosis_{p.node}")
            write(chain, p)
            chain.nodes[-1].output[0] = p.output
            inserted[p.node] = chain.nodes
            copy.graph.initializer.extend(chain.constants)
        return _with(copy, inserted, after=True)
    return edit


def copy_of(model: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    return made


def _with(model: onnx.ModelProto, inserted: dict[int, list[onnx.NodeProto]], after: bool) -> onnx.ModelProto:
    nodes: list[onnx.NodeProto] = []
    for i, n in enumerate(model.graph.node):
        extra = inserted.get(i, [])
        nodes += [n, *extra] if after else [*extra, n]
    kept = [_node(n) for n in nodes]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


def _node(node: onnx.NodeProto) -> onnx.NodeProto:
    made = onnx.NodeProto()
    made.CopyFrom(node)
    return made


# ------------------------------------------------------------------------------------------------ rounding


def _away(c: Chain, p: Point) -> None:
    x = c.then("Div", p.scale).at
    c.then("Abs").then("Add", 0.5).then("Floor")
    size = c.at
    c.at = x
    c.then("Sign").then("Mul", size).then("Mul", p.scale)


def _half_up(c: Chain, p: Point) -> None:
    c.then("Div", p.scale).then("Add", 0.5).then("Floor").then("Mul", p.scale)


def _floor(c: Chain, p: Point) -> None:
    c.then("Div", p.scale).then("Floor").then("Mul", p.scale)


def _towards_zero(c: Chain, p: Point) -> None:
    x = c.then("Div", p.scale).at
    c.then("Abs").then("Floor")
    size = c.at
    c.at = x
    c.then("Sign").then("Mul", size).then("Mul", p.scale)


def _with_zero_point(c: Chain, p: Point) -> None:
    c.then("Div", p.scale).then("Add", float(p.zero_point)).then("Round").then("Sub", float(p.zero_point)).then("Mul", p.scale)


ROUNDINGS: dict[str, Callable[[Chain, Point], None]] = {
    "half away from zero": _away, "half up": _half_up, "down (floor)": _floor, "towards zero (truncation)": _towards_zero,
    "half to even after the zero point is added": _with_zero_point}


def rounding_edits(graph: Graph) -> Iterator[Edit]:
    """All points, those of the inputs alone (a host that casts), and all others alone."""
    first = [p for p in graph.points if p.raw in graph.inputs]
    rest = [p for p in graph.points if p.raw not in graph.inputs]
    for name, write in ROUNDINGS.items():
        yield Edit(f"rounds {name}", Cause.ROUNDING, before_codes(graph, graph.points, write))
        if first and rest:
            yield Edit(f"rounds {name}, the inputs alone", Cause.ROUNDING, before_codes(graph, first, write), first[0].raw)
            yield Edit(f"rounds {name}, all but the inputs", Cause.ROUNDING, before_codes(graph, rest, write))


def wobbled(graph: Graph, pitch: float) -> Edit:
    """Every value is off by up to WOBBLE of a step before it is rounded: a machine that is right and adds up in another order.

    A network may make much of that: one code in an early layer can move thousands in a late one.
    """
    def write(c: Chain, p: Point) -> None:
        x = c.at
        c.then("Mul", pitch / p.scale).then("Sin").then("Mul", WOBBLE * p.scale).then("Add", x)
    return Edit("values a little off before rounding", Cause.HEALTHY, before_codes(graph, graph.points, write))


# ------------------------------------------------------------------------------------------------ accumulators and codes


def _count(c: Chain, p: Product, with_bias: bool) -> None:
    if not with_bias and p.bias is not None:
        c.then("Sub", p.bias)
    c.then("Div", p.unit).then("Round")


def _back(c: Chain, p: Product, with_bias: bool) -> None:
    c.then("Mul", p.unit)
    if not with_bias and p.bias is not None:
        c.then("Add", p.bias)


def saturating(bits: int, with_bias: bool) -> Callable[[Chain, Product], None]:
    def write(c: Chain, p: Product) -> None:
        _count(c, p, with_bias)
        c.then("Max", -float(2**(bits - 1))).then("Min", float(2**(bits - 1) - 1))
        _back(c, p, with_bias)
    return write


def wrapping(bits: int, with_bias: bool) -> Callable[[Chain, Product], None]:
    size, half = float(2**bits), float(2**(bits - 1))

    def write(c: Chain, p: Product) -> None:
        _count(c, p, with_bias)
        acc = c.at
        turns = c.then("Add", half).then("Div", size).then("Floor").then("Mul", size).at
        c.at = acc
        c.then("Sub", turns)
        _back(c, p, with_bias)
    return write


def accumulator_edits(products: Sequence[Product], where: str = "", widths: Sequence[int] = BITS) -> Iterator[Edit]:
    """Sums of products that are kept in too few bits."""
    for bits in widths:
        for with_bias in (True, False) if any(p.bias is not None for p in products) else (True,):
            side = "" if with_bias else ", the bias is added afterwards"
            yield Edit(f"sums saturate at {bits} bits{side}", Cause.SATURATION, after_products(products, saturating(bits, with_bias)), where)
            yield Edit(f"sums overflow at {bits} bits{side}", Cause.OVERFLOW, after_products(products, wrapping(bits, with_bias)), where)


def wrapped_codes(graph: Graph, points: Sequence[Point], where: str = "") -> Edit:
    """Codes that run over instead of saturating."""
    def write(c: Chain, p: Point) -> None:
        size = float(p.qmax - p.qmin + 1)
        code = c.then("Div", p.scale).then("Round").then("Add", float(p.zero_point - p.qmin)).at
        turns = c.then("Div", size).then("Floor").then("Mul", size).at
        c.at = code
        c.then("Sub", turns).then("Add", float(p.qmin - p.zero_point)).then("Mul", p.scale)
    return Edit("codes overflow instead of saturating", Cause.OVERFLOW, before_codes(graph, points, write), where)


def narrowed_codes(graph: Graph, points: Sequence[Point], where: str = "") -> Iterator[Edit]:
    """Codes that saturate too early: signed limits on unsigned codes, or positive values alone."""
    def limits(c: Chain, p: Point, low: float, high: float) -> None:
        c.then("Max", (low - p.zero_point) * p.scale).then("Min", (high - p.zero_point) * p.scale)

    middle = [(p.qmax + p.qmin + 1) // 2 for p in points]
    if not points:
        return
    yield Edit("codes saturate at half of their range", Cause.SATURATION,
               before_codes(graph, points, lambda c, p: limits(c, p, p.qmin, (p.qmax + p.qmin + 1) // 2 - 1)), where)
    yield Edit("codes below half of their range are lost", Cause.SATURATION,
               before_codes(graph, points, lambda c, p: limits(c, p, (p.qmax + p.qmin + 1) // 2, p.qmax)), where)
    if any(p.zero_point not in (p.qmin, m) for p, m in zip(points, middle, strict=True)):
        yield Edit("negative values are cut at 0", Cause.SATURATION, before_codes(graph, points, lambda c, p: limits(c, p, p.zero_point, p.qmax)), where)


# ------------------------------------------------------------------------------------------------ precision


def without_codes(graph: Graph, points: Sequence[Point], where: str = "") -> Edit:
    """Tensors that stay in float."""
    def edit(model: onnx.ModelProto) -> onnx.ModelProto:
        copy = copy_of(model)
        turned = {p.stored: p.raw for p in points if p.stored not in graph.outputs}
        for n in copy.graph.node:
            for i, name in enumerate(n.input):
                if name in turned:
                    n.input[i] = turned[name]
        outputs = [p for p in points if p.stored in graph.outputs]
        for p in outputs:
            index = graph.maker[p.stored]
            copy.graph.node[index].CopyFrom(helper.make_node("Identity", [p.raw], [p.stored]))
        return copy
    return Edit("activations stay in float" if not where else "it stays in float", Cause.PRECISION, edit, where)


def half_precision(graph: Graph, products: Sequence[Product], where: str = "") -> Edit:
    """Sums that are rounded to float16."""
    def write(c: Chain, p: Product) -> None:
        c.then("Cast", to=TensorProto.FLOAT16).then("Cast", to=TensorProto.FLOAT)
    return Edit("sums are rounded to float16", Cause.PRECISION, after_products(products, write), where)


def fewer_bits(graph: Graph, points: Sequence[Point], where: str = "") -> Iterator[Edit]:
    """16-bit codes that are kept in 8 bits, 8-bit codes in 4."""
    wide, byte = [p for p in points if p.qmax - p.qmin > 255], [p for p in points if p.qmax - p.qmin == 255]
    def coarser(factor: float) -> Callable[[Chain, Point], None]:
        def write(c: Chain, p: Point) -> None:
            c.then("Div", p.scale * factor).then("Round").then("Mul", p.scale * factor)
        return write

    for few, factor, text in ((wide, 256.0, "16-bit codes are kept in 8 bits"), (byte, 16.0, "8-bit codes are kept in 4 bits")):
        if few:
            yield Edit(text, Cause.PRECISION, before_codes(graph, few, coarser(factor)), where)


def per_tensor_weights(graph: Graph) -> Edit | None:
    """All weights with one scale each instead of one a channel; None where they have one already."""
    found = [i for i, n in enumerate(graph.nodes) if n.op_type == "DequantizeLinear" and n.input[0] in graph.constants
             and len(graph.constants[n.input[0]].dims) > 1 and n.input[1] in graph.constants and np.prod(graph.constants[n.input[1]].dims) > 1]
    if not found:
        return None

    def edit(model: onnx.ModelProto) -> onnx.ModelProto:
        copy = copy_of(model)
        for i in found:
            weight = graph.value(graph.nodes[i].output[0])
            assert weight is not None
            scale = np.float32(max(float(np.abs(weight).max()) / 127.0, 1e-30))
            copy.graph.initializer.append(numpy_helper.from_array(np.asarray(np.rint(weight / scale) * scale, np.float32), f"diagnosis_{i}_weight"))
            copy.graph.node[i].CopyFrom(helper.make_node("Identity", [f"diagnosis_{i}_weight"], [graph.nodes[i].output[0]]))
        return copy
    return Edit("weights have one scale each instead of one a channel", Cause.PRECISION, edit)


def zero_padding(graph: Graph) -> Edit | None:
    """Convolutions that pad with code 0 instead of the zero point; None where that makes no difference."""
    found = []
    for i, n in enumerate(graph.nodes):
        pads = next((list(a.ints) for a in n.attribute if a.name == "pads"), [])
        if n.op_type == "Conv" and any(pads) and n.input[0] in graph.by_stored and graph.by_stored[n.input[0]].zero_point != 0:
            found.append((i, pads))
    if not found:
        return None

    def edit(model: onnx.ModelProto) -> onnx.ModelProto:
        copy = copy_of(model)
        inserted: dict[int, list[onnx.NodeProto]] = {}
        for i, pads in found:
            node, point = copy.graph.node[i], graph.by_stored[graph.nodes[i].input[0]]
            half = len(pads) // 2
            chain = Chain(node.input[0], f"diagnosis_{i}")
            chain.then("Pad", np.asarray([0, 0, *pads[:half], 0, 0, *pads[half:]], np.int64), float(-point.zero_point * point.scale))
            node.input[0] = chain.at
            next(a for a in node.attribute if a.name == "pads").ints[:] = [0] * len(pads)
            inserted[i] = chain.nodes
            copy.graph.initializer.extend(chain.constants)
        return _with(copy, inserted, after=False)
    return Edit("convolutions pad with code 0 instead of the zero point", Cause.ZERO_POINT, edit)


# ------------------------------------------------------------------------------------------------ together


def everywhere(graph: Graph) -> Iterator[Edit]:
    """Edits of the whole model."""
    if not graph.points:
        return
    yield from rounding_edits(graph)
    yield without_codes(graph, graph.points)
    yield wrapped_codes(graph, graph.points)
    yield from narrowed_codes(graph, graph.points)
    yield from fewer_bits(graph, graph.points)
    yield from filter(None, (per_tensor_weights(graph), zero_padding(graph)))
    if graph.products:
        yield from accumulator_edits(graph.products)
        yield half_precision(graph, graph.products)
