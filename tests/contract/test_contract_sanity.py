"""Slips in the preparation of pictures, named from statistics: each injected one by its name, none on good samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from contract_cases import IMAGENET
from models import model, node

from qbench.data.arrays import ArrayDataset
from qbench.errors import DataError, InputError
from qbench.graph import load_network
from qbench.protocols import Array
from qbench.sanity import Verdict, distance, slips
from qbench.statistics import TensorStatistics, collect
from qbench.workbench.contracting import Handing, check_inputs

HOW = "size=24x20,mean=0.485/0.456/0.406,std=0.229/0.224/0.225"
MEAN, STD = (np.array(v, np.float32).reshape(3, 1, 1) for v in (IMAGENET.mean, IMAGENET.std))


def pictures(count: int, seed: int) -> Array:
    """Smooth warm pictures: blocks of colour, more red than blue, a little noise; uint8 [count, 24, 20, 3]."""
    rng = np.random.default_rng(seed)
    blocks = rng.random((count, 6, 5, 3)) * np.array([1.0, 0.8, 0.5]) + 0.1 * rng.random((count, 1, 1, 3))
    whole = blocks.repeat(4, 1).repeat(4, 2) + 0.03 * rng.standard_normal((count, 24, 20, 3))
    made: Array = np.clip(whole * 230, 0, 255).astype(np.uint8)
    return made


def prepared(pixels: Array) -> Array:
    made: Array = ((pixels.transpose(0, 3, 1, 2).astype(np.float32) / 255 - MEAN) / STD).astype(np.float32)
    return made


def again(x: Array) -> Array:
    made: Array = (x / 255 - MEAN) / STD
    return made


SLIPS: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "bgr before": ("channels swapped", lambda p: prepared(p[..., ::-1])),
    "bgr after": ("channels swapped", lambda p: prepared(p)[:, ::-1]),
    "raw pixels": ("not normalised", lambda p: p.transpose(0, 3, 1, 2).astype(np.float32)),
    "0 to 1": ("scaled to 0..1", lambda p: p.transpose(0, 3, 1, 2).astype(np.float32) / 255),
    "twice": ("normalised twice", lambda p: again(prepared(p))),
    "mean and std twice": ("mean and std applied twice", lambda p: (prepared(p) - MEAN) / STD),
    "reshaped": ("layout swapped (HWC values reshaped", lambda p: (p.reshape(-1, 3, 24, 20).astype(np.float32) / 255 - MEAN) / STD),
    "hwc": ("layout swapped (HWC where CHW", lambda p: prepared(p).transpose(0, 2, 3, 1)),
    "no batch": ("batch dimension missing", lambda p: prepared(p)[0]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network, and the statistics of 40 pictures."""
    path = tmp_path_factory.mktemp("sanity")
    rng = np.random.default_rng(3)
    w = {"w0": rng.normal(0, 0.4, (8, 3, 3, 3)), "w1": rng.normal(0, 0.4, (8, 8, 3, 3)), "fc": rng.normal(0, 0.4, (8, 5))}
    nodes = [node("Conv", ["x", "w0"], ["a"], "first", pads=[1] * 4), node("Relu", ["a"], ["b"]), node("Conv", ["b", "w1"], ["c"], "second"),
             node("GlobalAveragePool", ["c"], ["e"]), node("Flatten", ["e"], ["f"]), node("Gemm", ["f", "fc"], ["y"], "head")]
    onnx.save(model(nodes, {"x": ["N", 3, 24, 20]}, {"y": ["N", 5]}, {k: v.astype(np.float32) for k, v in w.items()}), str(path / "net.onnx"))
    ready = load_network(path / "net.onnx")
    tensors = ["x", *(t for k in ready.network.kernels for t in (*k.inner, *k.outputs))]
    collect(ready.model, tensors, ArrayDataset({"x": prepared(pictures(40, 1))}), threads=1, model_key=ready.network.model_key).save(path / "stats.npz")
    return path


def verdicts(folder: Path, x: Array, preprocess: str | None = HOW) -> tuple[Verdict, ...]:
    np.save(folder / "x.npy", x.astype(np.float32))
    found = check_inputs(folder / "net.onnx", "rk3588", [str(folder / "x.npy")], handing=Handing(preprocess=preprocess), stats=folder / "stats.npz")
    return found.inputs[0].verdicts


