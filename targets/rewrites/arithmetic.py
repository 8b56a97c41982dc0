"""Arithmetic that some toolchains lack, in operators that they have."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from qbench.graph.attributes import whole
from qbench.rewriting import Exactness
from qbench.targets.rewrites.registry import rewrite
from qbench.targets.rewrites.values import constant, data, is_float, node_of, number, shape, source


def _negative(op: Any, x: ir.Value, like: ir.Value) -> ir.Value:
    made: ir.Value = op.Mul(x, constant(op, -1.0, like, "minus_one"))
    return made


@rewrite("neg-to-mul", "Neg", becomes="Mul by -1", exactness=Exactness.E)
def neg_to_mul(op: Any, y: ir.Value) -> ir.Value | None:
    """A Neg of real numbers becomes a Mul by -1."""
    x = source(y)
    return _negative(op, x, x) if x is not None and is_float(x) else None


@rewrite("ceil-to-floor", "Ceil", becomes="-Floor(-x)", exactness=Exactness.E)
def ceil_to_floor(op: Any, y: ir.Value) -> ir.Value | None:
    """A Ceil becomes a Floor between two changes of sign."""
    x = source(y)
    return None if x is None else _negative(op, op.Floor(_negative(op, x, x)), x)


@rewrite("abs-to-max", "Abs", becomes="Max(x, -x)", exactness=Exactness.E)
def abs_to_max(op: Any, y: ir.Value) -> ir.Value | None:
    """An Abs of real numbers becomes the larger of x and -x."""
    x = source(y)
    made: ir.Value | None = op.Max(x, _negative(op, x, x)) if x is not None and is_float(x) else None
    return made


@rewrite("min-to-max", "Min", becomes="-Max(-a, -b)", exactness=Exactness.E)
def min_to_max(op: Any, y: ir.Value) -> ir.Value | None:
    """A Min of real numbers becomes a Max between changes of sign."""
    inputs = [v for v in node_of(y).inputs if v is not None]
    if not all(is_float(v) for v in inputs):
        return None
    return _negative(op, op.Max(*[_negative(op, v, v) for v in inputs]), inputs[0])


@rewrite("sum-to-add", "Sum", "Mean", becomes="a chain of Add", exactness=Exactness.N)
def sum_to_add(op: Any, y: ir.Value) -> ir.Value:
    """A Sum or Mean of several tensors becomes a chain of Add, a Mean with one factor behind it."""
    first, *others = [v for v in node_of(y).inputs if v is not None]
    total: Any = first
    for other in others:
        total = op.Add(total, other)
    if node_of(y).op_type == "Mean":
        total = op.Mul(total, constant(op, 1.0 / (1 + len(others)), first))
    elif not others:
        total = op.Identity(first)
    made: ir.Value = total
    return made


@rewrite("sub-to-add", "Sub", becomes="Add of the negated constant", exactness=Exactness.E)
def sub_to_add(op: Any, y: ir.Value) -> ir.Value | None:
    """x - c becomes x + (-c), for a constant c of real numbers."""
    x, held = source(y), data(source(y, 1))
    if x is None or held is None or not is_float(x):
        return None
    made: ir.Value = op.Add(x, constant(op, -held, x, "negated"))
    return made


@rewrite("reciprocal-to-div", "Reciprocal", becomes="1 / x as Div", exactness=Exactness.N)
def reciprocal_to_div(op: Any, y: ir.Value) -> ir.Value | None:
    """A Reciprocal becomes a Div of 1."""
    x = source(y)
    if x is None:
        return None
    made: ir.Value = op.Div(constant(op, 1.0, x), x)
    return made


@rewrite("div-to-mul", "Div", becomes="Mul by the reciprocal", exactness=Exactness.N, speeds=True)
def div_to_mul(op: Any, y: ir.Value) -> ir.Value | None:
    """A Div of real numbers by a constant becomes a Mul; bit-exact where the constant is a power of two."""
    x, held = source(y), data(source(y, 1))
    if x is None or held is None or not is_float(x) or not np.all(held) or data(x) is not None:
        return None
    made: ir.Value = op.Mul(x, constant(op, 1.0 / held.astype(np.float64), x, "reciprocal"))
    return made


@rewrite("pow-to-mul", "Pow", becomes="Mul(x, x) for the exponent 2, Sqrt for 0.5", exactness=Exactness.N, tolerance=1e-6, speeds=True)
def pow_to_mul(op: Any, y: ir.Value) -> ir.Value | None:
    """A Pow with the constant exponent 2, 3 or 0.5 becomes Mul or Sqrt."""
    x, exponent = source(y), number(source(y, 1))
    if x is None or exponent not in (2.0, 3.0, 0.5) or not is_float(x):
        return None
    made: ir.Value = op.Sqrt(x) if exponent == 0.5 else op.Mul(x, x) if exponent == 2.0 else op.Mul(op.Mul(x, x), x)
    return made


@rewrite("logsoftmax-split", "LogSoftmax", becomes="Log(Softmax(x))", exactness=Exactness.N, tolerance=1e-5)
def logsoftmax_split(op: Any, y: ir.Value) -> ir.Value | None:
    """A LogSoftmax becomes Softmax and Log. A probability that underflows to 0 gives minus infinity where the original gave a number."""
    x = source(y)
    made: ir.Value | None = None if x is None else op.Log(op.Softmax(x, axis=whole(node_of(y), "axis", -1)))
    return made


@rewrite("cumsum-to-matmul", "CumSum", becomes="MatMul with a triangle of ones", exactness=Exactness.N)
def cumsum_to_matmul(op: Any, y: ir.Value) -> ir.Value | None:
    """A CumSum along the last axis becomes a MatMul with a triangle of ones; along another one, between two Transposes."""
    x, node, at = source(y), node_of(y), number(source(y, 1))
    sizes = shape(x)
    if x is None or sizes is None or at is None or not is_float(x):
        return None
    axis, n = int(at) % len(sizes), sizes[int(at)]
    triangle = np.triu(np.ones((n, n)), 1 if whole(node, "exclusive", 0) else 0)
    weight = constant(op, triangle.T if whole(node, "reverse", 0) else triangle, x, "triangle")
    if axis == len(sizes) - 1:
        made: ir.Value = op.MatMul(x, weight) if len(sizes) > 1 else op.Reshape(op.MatMul(op.Reshape(x, constant(op, np.array([1, n]))), weight), constant(op, np.array([n])))
        return made
    order = [i for i in range(len(sizes)) if i != axis] + [axis]
    moved = op.MatMul(op.Transpose(x, perm=order), weight)
    made = op.Transpose(moved, perm=[order.index(i) for i in range(len(sizes))])
    return made
