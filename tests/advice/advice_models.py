"""Small networks that the steps of advice are tried on, as ONNX, so that a changed network can be compared with one that was built so."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from models import Array, model, node, prepare

from qbench.advice import Setup
from qbench.cost import CostTable
from qbench.network import Network, Precision
from qbench.targets import load


def branches(channels: tuple[int, int, int] = (40, 24, 48), size: Sequence[int | str] = (32, 32), batch: int | str = 1, silu: bool = True,
             transposed: bool = False, head: int = 10) -> onnx.ModelProto:
    """A stem, two branches with a residual, a Concat, a depthwise layer, and a classifier; SiLU or ReLU behind the convolutions.

    channels    of the stem and the first branch, of the second branch, and of the layer behind the Concat
    transposed  the picture comes as NHWC, and the first node turns it
    """
    rng = np.random.default_rng(0)
    a, b, c = channels
    shapes = {"w0": (a, 3, 3, 3), "w1": (a, a, 1, 1), "w2": (b, a, 3, 3), "w3": (c, a + b, 1, 1), "wd": (c, 1, 3, 3), "fc": (c, head)}
    weights: dict[str, Array] = {k: rng.normal(0, 0.1, s).astype(np.float32) for k, s in shapes.items()}
    nodes: list[onnx.NodeProto] = []

    def conv(source: str, weight: str, goal: str, pads: int, **more: int | list[int]) -> None:
        nodes.append(node("Conv", [source, weight], [f"{goal}_c"], goal, pads=[pads] * 4, **more))
        if silu:
            nodes.append(node("Sigmoid", [f"{goal}_c"], [f"{goal}_s"], f"{goal}_sigmoid"))
            nodes.append(node("Mul", [f"{goal}_c", f"{goal}_s"], [goal], f"{goal}_mul"))
        else:
            nodes.append(node("Relu", [f"{goal}_c"], [goal], f"{goal}_relu"))
    if transposed:
        nodes.append(node("Transpose", ["nhwc"], ["x"], "turn", perm=[0, 3, 1, 2]))
    conv("x", "w0", "stem", 1, strides=[2, 2])
    conv("stem", "w1", "left", 0)
    nodes.append(node("Add", ["left", "stem"], ["sum"], "residual"))
    conv("stem", "w2", "right", 1)
    nodes.append(node("Concat", ["sum", "right"], ["both"], "join", axis=1))
    conv("both", "w3", "mixed", 0)
    conv("mixed", "wd", "deep", 1, group=c)
    nodes += [node("GlobalAveragePool", ["deep"], ["pooled"], "pool"), node("Flatten", ["pooled"], ["flat"], "flat"),
              node("Gemm", ["flat", "fc"], ["y"], "head")]
    inputs: dict[str, Sequence[int | str]] = {"nhwc": [batch, *size, 3]} if transposed else {"x": [batch, 3, *size]}
    return model(nodes, inputs, {"y": [batch, head]}, weights)


def fixed() -> onnx.ModelProto:
    """A network whose Reshape holds its size."""
    weights: dict[str, Array] = {"w": np.ones((4, 3, 3, 3), np.float32), "fc": np.ones((4 * 16 * 16, 5), np.float32)}
    proto = model([node("Conv", ["x", "w"], ["c"], "conv", pads=[1] * 4), node("Reshape", ["c", "shape"], ["f"], "flat"), node("Gemm", ["f", "fc"], ["y"], "head")],
                  {"x": [1, 3, 16, 16]}, {"y": [1, 5]}, weights)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 4 * 16 * 16], np.int64), "shape"))
    return proto


def setup_of(network: Network, target_name: str, precision: Precision) -> Setup:
    """The network uniformly in one precision, at the fastest point."""
    target = load(target_name)
    table = CostTable.build(network, target)
    codes = table.uniform(precision)
    return Setup(network, target, table.toolkit, {u: table.available[c] for u, c in zip(table.units, codes, strict=True)}, target.operating_point(None))


__all__ = ["branches", "fixed", "prepare", "setup_of"]