@pytest.mark.parametrize(("count", "seed"), [(1, 100), (4, 101)])
@pytest.mark.parametrize("slip", SLIPS)
def test_each_slip_is_named(folder: Path, slip: str, count: int, seed: int) -> None:
    name, spoil = SLIPS[slip]
    first = verdicts(folder, spoil(pictures(count, seed)))[0]
    assert first.slip.startswith(name) and 0.2 < first.confidence <= 1.0 and first.cure


@pytest.mark.parametrize(("count", "seed"), [(1, 200), (1, 201), (2, 202), (4, 203), (8, 204)])
@pytest.mark.parametrize("preprocess", [HOW, None])
def test_good_samples_raise_no_alarm(folder: Path, count: int, seed: int, preprocess: str | None) -> None:
    (only,) = verdicts(folder, prepared(pictures(count, seed)), preprocess)
    assert only.slip == "" and only.confidence == 0.0


def test_the_usual_pipelines_are_tried_when_none_is_given(folder: Path) -> None:
    (only,) = verdicts(folder, pictures(4, 100).transpose(0, 3, 1, 2).astype(np.float32), None)
    assert only.slip.startswith("not normalised") and "0.485" in only.cure


def test_undoing_is_exact() -> None:
    p = pictures(3, 7)
    good = prepared(p)
    undo = {s.name: s.undo for s in slips((1, 3, 24, 20), "NCHW", IMAGENET)}
    spoiled = {"before normalisation": prepared(p[..., ::-1]), "not normalised": SLIPS["raw pixels"][1](p), "normalised twice": again(good)}
    for part, x in spoiled.items():
        name = next(n for n in undo if part in n)
        assert np.allclose(undo[name](x), good, atol=1e-4)
    last = {s.name: s.undo for s in slips((1, 24, 20, 3), "NHWC", IMAGENET)}
    name = next(n for n in last if n.startswith("layout swapped") and "before" in n)
    chw = (p.transpose(0, 3, 1, 2).reshape(-1, 24, 20, 3) / 255 - np.array(IMAGENET.mean)) / np.array(IMAGENET.std)
    assert np.allclose(last[name](chw.astype(np.float32)), good.transpose(0, 2, 3, 1), atol=1e-4)


def test_distance_is_zero_of_itself_and_grows_with_a_shift() -> None:
    x = np.random.default_rng(0).normal(size=(4, 3, 9, 9)).astype(np.float32)
    known = {"t": TensorStatistics.of(x, "t")}
    away = [distance({"t": TensorStatistics.of(x + np.float32(d), "t")}, known) for d in (0.0, 0.5, 1.0, 2.0)]
    assert away[0] == 0.0 and away == sorted(away) and distance({}, known) == 0.0


@pytest.mark.parametrize(("change", "error", "words"), [
    ({"files": ["x.npy"], "model": "other.onnx"}, DataError, "another model"),
    ({"files": []}, InputError, "give --input for x"),
    ({"files": ["small.npy"]}, DataError, "nothing can be compared"),
    ({"files": ["absent.npy"]}, InputError, "does not exist"),
    ({"files": ["x=x.npy", "x.npy"]}, InputError, "given twice"),
    ({"files": ["p.png"]}, InputError, "give the prepared array"),
])
def test_what_cannot_be_compared_says_why(folder: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], error: type[Exception], words: str) -> None:
    from PIL import Image

    monkeypatch.chdir(folder)
    np.save("x.npy", prepared(pictures(1, 1)))
    np.save("small.npy", np.zeros((1, 3, 4, 4), np.float32))
    Image.new("RGB", (20, 24)).save("p.png")
    other = onnx.load("net.onnx")
    other.graph.initializer[0].float_data[:] = []
    other.graph.node[0].name = "renamed"
    onnx.save(other, "other.onnx")
    with pytest.raises(error, match=words):
        check_inputs(Path(change.get("model", "net.onnx")), "rk3588", change["files"], stats=Path("stats.npz"))
