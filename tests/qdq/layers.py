"""Layers with weights in every form that ONNX has, for tests of the Q/DQ writer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from models import Array, model, node

from qbench.plan import Granularity


@dataclass(frozen=True)
class Layer:
    """One node with a constant weight of 8 input channels where it has no other.

    scales   how many scales it gets per channel; None: as many as output channels
    blocks   how many it gets in blocks of 4 input channels; None: it cannot have blocks
    """

    name: str
    op: str
    x: tuple[int, ...]
    weight: tuple[int, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    left: bool = False
    bias: tuple[int, ...] | None = None
    scales: int = 1
    blocks: int | None = None

    def arrays(self, seed: int = 0) -> dict[str, Array]:
        """Weights whose output channels differ in size by a factor of up to 30, and a bias."""
        rng = np.random.default_rng(seed)
        values = rng.normal(0, 0.5, self.weight).astype(np.float32)
        axis = self.axis
        if axis is not None:
            shape = [1] * len(self.weight)
            shape[axis] = self.weight[axis]
            values *= np.geomspace(0.05, 1.5, self.weight[axis]).astype(np.float32).reshape(shape)
        found = {"w": values}
        if self.bias is not None:
            found["b"] = rng.normal(0, 0.5, self.bias).astype(np.float32)
        return found

    @property
    def axis(self) -> int | None:
        """Axis of the output channels, by hand."""
        if self.op == "Conv":
            return 0
        if self.op == "ConvTranspose":
            return 1 if self.weight[1] > 1 else 0
        if len(self.weight) < 2:
            return None
        if self.op == "MatMul":
            return len(self.weight) - (2 if self.left else 1)
        if self.left:
            return 1 if self.attributes.get("transA") else 0
        return 0 if self.attributes.get("transB") else 1

    def proto(self, act: str | None = None, opset: int = 17, arrays: dict[str, Array] | None = None) -> onnx.ModelProto:
        arrays = arrays or self.arrays()
        inputs = ["w", "x"] if self.left else ["x", "w"]
        nodes = [node(self.op, [*inputs, "b"] if "b" in arrays else inputs, ["t" if act else "y"], "layer", **self.attributes)]
        if act:
            nodes.append(node(act, ["t"], ["y"], "act"))
        return model(nodes, {"x": self.x}, {"y": None}, arrays, opset)

    def feeds(self, seed: int = 1) -> dict[str, Array]:
        return {"x": np.random.default_rng(seed).normal(size=self.x).astype(np.float32)}


LAYERS = {v.name: v for v in (
    Layer("conv", "Conv", (1, 8, 6, 6), (6, 8, 3, 3), {"pads": [1, 1, 1, 1]}, bias=(6,), scales=6, blocks=12),
    Layer("conv 1x1", "Conv", (1, 8, 6, 6), (6, 8, 1, 1), scales=6, blocks=12),
    Layer("conv 1-D", "Conv", (1, 8, 12), (6, 8, 3), bias=(6,), scales=6, blocks=12),
    Layer("conv 3-D", "Conv", (1, 8, 4, 4, 4), (6, 8, 2, 2, 2), bias=(6,), scales=6, blocks=12),
    Layer("conv grouped", "Conv", (1, 8, 6, 6), (6, 4, 3, 3), {"group": 2}, bias=(6,), scales=6),
    Layer("conv depthwise", "Conv", (1, 8, 6, 6), (8, 1, 3, 3), {"group": 8}, bias=(8,), scales=8),
    Layer("deconv", "ConvTranspose", (1, 8, 5, 5), (8, 6, 3, 3), bias=(6,), scales=6, blocks=108),
    Layer("deconv 1-D", "ConvTranspose", (1, 8, 5), (8, 6, 3), bias=(6,), scales=6, blocks=36),
    Layer("deconv grouped", "ConvTranspose", (1, 8, 5, 5), (8, 3, 3, 3), {"group": 2}, bias=(6,), scales=3, blocks=54),
    Layer("deconv depthwise", "ConvTranspose", (1, 8, 5, 5), (8, 1, 3, 3), {"group": 8}, bias=(8,), scales=8),
    Layer("gemm", "Gemm", (5, 8), (8, 6), bias=(6,), scales=6, blocks=12),
    Layer("gemm transB", "Gemm", (5, 8), (6, 8), {"transB": 1}, bias=(6,), scales=6, blocks=12),
    Layer("gemm transA", "Gemm", (8, 5), (8, 6), {"transA": 1}, bias=(1, 6), scales=6, blocks=12),
    Layer("gemm alpha beta", "Gemm", (5, 8), (8, 6), {"alpha": 0.5, "beta": 2.0}, bias=(6,), scales=6, blocks=12),
    Layer("gemm negative alpha", "Gemm", (5, 8), (8, 6), {"alpha": -2.0}, bias=(6,), scales=6, blocks=12),
    Layer("gemm scalar bias", "Gemm", (5, 8), (8, 6), bias=(), scales=6, blocks=12),
    Layer("gemm one bias", "Gemm", (5, 8), (8, 6), bias=(1,), scales=6, blocks=12),
    Layer("gemm bias matrix", "Gemm", (5, 8), (8, 6), bias=(5, 6), scales=6, blocks=12),
    Layer("gemm bias column", "Gemm", (5, 8), (8, 6), bias=(5, 1), scales=6, blocks=12),
    Layer("gemm no bias", "Gemm", (5, 8), (8, 6), scales=6, blocks=12),
    Layer("gemm left", "Gemm", (8, 5), (6, 8), left=True, bias=(6, 1), scales=6, blocks=12),
    Layer("gemm left row bias", "Gemm", (8, 5), (6, 8), left=True, bias=(5,), scales=6, blocks=12),
    Layer("gemm left transA", "Gemm", (8, 5), (8, 6), {"transA": 1}, left=True, bias=(), scales=6, blocks=12),
    Layer("matmul", "MatMul", (5, 8), (8, 6), scales=6, blocks=12),
    Layer("matmul 3-D x", "MatMul", (2, 5, 8), (8, 6), scales=6, blocks=12),
    Layer("matmul batched", "MatMul", (2, 5, 8), (2, 8, 6), scales=6, blocks=24),
    Layer("matmul 4-D", "MatMul", (1, 2, 5, 8), (1, 2, 8, 6), scales=6, blocks=24),
    Layer("matmul vector w", "MatMul", (5, 8), (8,)),
    Layer("matmul vector x", "MatMul", (8,), (8, 6), scales=6, blocks=12),
    Layer("matmul left", "MatMul", (8, 5), (6, 8), left=True, scales=6, blocks=12),
    Layer("matmul left batched", "MatMul", (2, 8, 5), (2, 6, 8), left=True, scales=6, blocks=24),
)}
FINE = (Granularity.PER_LAYER, Granularity.PER_CHANNEL, Granularity.PER_GROUP)
