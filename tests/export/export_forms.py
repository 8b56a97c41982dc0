"""Small networks that a provider takes in one form only: a clamp that cuts codes of a shared scale, a Resize between two scales."""

from __future__ import annotations

import models
import numpy as np
import onnx


def joined(clamp: str, bounds_shape: tuple[int, ...] = ()) -> onnx.ModelProto:
    """Conv a + `clamp` and Conv b, which is signed, in one Concat: one scale for both, whose codes the clamp cuts."""
    rng = np.random.default_rng(1)
    weights = {"wa": rng.normal(0, 0.3, (8, 3, 3, 3)).astype(np.float32), "wb": rng.normal(0, 0.3, (8, 3, 3, 3)).astype(np.float32),
               "low": np.full(bounds_shape, 0.0, np.float32), "high": np.full(bounds_shape, 1.0, np.float32)}
    bounds = ["low", "high"] if clamp == "Clip" else []
    nodes = [models.node("Conv", ["x", "wa"], ["a0"], "a", pads=[1, 1, 1, 1]), models.node(clamp, ["a0", *bounds], ["a1"], "clamp"),
             models.node("Conv", ["x", "wb"], ["b0"], "b", pads=[1, 1, 1, 1]), models.node("Concat", ["a1", "b0"], ["y"], "join", axis=1)]
    return models.model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 16, 8, 8]}, weights)


def enlarged(mode: str = "linear") -> onnx.ModelProto:
    """Conv, Resize by two, Relu: what the Resize gives has a smaller range than what it reads."""
    weights = {"w": np.random.default_rng(2).normal(0, 0.3, (8, 3, 3, 3)).astype(np.float32), "twice": np.array([1, 1, 2, 2], np.float32)}
    nodes = [models.node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]), models.node("Resize", ["c", "", "twice"], ["r"], "larger", mode=mode),
             models.node("Sigmoid", ["r"], ["y"], "gate")]
    return models.model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 8, 16, 16]}, weights)
