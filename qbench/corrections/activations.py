"""The function behind a layer, in torch, so that rounding is learned on what comes out of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import onnx_ir as ir

from qbench.corrections.anchors import Anchor, data_of
from qbench.graph.attributes import real, text
from qbench.graph.kernels import constant
from qbench.network import Kernel

if TYPE_CHECKING:
    import torch

Function = Callable[["torch.Tensor"], "torch.Tensor"]


def activation_of(kernel: Kernel, anchor: Anchor) -> Function:
    """What the kernel does to its anchor's output before anything else is added; the identity where it does nothing that is known.

    The function takes and gives [groups, positions, outputs / groups].
    """
    import torch.nn.functional as f

    readers = {id(n): n for n, _ in anchor.output.uses() if str(n.name) in kernel.nodes}
    nodes = {n.op_type: n for n in readers.values()}
    if set(nodes) == {"Sigmoid", "Mul"}:
        return f.silu
    if set(nodes) == {"HardSigmoid", "Mul"}:
        gate = _hard_sigmoid(nodes["HardSigmoid"])
        return lambda x: x * gate(x)
    if len(nodes) != 1:
        return lambda x: x
    node = next(iter(nodes.values()))
    match node.op_type:
        case "Relu":
            return f.relu
        case "Clip":
            low, high = (_bound(node, 1, float("-inf")), _bound(node, 2, float("inf")))
            return lambda x: x.clamp(low, high)
        case "LeakyRelu":
            slope = real(node, "alpha", 0.01)
            return lambda x: f.leaky_relu(x, slope)
        case "PRelu":
            return _prelu(node, anchor)
        case "Elu":
            alpha = real(node, "alpha", 1.0)
            return lambda x: f.elu(x, alpha)
        case "HardSigmoid":
            return _hard_sigmoid(node)
        case "Gelu":
            how = text(node, "approximate", "none")
            return lambda x: f.gelu(x, approximate=how)
    known: dict[str, Function] = {"Sigmoid": lambda x: x.sigmoid(), "Tanh": lambda x: x.tanh(), "HardSwish": f.hardswish, "Selu": f.selu,
                                  "Softplus": f.softplus, "Mish": f.mish}
    return known.get(node.op_type, lambda x: x)


def _hard_sigmoid(node: ir.Node) -> Function:
    alpha, beta = real(node, "alpha", 0.2), real(node, "beta", 0.5)
    return lambda x: (alpha * x + beta).clamp(0.0, 1.0)


def _prelu(node: ir.Node, anchor: Anchor) -> Function:
    """A slope for all, or one a channel; other forms count as a line through 0."""
    import torch

    slope = data_of(node.inputs[1]) if node.inputs[1] is not None and constant(node.inputs[1]) else None
    if slope is None or slope.size not in (1, anchor.outputs):
        return lambda x: x
    held = torch.from_numpy(slope.reshape(-1).copy())
    shaped = held if held.numel() == 1 else held.reshape(anchor.groups, 1, -1)
    return lambda x: torch.where(x >= 0, x, x * shaped.to(x.device))


def _bound(node: ir.Node, index: int, default: float) -> float:
    value = node.inputs[index] if len(node.inputs) > index else None
    return float(data_of(value).reshape(-1)[0]) if value is not None and constant(value) else default
