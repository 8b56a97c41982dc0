"""What another machine may compute otherwise in one place: a product, or a tensor that is stored in codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import onnx
from onnx import numpy_helper

from qbench.diagnosis.edits import BITS, accumulator_edits, copy_of, narrowed_codes, without_codes, wrapped_codes
from qbench.diagnosis.graph import Graph, Point
from qbench.diagnosis.records import Cause, Edit

RANGES = (0.15, 0.25, 0.4, 0.6, 2.0, 5.0)
"""Times the plan's range, before the best places are refined: clipping tells itself apart within a factor of 1.6, coarseness hardly does."""
SCALES = (0.25, 0.7, 1.4, 4.0)
"""Times the scale that codes are read with, likewise."""


def range_edit(graph: Graph, point: Point, factor: float) -> Edit:
    """A tensor whose range is `factor` times the plan's."""
    def edit(model: onnx.ModelProto) -> onnx.ModelProto:
        copy = _rescaled(model, point, factor)
        copy.graph.node[point.node].input[1] = _name(point)
        return copy
    return Edit(f"its range is {factor:.3g} times the plan's", Cause.RANGE, edit, point.raw, 1, factor, lambda f: range_edit(graph, point, f))


def scale_edit(graph: Graph, point: Point, factor: float) -> Edit:
    """A tensor whose codes are right and are read with `factor` times their scale."""
    return Edit(f"its codes are read with {factor:.3g} times their scale", Cause.SCALE, lambda model: _rescaled(model, point, factor), point.raw, 1, factor,
                lambda f: scale_edit(graph, point, f))


def _name(point: Point) -> str:
    return f"diagnosis_{point.node}_scale"


def _rescaled(model: onnx.ModelProto, point: Point, factor: float) -> onnx.ModelProto:
    """A copy in which the codes of `point` are read with another scale."""
    copy = copy_of(model)
    copy.graph.initializer.append(numpy_helper.from_array(np.asarray(point.scale * factor, np.float32), _name(point)))
    for n in copy.graph.node:
        if n.op_type == "DequantizeLinear" and n.input[0] == copy.graph.node[point.node].output[0]:
            n.input[1] = _name(point)
    return copy


def range_to(graph: Graph, point: Point, low: float, high: float) -> Edit:
    """A tensor whose range is [low, high]."""
    scale = max((max(high, 0.0) - min(low, 0.0)) / (point.qmax - point.qmin), 1e-30)
    zero = int(np.clip(round(point.qmin - min(low, 0.0) / scale), point.qmin, point.qmax))

    def edit(model: onnx.ModelProto) -> onnx.ModelProto:
        copy = copy_of(model)
        names = [_name(point), f"diagnosis_{point.node}_zero"]
        copy.graph.initializer.append(numpy_helper.from_array(np.asarray(scale, np.float32), names[0]))
        copy.graph.initializer.append(numpy_helper.from_array(np.asarray(zero, point.dtype), names[1]))
        q = copy.graph.node[point.node]
        for n in copy.graph.node:
            if n is q or (n.op_type == "DequantizeLinear" and n.input[0] == q.output[0]):
                kept = n.input[0]
                del n.input[:]
                n.input.extend([kept, *names])
        return copy
    return Edit(f"its range should be {low:.4g} to {high:.4g}", Cause.RANGE, edit, point.raw, 2)


def in_one_place(graph: Graph) -> Iterator[Edit]:
    """Edits of one product or one tensor, kind after kind so that a search that is cut short has been everywhere; which of several counts as fitted."""
    products, points = graph.products, graph.points
    for product in products:
        yield from _placed(accumulator_edits([product], product.name, BITS[:1]), len(products))
    kinds: list[Callable[[Point], Iterator[Edit]]] = [
        lambda p: iter([without_codes(graph, [p], p.raw), wrapped_codes(graph, [p], p.raw)]), lambda p: narrowed_codes(graph, [p], p.raw),
        *(lambda p, f=f: iter([range_edit(graph, p, f)]) for f in RANGES),
        *(lambda p, f=f: iter([scale_edit(graph, p, f)]) for f in SCALES)]
    for kind in kinds:
        for point in points:
            yield from _placed(kind(point), len(points))


def _placed(edits: Iterator[Edit], places: int) -> Iterator[Edit]:
    for e in edits:
        tune = e.tune
        again = None if tune is None else lambda f, tune=tune: next(_placed(iter([tune(f)]), places))
        yield replace(e, freedom=e.freedom + 1, tune=again) if places > 1 else e
