"""Marks in a network: huge constants for places that hold no value. None of them may own the scale of ordinary values (BUG case B13's kind)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import Array, model, node, sqnr_db
from odd_models import BOOL, info, odd_model, reference

from qbench.errors import DataError
from qbench.runtime import Session
from qbench.statistics import TensorStatistics
from qbench.workbench.precisions import LEAST_MARK, mark_in
from qbench.workbench.quantizing import quantize

RNG = np.random.default_rng(0)
W = {"w": RNG.normal(size=(4, 3, 3, 3)).astype(np.float32)}
X = RNG.normal(size=(8, 3, 8, 8)).astype(np.float32)
KEEP = (RNG.random((8, 1, 6, 6)) > 0.3) | (np.arange(36).reshape(1, 1, 6, 6) == 0)


def through(tmp_path: Path, proto: onnx.ModelProto, data: Mapping[str, Array], **options: Any) -> tuple[dict[str, Any], dict[str, Array], dict[str, Array]]:
    """What `qbench quantize` says, and the outputs of float and quantized model."""
    onnx.save(proto, tmp_path / "net.onnx")
    np.savez(tmp_path / "d.npz", allow_pickle=False, **dict(data))
    done = quantize(tmp_path / "net.onnx", tmp_path / "q.onnx", data=str(tmp_path / "d.npz"), **options)
    return done, reference(proto, data), Session((tmp_path / "q.onnx").read_bytes(), 1, simulate=True).run(data)


def of(done: dict[str, Any], name: str) -> str:
    return str(next(r["precision"] for r in done["coverage"]["rows"] if r["node"] == name))


CONV = node("Conv", ["x", "w"], ["c"], "conv")


@pytest.mark.parametrize("fill", [-3.4028235e38, -np.inf, -1e4])
def test_padding_in_front_of_a_maximum_saturates(tmp_path: Path, fill: float) -> None:
    """TensorFlow's SAME: whatever is lower than all values is as good; Conv, Pad and MaxPool share one scale."""
    nodes = [CONV, node("Pad", ["c", "pads", "fill"], ["p"], "pad"), node("MaxPool", ["p"], ["y"], "pool", kernel_shape=[3, 3])]
    proto = model(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 4, 6, 6]}, W | {"fill": np.array(fill, np.float32), "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])})
    done, before, after = through(tmp_path, proto, {"x": X})
    assert done["layers"] == {"int8": 1} and sqnr_db(before["y"], after["y"]) > 35


@pytest.mark.parametrize("mark", [-1e9, -3.4028235e38, 1e6])
@pytest.mark.parametrize("how", ["where", "concat", "pad", "input"])
def test_a_mark_leaves_the_values_their_scale(tmp_path: Path, how: str, mark: float) -> None:
    """The reader stays in float, with the mark in its reason; the convolution in front does not."""
    huge, data = np.array(mark, np.float32), {"x": X}
    inputs, weights = [info("x", ["N", 3, 8, 8])], W | {"huge": huge}
    match how:
        case "where":
            inputs.append(info("keep", ["N", 1, 6, 6], BOOL))
            data |= {"keep": KEEP}
            made = node("Where", ["keep", "c", "huge"], ["m"], "apply")
        case "concat":
            weights |= {"huge": np.full((8, 1, 6, 6), mark, np.float32)}
            inputs, data = [info("x", [1, 3, 8, 8])], {"x": X}
            weights["huge"] = weights["huge"][:1]
            made = node("Concat", ["c", "huge"], ["m"], "apply", axis=1)
        case "pad":
            weights |= {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
            made = node("Pad", ["c", "pads", "huge"], ["m"], "apply")
        case _:
            inputs.append(info("add", ["N", 1, 6, 6]))
            data |= {"add": np.where(KEEP, 0, huge).astype(np.float32)}
            made = node("Add", ["c", "add"], ["m"], "apply")
    best = "ReduceMax" if mark < 0 else "ReduceMin"
    nodes = [CONV, made, node(best, ["m"], ["y"], "best", axes=[1, 2, 3], keepdims=0)]
    proto = odd_model(nodes, inputs, [info("y", ["N"])], {k: v for k, v in weights.items() if any(k in n.input for n in nodes)})
    onnx.save(proto, tmp_path / "net.onnx")
    np.savez(tmp_path / "d.npz", allow_pickle=False, **dict(data))
    done = quantize(tmp_path / "net.onnx", tmp_path / "q.onnx", data=str(tmp_path / "d.npz"))
    assert of(done, "conv") == "int8"
    assert not of(done, "best").startswith("int")
    assert any("'m' holds" in r and "ordinary values" in r for r in done["remarks"])
    one = {k: v[:1] for k, v in data.items()}
    assert sqnr_db(reference(proto, one)["y"], Session((tmp_path / "q.onnx").read_bytes(), 1, simulate=True).run(one)["y"]) > 25


def test_infinite_masks_from_an_input_stay_in_float_when_infinity_is_ignored(tmp_path: Path) -> None:
    mask = np.where(KEEP, 0, -np.inf).astype(np.float32)
    nodes = [CONV, node("Add", ["c", "mask"], ["m"], "apply"), node("Softmax", ["m"], ["y"], "attend", axis=-1)]
    proto = odd_model(nodes, [info("x", ["N", 3, 8, 8]), info("mask", ["N", 1, 6, 6])], [info("y", ["N", 4, 6, 6])], W)
    done, _, _ = through(tmp_path, proto, {"x": X, "mask": np.where(np.isinf(mask) & (np.arange(6) == 0), 0, mask).astype(np.float32)}, policy="ignore")
    assert not of(done, "attend").startswith("int") and any("and hold -infinity" in r for r in done["remarks"])


@given(st.floats(LEAST_MARK, 1e30), st.sampled_from([-1, 1]), st.integers(0, 9))
def test_what_a_mark_is(size: float, sign: int, seed: int) -> None:
    """Far from ordinary values with nothing in between. A switch of two values is none, nor the tail of a distribution."""
    values = np.random.default_rng(seed).normal(size=400).astype(np.float32)
    mark = np.float32(sign * size)
    assert mark_in(TensorStatistics.of(np.append(values, [mark, mark]))) == pytest.approx(float(mark), rel=1e-6)
    assert mark_in(TensorStatistics.of(values)) == 0.0
    assert mark_in(TensorStatistics.of(np.array([0, 0, mark], np.float32))) == 0.0
    assert mark_in(TensorStatistics.of(np.append(values, [mark, mark / 2]))) == 0.0
    assert mark_in(TensorStatistics.of(np.linspace(-size, size, 400, dtype=np.float32))) == 0.0


@pytest.mark.parametrize(("weights", "inputs", "name"), [(1e-39, 1.0, "w"), (1.0, 1e-40, "x")])
def test_values_below_every_scale_are_named(tmp_path: Path, weights: float, inputs: float, name: str) -> None:
    """B04's kind: a range that is all but 0; float32 has no smaller scale than 1.18e-38."""
    proto = model([node("Conv", ["x", "w"], ["y"], "conv")], {"x": ["N", 3, 8, 8]}, {"y": ["N", 4, 6, 6]}, {"w": (W["w"].astype(np.float64) * weights).astype(np.float32)})
    done, _, _ = through(tmp_path, proto, {"x": (X.astype(np.float64) * inputs).astype(np.float32)})
    assert any(r.startswith(f"tensor {name}: its values reach") and "become 0" in r for r in done["remarks"])


def test_a_fixed_batch_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"input x float32\[4, 3, 8, 8\] takes 4 samples at a time, and data sets are fed one by one"):
        through(tmp_path, odd_model([node("Conv", ["x", "w"], ["y"], "conv")], [info("x", [4, 3, 8, 8])], [info("y", [4, 4, 6, 6])], W), {"x": X})
