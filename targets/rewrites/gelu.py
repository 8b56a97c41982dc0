"""GELU between its spellings and its approximations."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from qbench.graph.attributes import text
from qbench.rewriting import Exactness
from qbench.targets.rewrites.registry import rewrite
from qbench.targets.rewrites.values import constant, node_of, opset, source

HENDRYCKS = "Hendrycks and Gimpel 2016 (arXiv 1606.08415), section 2"
GELU_OPSET = 20


def _erf_forms() -> list[Any]:
    """x * (1 + erf(x / sqrt 2)) * 0.5 in the orders that exporters write."""
    def inner(op: Any, x: Any) -> Any:
        return op.Add(op.Erf(op.Div(x, math.sqrt(2.0))), 1.0)

    def scaled(op: Any, x: Any) -> Any:
        return op.Add(op.Erf(op.Mul(x, math.sqrt(0.5))), 1.0)

    def forms(tail: Any) -> list[Any]:
        return [lambda op, x: op.Mul(op.Mul(x, tail(op, x)), 0.5, _outputs=["y"]), lambda op, x: op.Mul(op.Mul(tail(op, x), x), 0.5, _outputs=["y"]),
                lambda op, x: op.Mul(op.Mul(x, 0.5), tail(op, x), _outputs=["y"]), lambda op, x: op.Mul(x, op.Mul(tail(op, x), 0.5), _outputs=["y"]),
                lambda op, x: op.Mul(x, op.Mul(0.5, tail(op, x)), _outputs=["y"])]
    return [*forms(inner), *forms(scaled)]


def _input(y: ir.Value, x: ir.Value | None) -> ir.Value | None:
    """The argument of a Gelu node of the exact kind, or of its Erf spelling."""
    if x is not None:
        return x
    return source(y) if text(node_of(y), "approximate", "none") == "none" else None


@rewrite("gelu-to-erf", "Gelu", becomes="x * 0.5 * (1 + Erf(x / sqrt 2))", exactness=Exactness.N, source=HENDRYCKS)
def gelu_to_erf(op: Any, y: ir.Value) -> ir.Value | None:
    """A Gelu becomes its Erf spelling, which toolchains without the operator fuse back. A Gelu of the tanh kind is spelled with Tanh."""
    x = source(y)
    if x is None:
        return None
    if text(node_of(y), "approximate", "none") == "tanh":
        return _tanh(op, x)
    made: ir.Value = op.Mul(op.Mul(x, op.Add(op.Erf(op.Div(x, constant(op, math.sqrt(2.0), x))), constant(op, 1.0, x))), constant(op, 0.5, x))
    return made


@rewrite("erf-to-gelu", "Erf", becomes="Gelu", exactness=Exactness.N, source="ONNX operator Gelu, set 20", pattern=_erf_forms())
def erf_to_gelu(op: Any, y: ir.Value, x: ir.Value) -> ir.Value | None:
    """The Erf spelling of a GELU becomes one Gelu, for targets that have it. Needs operator set 20."""
    made: ir.Value | None = op.Gelu(x) if opset(y) >= GELU_OPSET else None
    return made


def _single_gelu(op: Any) -> Any:
    return op.Gelu(_allow_other_inputs=True, _outputs=["y"])


@rewrite("gelu-to-tanh", "Gelu", "Erf", becomes="0.5 x (1 + Tanh(sqrt(2 / pi) (x + 0.044715 x^3)))", exactness=Exactness.A, source=HENDRYCKS,
         tolerance=4.8e-4, pattern=[_single_gelu, *_erf_forms()])
def gelu_to_tanh(op: Any, y: ir.Value, x: ir.Value | None = None) -> ir.Value | None:
    """A GELU becomes its tanh approximation, for targets without Erf. Largest error 4.8e-4."""
    argument = _input(y, x)
    return None if argument is None else _tanh(op, argument)


def _tanh(op: Any, x: ir.Value) -> ir.Value:
    cube = op.Mul(op.Mul(x, x), x)
    inside = op.Mul(op.Add(x, op.Mul(cube, constant(op, 0.044715, x))), constant(op, math.sqrt(2.0 / math.pi), x))
    made: ir.Value = op.Mul(op.Mul(x, constant(op, 0.5, x)), op.Add(op.Tanh(inside), constant(op, 1.0, x)))
    return made


@rewrite("gelu-to-sigmoid", "Gelu", "Erf", becomes="x * Sigmoid(1.702 x)", exactness=Exactness.A, source=HENDRYCKS, tolerance=2.1e-2,
         pattern=[_single_gelu, *_erf_forms()])
def gelu_to_sigmoid(op: Any, y: ir.Value, x: ir.Value | None = None) -> ir.Value | None:
    """A GELU becomes x * Sigmoid(1.702 x), for targets with neither Erf nor Tanh. Largest error 2.0e-2."""
    argument = _input(y, x)
    if argument is None:
        return None
    made: ir.Value = op.Mul(argument, op.Sigmoid(op.Mul(argument, constant(op, 1.702, argument))))
    return made
