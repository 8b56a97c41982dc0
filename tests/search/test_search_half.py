"""A chosen plan whose FP16 layers overflow is not shipped without a word: candidates run them in float."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from models import model, node

from qbench.workbench import SearchJob, open_case, run_search


def test_overflow_in_a_layer_that_only_fp16_can_run_is_a_warning(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    nodes = [node("Conv", ["x", "v"], ["c"], "first"), node("Relu", ["c"], ["r"], "relu"), node("Conv", ["r", "w"], ["a"], "conv"), node("Flatten", ["a"], ["f"], "flat"), node("Mul", ["f", "f"], ["sq"], "square"),
             node("ReduceSum", ["sq", "axes"], ["s"], "sum", keepdims=1), node("Sqrt", ["s"], ["n"], "sqrt"), node("Div", ["f", "n"], ["y"], "div")]
    weights = {"v": rng.normal(size=(4, 3, 1, 1)).astype(np.float32), "w": (200 * rng.normal(size=(4, 4, 1, 1))).astype(np.float32), "axes": np.array([1])}
    onnx.save(model(nodes, {"x": ["N", 3, 6, 6]}, {"y": ["N", 144]}, weights), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=rng.normal(size=(32, 3, 6, 6)).astype(np.float32))
    case = open_case(tmp_path / "net.onnx", str(tmp_path / "data.npz"), metric="cosine")
    found = run_search(SearchJob(case, "rk3588", calibrators=("minmax",), trials=3, out=tmp_path / "out", track=False))
    assert found.chosen is not None
    assert found.chosen.accuracy.value > 0.99
    assert found.verified["fp16_emulated"] < 0.5
    assert any("FP16 rounding of its float layers emulated" in w for w in found.warnings)
    assert any("65504" in w for w in found.warnings)
