"""What `qbench quantize` says of units that run in FP16 because nothing else can run them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from models import model, node

from qbench.cli.quantize import summarised
from qbench.errors import ModelError
from qbench.graph import load_network
from qbench.workbench import quantize, statistics_of
from qbench.workbench.case import open_data


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


@pytest.mark.parametrize("by", ["data", "stats_file"])
def test_data_that_never_move_are_told(tmp_path: Path, by: str) -> None:
    """B04: an all-zero set gives scales that say nothing."""
    onnx.save(model([node("Conv", ["x", "w"], ["y"], "conv")], {"x": [1, 2, 4, 4]}, {"y": [1, 2, 4, 4]}, {"w": np.ones((2, 2, 1, 1), np.float32)}), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.zeros((4, 2, 4, 4), np.float32))
    prepared = load_network(tmp_path / "m.onnx")
    statistics_of(prepared, open_data(str(tmp_path / "d.npz"), prepared)).save(tmp_path / "s.npz")
    source: Any = str(tmp_path / "d.npz") if by == "data" else tmp_path / "s.npz"
    told = quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", **{by: source})["remarks"]
    assert [r.partition(";")[0] for r in told] == [f"tensor {t}: constant over the whole calibration set (0)" for t in ("x", "y")]


def test_a_model_stored_in_float16_is_said_to_be_read_as_float32(tmp_path: Path) -> None:
    proto = model([node("Cast", ["h"], ["w"], "cast", to=1), node("Conv", ["x", "w"], ["y"], "conv")], {"x": [1, 2, 4, 4]}, {"y": [1, 2, 4, 4]},
                  {"h": np.ones((2, 2, 1, 1), np.float16)})
    onnx.save(proto, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.random.default_rng(0).normal(size=(4, 2, 4, 4)).astype(np.float32))
    assert any("float16" in r for r in quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data=str(tmp_path / "d.npz"))["remarks"])


def test_the_coverage_is_in_the_result(tmp_path: Path) -> None:
    """B23: an LSTM behind a convolution; the figure counts its work."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(3, 3, 1)).astype(np.float32), "l": rng.normal(size=(1, 8, 3)).astype(np.float32), "r": rng.normal(size=(1, 8, 2)).astype(np.float32)}
    nodes = [node("Conv", ["x", "w"], ["c"], "conv"), node("Transpose", ["c"], ["t"], "turn", perm=[2, 0, 1]),
             node("LSTM", ["t", "l", "r"], ["y"], "memory", hidden_size=2)]
    onnx.save(model(nodes, {"x": [1, 3, 4]}, {"y": [4, 1, 1, 2]}, weights), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=rng.normal(size=(4, 3, 4)).astype(np.float32))
    found = quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data=str(tmp_path / "d.npz"))["coverage"]
    assert found["quantized_macs"] == pytest.approx(9 * 4 / (9 * 4 + 8 * (3 + 2) * 4))
    assert "recurrent state" in next(r["reason"] for r in found["rows"] if r["node"] == "memory")


def test_what_is_said_of_many_layers_is_said_once() -> None:
    lines = [f"conv{i}: scale widened {x} times so that 'b{i}' fits" for i, x in enumerate((2.5, 1e6, 30, 4))]
    others = ["a: reads nothing", "b: reads nothing", "no colon at all"]
    assert summarised([*lines, *others]) == ["conv1: scale widened 1000000.0 times so that 'b1' fits (and 3 more like it; all of them: --json)", *others]


def test_a_network_whose_output_is_one_number(tmp_path: Path) -> None:
    nodes = [node("Conv", ["x", "w"], ["c"], "conv"), node("ReduceMean", ["c"], ["y"], "mean", keepdims=0)]
    onnx.save(model(nodes, {"x": [1, 2, 4, 4]}, {"y": []}, {"w": np.ones((2, 2, 1, 1), np.float32)}), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.random.default_rng(0).normal(size=(4, 2, 4, 4)).astype(np.float32))
    assert quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data=str(tmp_path / "d.npz"))["layers"] == {"int8": 2}


def test_what_onnx_would_not_check_is_refused(tmp_path: Path) -> None:
    """GroupNormalization of opset 18 is deprecated: onnx's checker takes no model with it."""
    nodes = [node("Conv", ["x", "w"], ["c"], "conv"), node("GroupNormalization", ["c", "g", "g"], ["y"], "norm", num_groups=2)]
    onnx.save(model(nodes, {"x": [1, 2, 4, 4]}, {"y": [1, 2, 4, 4]}, {"w": np.ones((2, 2, 1, 1), np.float32), "g": np.ones(2, np.float32)}, 18), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.random.default_rng(0).normal(size=(4, 2, 4, 4)).astype(np.float32))
    with pytest.raises(ModelError, match=r"does not pass onnx's checker: .*GroupNormalization is deprecated"):
        quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data=str(tmp_path / "d.npz"))
    assert not (tmp_path / "q.onnx").exists()
