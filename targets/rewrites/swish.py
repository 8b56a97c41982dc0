"""SiLU, HardSwish, Mish, PRelu and Sigmoid."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from qbench.graph.attributes import real
from qbench.rewriting import Exactness
from qbench.targets.rewrites.registry import rewrite
from qbench.targets.rewrites.values import constant, data, node_of, opset, source

SWISH_OPSET = 24


def _silu(op: Any, x: Any) -> Any:
    return op.Mul(x, op.Sigmoid(x), _outputs=["y"])


def _silu_turned(op: Any, x: Any) -> Any:
    return op.Mul(op.Sigmoid(x), x, _outputs=["y"])


@rewrite("silu-split", "Swish", becomes="x * Sigmoid(alpha x)", exactness=Exactness.N, source="ONNX operator Swish, set 24")
def silu_split(op: Any, y: ir.Value) -> ir.Value | None:
    """A Swish becomes Sigmoid and Mul, which every toolchain has."""
    x, alpha = source(y), real(node_of(y), "alpha", 1.0)
    if x is None:
        return None
    made: ir.Value = op.Mul(x, op.Sigmoid(x if alpha == 1.0 else op.Mul(x, constant(op, alpha, x))))
    return made


@rewrite("silu-fuse", "Sigmoid", "Mul", becomes="Swish", exactness=Exactness.N, source="ONNX operator Swish, set 24", pattern=[_silu, _silu_turned])
def silu_fuse(op: Any, y: ir.Value, x: ir.Value) -> ir.Value | None:
    """x * Sigmoid(x) becomes one Swish. Needs operator set 24."""
    made: ir.Value | None = op.Swish(x) if opset(y) >= SWISH_OPSET else None
    return made


@rewrite("silu-to-hardswish", "Sigmoid", "Mul", becomes="x * Clip(x / 6 + 0.5, 0, 1)", exactness=Exactness.C, tolerance=0.143, pattern=[_silu, _silu_turned],
         source="Howard et al. 2019 (arXiv 1905.02244), section 5.2")
def silu_to_hardswish(op: Any, y: ir.Value, x: ir.Value) -> ir.Value:
    """x * Sigmoid(x) becomes HardSwish in primitive form: cheaper, but values change by up to 0.142, so the network wants fine-tuning."""
    return _hard(op, x)


def _hard(op: Any, x: ir.Value) -> ir.Value:
    gate = op.Clip(op.Add(op.Mul(x, constant(op, np.float32(1 / 6), x)), constant(op, 0.5, x)), constant(op, 0.0, x), constant(op, 1.0, x))
    made: ir.Value = op.Mul(x, gate)
    return made


@rewrite("hardswish-to-clip", "HardSwish", becomes="x * Clip(x / 6 + 0.5, 0, 1)", exactness=Exactness.N, source="ONNX operator HardSwish, set 14")
def hardswish_to_clip(op: Any, y: ir.Value) -> ir.Value | None:
    """A HardSwish becomes Mul, Add, Clip and Mul."""
    x = source(y)
    return None if x is None else _hard(op, x)


@rewrite("sigmoid-to-hardsigmoid", "Sigmoid", becomes="HardSigmoid(alpha = 1/6, beta = 0.5)", exactness=Exactness.C, tolerance=0.07)
def sigmoid_to_hardsigmoid(op: Any, y: ir.Value) -> ir.Value | None:
    """A Sigmoid becomes a HardSigmoid of slope 1/6: values change by up to 0.069."""
    made: ir.Value = op.HardSigmoid(source(y), alpha=1 / 6, beta=0.5)
    return made


@rewrite("mish-split", "Mish", becomes="x * Tanh(Softplus(x))", exactness=Exactness.N, source="Misra 2019 (arXiv 1908.08681), equation 1")
def mish_split(op: Any, y: ir.Value) -> ir.Value:
    """A Mish becomes Softplus, Tanh and Mul."""
    x = source(y)
    made: ir.Value = op.Mul(x, op.Tanh(op.Softplus(x)))
    return made


@rewrite("prelu-split", "PRelu", becomes="Relu(x) - slope * Relu(-x)", exactness=Exactness.N)
def prelu_split(op: Any, y: ir.Value) -> ir.Value | None:
    """A PRelu becomes two Relus. The slope must be constant."""
    x, slope = source(y), data(source(y, 1))
    if x is None or slope is None:
        return None
    made: ir.Value = op.Add(op.Relu(x), op.Mul(op.Relu(op.Mul(x, constant(op, -1.0, x))), constant(op, -slope, x, "slope")))
    return made
