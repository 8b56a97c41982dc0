"""A small network with everything a diagnosis needs: float file, plan, data, and a board that runs its Q/DQ file rightly or wrongly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
from fake_board import FakeBoard

from qbench import qdq
from qbench.affine import Range, Scheme
from qbench.diagnosis import Diagnosis
from qbench.plan import Plan
from qbench.target import QuantScheme
from qbench.workbench.diagnosing import Wanted, diagnose

Array = models.Array
SAMPLES = 4
MEAN, STD = (np.array(v, np.float32).reshape(1, 3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
SHIFTS = {"int8": QuantScheme(Scheme(8, False, False, power_of_two=True), Scheme(8, True, True, True, power_of_two=True), True)}
"""Powers of two, as shift-only hardware has them: sums then fall exactly between two codes."""


def network(seed: int = 0) -> onnx.ModelProto:
    """Two 3x3 convolutions with Relu and a 1x1 convolution: [N, 3, 10, 12] -> [N, 4, 10, 12]."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Array:
        return np.asarray(rng.normal(size=shape) * np.sqrt(2.0 / np.prod(shape[1:])), np.float32)

    weights = {"w0": normal(8, 3, 3, 3), "b0": normal(8, 1)[:, 0] * 0.2, "w1": normal(8, 8, 3, 3), "b1": normal(8, 1)[:, 0] * 0.2, "w2": normal(4, 8, 1, 1)}
    nodes = [models.node("Conv", ["x", "w0", "b0"], ["c0"], "conv0", pads=[1, 1, 1, 1]), models.node("Relu", ["c0"], ["r0"], "relu0"),
             models.node("Conv", ["r0", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1]), models.node("Relu", ["c1"], ["r1"], "relu1"),
             models.node("Conv", ["r1", "w2"], ["y"], "conv2")]
    return models.model(nodes, {"x": ["N", 3, 10, 12]}, {"y": ["N", 4, 10, 12]}, weights)


def pictures(seed: int = 1, count: int = SAMPLES) -> Array:
    """Pixels 0 to 255 with structure, so that no symmetry hides a swap, normalised as ImageNet is."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:10, 0:12]
    base = np.stack([rows * 20.0, columns * 15.0, 128.0 + 60.0 * np.sin(rows / 2.0 + columns / 3.0)])
    pixels = np.clip(base * rng.uniform(0.4, 1.1, (count, 3, 1, 1)) + rng.normal(0, 25, (count, 3, 10, 12)), 0, 255).round()
    return np.asarray((pixels / 255.0 - MEAN) / STD, np.float32)


@dataclass
class Lab:
    folder: Path
    x: Array
    plan: Plan
    model: onnx.ModelProto

    def board(self, x: Array | None = None, **fault: Any) -> Array:
        """The output `y` of a board with a fault in its arithmetic."""
        return FakeBoard(self.model, **fault).run({"x": self.x if x is None else x})["y"]

    def layers(self, **fault: Any) -> dict[str, Array]:
        """All tensors that the board stores."""
        codes = {q.output[0] for q in self.model.graph.node if q.op_type == "QuantizeLinear" and q.input[0] not in {i.name for i in self.model.graph.initializer}}
        wanted = [n.output[0] for n in self.model.graph.node if n.op_type == "DequantizeLinear" and n.input[0] in codes]
        return FakeBoard(self.model, **fault).run({"x": self.x}, wanted)

    def scale(self) -> tuple[float, int]:
        """Of the output's codes."""
        q = next(n for n in reversed(self.model.graph.node) if n.op_type == "QuantizeLinear")
        constant = {i.name: onnx.numpy_helper.to_array(i) for i in self.model.graph.initializer}
        return float(constant[q.input[1]]), int(constant[q.input[2]])

    def diagnose(self, dump: Mapping[str, Array] | Array, **more: Any) -> Diagnosis:
        np.savez(self.folder / "board.npz", **(dump if isinstance(dump, Mapping) else {"y": dump}))  # type: ignore[arg-type]  # numpy's stub
        wanted = Wanted(self.folder / "net.onnx", self.folder / "plan.json", str(self.folder / "data.npz"), outputs=self.folder / "board.npz", samples=SAMPLES)
        return diagnose(replace(wanted, **more))


def build(folder: Path, seed: int = 0, ranges: Mapping[str, float] | None = None, schemes: Mapping[str, QuantScheme] = models.NPU, **how: Any) -> Lab:
    """ranges   tensor -> factor on its calibrated range"""
    (folder / "net.onnx").write_bytes(network(seed).SerializeToString())
    x = pictures(seed + 1)
    np.savez(folder / "data.npz", x=x)
    prepared = models.prepare(folder / "net.onnx")
    seen = models.observe(prepared, [{"x": pictures(seed + 7, 16)}])
    seen = {k: Range(r.low * f, r.high * f) for k, r in seen.items() for f in [(ranges or {}).get(k, 1.0)]}
    plan = models.plan(prepared, seen, schemes=schemes, **how)
    plan.save(folder / "plan.json")
    written = qdq.to_bytes(qdq.write(prepared, plan).model)
    (folder / "q.onnx").write_bytes(written)
    return Lab(folder, x, plan, onnx.load_from_string(written))
