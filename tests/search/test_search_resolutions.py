"""Searches at several sizes of the picture, on a small network with open height and width."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from models import model, node
from PIL import Image
from typer.testing import CliRunner

from qbench.cli.app import app

RNG = np.random.default_rng(3)
SIZES = ("24x24", "16x16", "8x8")


def write_model(path: Path, height: int | str, width: int | str, offset: Any = (0.0, 0.0, 0.0)) -> None:
    """Two convolutions and the mean over all places: three class scores, whatever the size. offset   added to them"""
    rng = np.random.default_rng(7)
    weights = {"w0": rng.normal(0, 0.5, (6, 3, 3, 3)).astype(np.float32), "w1": rng.normal(0, 0.5, (3, 6, 3, 3)).astype(np.float32),
               "b1": np.asarray(offset, np.float32)}
    nodes = [node("Conv", ["x", "w0"], ["a"], "c0", pads=[1] * 4, strides=[2, 2]), node("Relu", ["a"], ["r"], "r0"),
             node("Conv", ["r", "w1", "b1"], ["b"], "c1", pads=[1] * 4), node("GlobalAveragePool", ["b"], ["p"], "pool"), node("Flatten", ["p"], ["y"], "flat")]
    onnx.save(model(nodes, {"x": ["N", 3, height, width]}, {"y": ["N", 3]}, weights), path)


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """net.onnx and pictures/CLASS/*.png; the classes are those of the float model at 24 x 24."""
    out = tmp_path_factory.mktemp("sizes")
    write_model(out / "net.onnx", "H", "W")
    session = ort.InferenceSession((out / "net.onnx").read_bytes())
    pictures, scores = [], []
    for _ in range(36):
        period, grid = RNG.integers(1, 5), np.indices((24, 24)).sum(0)                 # fine checks vanish in a smaller picture
        pixels = (RNG.uniform(0, 128, 3) + RNG.uniform(0, 127, 3) * (grid // period % 2)[..., None]).astype(np.uint8)
        pictures.append(Image.fromarray(pixels))
        scores.append(session.run(None, {"x": (pixels.astype(np.float32) / 255).transpose(2, 0, 1)[None]})[0][0])
    offset = -np.mean(scores, axis=0)
    write_model(out / "net.onnx", "H", "W", offset)
    for c in range(3):
        (out / "pictures" / str(c)).mkdir(parents=True)
    for i, (picture, score) in enumerate(zip(pictures, scores, strict=True)):
        picture.save(out / "pictures" / str(int((score + offset).argmax())) / f"{i:02d}.png")
    return out


def ask(where: Path, out: Path, *more: str, sizes: tuple[str, ...] = SIZES, net: str = "net.onnx") -> Any:
    args = ["search", "--model", str(where / net), "--data", str(where / "pictures"), "--preprocess", "size=24x24", "--metric", "top1", "--target", "rk3588",
            "--trials", "3", "--calibrator", "minmax", "--no-track", "-o", str(out), *more]
    return CliRunner().invoke(app, [*args, *(x for s in sizes for x in ("--resolution", s))])


def test_each_size_is_searched_and_compared_with_float_at_the_first(where: Path, tmp_path: Path) -> None:
    done = ask(where, tmp_path, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [r["size"] for r in found["resolutions"]] == list(SIZES)
    assert found["chosen"] in SIZES
    for row in found["resolutions"]:
        assert row["float_drop"] == pytest.approx(1.0 - right(where, row["size"]))
        chosen = found["searches"][row["size"]]["chosen"]
        assert row["drop"] == pytest.approx(row["float_drop"] + chosen["drop"])
        assert row["drop_low"] <= row["drop"] <= row["drop_high"]
        assert (tmp_path / row["size"] / "model.qdq.onnx").is_file()
    assert found["resolutions"][0]["float_drop"] == 0.0
    ms = [r["latency_ms"] for r in found["resolutions"]]
    assert ms[0] >= ms[2]
    assert json.loads((tmp_path / "resolutions.json").read_text())["chosen"] == found["chosen"]


def right(where: Path, size: str) -> float:
    """Share of pictures that the float model, with Pillow's own resizing, gets right."""
    session = ort.InferenceSession((where / "net.onnx").read_bytes())
    height, width = map(int, size.split("x"))
    hits = []
    for path in sorted((where / "pictures").rglob("*.png")):
        pixels = np.asarray(Image.open(path).convert("RGB").resize((width, height), Image.Resampling.BILINEAR), np.float32) / 255
        hits.append(int(session.run(None, {"x": pixels.transpose(2, 0, 1)[None]})[0].argmax()) == int(path.parent.name))
    return float(np.mean(hits))


def test_a_size_whose_float_model_loses_too_much_is_left_out_with_the_reason(where: Path, tmp_path: Path) -> None:
    assert 1.0 - right(where, "8x8") > 0.01
    done = ask(where, tmp_path, "--max-drop", "1%", sizes=("24x24", "8x8"))
    assert "float alone loses" in " ".join(done.output.split())
    assert not (tmp_path / "8x8").exists()


@pytest.mark.parametrize(("net", "more", "sizes", "said"), [
    ("fixed.onnx", (), SIZES, "fixes its input 'x'"), ("net.onnx", ("--preset", "door-lock"), SIZES, "cannot be shared out"),
    ("net.onnx", (), ("24",), "HEIGHTxWIDTH")])
def test_what_cannot_be_resized_is_refused(where: Path, tmp_path: Path, net: str, more: tuple[str, ...], sizes: tuple[str, ...], said: str) -> None:
    write_model(where / "fixed.onnx", 24, 24)
    from qbench.errors import InputError

    done = ask(where, tmp_path, *more, sizes=sizes, net=net)
    assert isinstance(done.exception, InputError)
    assert said in str(done.exception)
