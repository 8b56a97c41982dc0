"""What `qbench quantize` says of units that run in FP16 because nothing else can run them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from models import model, node

from qbench.workbench import quantize


@pytest.mark.parametrize("precision", ["int8", "fp16"])
@pytest.mark.parametrize(("largest", "told"), [(1000.0, True), (100.0, False)])
def test_an_fp16_unit_that_may_overflow_is_named(tmp_path: Path, precision: str, largest: float, told: bool) -> None:
    """B22: the square of 1000 does not fit, of 100 it does, twice over."""
    nodes = [node("Pow", ["x", "two"], ["s"], "square"), node("Conv", ["s", "w"], ["y"], "conv")]
    onnx.save(model(nodes, {"x": [1, 2, 4, 4]}, {"y": [1, 2, 4, 4]}, {"two": np.array(2, np.float32), "w": np.ones((2, 2, 1, 1), np.float32)}), tmp_path / "m.onnx")
    x = np.random.default_rng(0).uniform(-1, 1, (4, 2, 4, 4)).astype(np.float32)
    x[0, 0, 0, 0] = largest
    np.savez(tmp_path / "d.npz", x=x)
    done = quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data=str(tmp_path / "d.npz"), precision=precision)
    assert any("FP16 could overflow: tensor 's' reaches 1e+06" in r for r in done["remarks"]) == told


def test_a_model_stored_in_float16_is_said_to_be_read_as_float32(tmp_path: Path) -> None:
    proto = model([node("Cast", ["h"], ["w"], "cast", to=1), node("Conv", ["x", "w"], ["y"], "conv")], {"x": [1, 2, 4, 4]}, {"y": [1, 2, 4, 4]},
                  {"h": np.ones((2, 2, 1, 1), np.float16)})
    onnx.save(proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.random.default_rng(0).normal(size=(4, 2, 4, 4)).astype(np.float32))
    assert any("float16" in r for r in quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data=str(tmp_path / "d.npz"))["remarks"])
