"""The real rknn-toolkit2: builds, simulates, reads back. Skipped where it is not installed (qbench toolchain install rknn)."""

from __future__ import annotations

import json
from pathlib import Path

import models
import numpy as np
import onnx
import pytest
from export_cases import job
from toolchain_marks import toolchain

from qbench import toolchains
from qbench.errors import ToolError
from qbench.export import export
from qbench.files import sha256
from qbench.targets.exporters import make
from qbench.targets.exporters.workers import ask

pytestmark = toolchain("rknn")


def test_the_toolchain_is_what_its_file_pins() -> None:
    status = toolchains.check("rknn")
    assert status.ready, status.broken
    assert status.version == status.toolchain.version


def test_an_int8_plan_is_bit_exact_and_gives_the_same_bytes_again(tmp_path: Path) -> None:
    first, second = (export(job(), make("rknn"), tmp_path / n) for n in ("one", "two"))
    assert first["status"] == "compiled here" and first["simulations"][-1]["lsb"] == 0.0
    assert first["read_back"]["differences"] == [] and first["facts"]["total_cycles"] > 0 and first["facts"]["on_cpu"] == []
    same = [f["file"] for f in first["files"] if f["file"] != "build.log"]                    # the log has time stamps
    assert "model.rknn" in same and [sha256(tmp_path / "one" / f) for f in same] == [sha256(tmp_path / "two" / f) for f in same]
    assert second["requires"] == {"runtime": ">=2.5.0"}


@pytest.mark.parametrize(("precision", "path"), [({"b": "fp16"}, "A"), ({"b": "int16", "a": "fp16"}, "B")])
def test_a_mixed_plan_arrives_layer_by_layer(tmp_path: Path, precision: dict[str, str], path: str) -> None:
    made = job(precision)
    body = export(made, make("rknn"), tmp_path / "out")
    assert body["conventions"]["path"].startswith(path)
    rows = {r["name"]: r["actual"] for r in body["read_back"]["rows"] if r["kind"] == "layer"}
    assert rows == {k: f"{made.demanded.layers[k].precision} on NPU" for k in ("a", "b", "c")}
    assert json.loads((tmp_path / "out/manifest.json").read_text())["simulations"][-1]["sqnr_db"] > 25.0


def swish() -> onnx.ModelProto:
    """Conv, SiLU in two operators, Conv: the toolkit makes one operator of the first two."""
    rng = np.random.default_rng(3)
    weights = {"wa": rng.normal(0, 0.3, (8, 3, 3, 3)).astype(np.float32), "wb": rng.normal(0, 0.3, (8, 8, 3, 3)).astype(np.float32)}
    nodes = [models.node("Conv", ["x", "wa"], ["a"], "a", pads=[1, 1, 1, 1]), models.node("Sigmoid", ["a"], ["g"], "gate"), models.node("Mul", ["a", "g"], ["s"], "silu"),
             models.node("Conv", ["s", "wb"], ["y"], "b", pads=[1, 1, 1, 1])]
    return models.model(nodes, {"x": [1, 3, 16, 16]}, {"y": [1, 8, 16, 16]}, weights)


def test_a_convolution_with_silu_arrives_as_planned(tmp_path: Path) -> None:
    body = export(job(proto=swish()), make("rknn"), tmp_path / "out")
    assert body["read_back"]["differences"] == [] and set(body["layers"]) == {"int8"}
    assert body["facts"]["on_cpu"] == [] and body["simulations"][-1]["sqnr_db"] > 25.0


def attention() -> onnx.ModelProto:
    """One head over 16 places of 32 features: three products with a bias, MatMul, Softmax, MatMul, a product with a bias, the residual Add."""
    rng = np.random.default_rng(11)
    weights: dict[str, models.Array] = {"half": np.array(32.0 ** -0.5, np.float32)}
    nodes = []
    for name in ("q", "k", "v", "o"):
        weights |= {f"w{name}": rng.normal(0.0, 0.2, (32, 32)).astype(np.float32), f"b{name}": rng.normal(0.0, 0.1, 32).astype(np.float32)}
        nodes += [models.node("MatMul", ["c" if name == "o" else "x", f"w{name}"], [f"{name}0"], f"mul_{name}"),
                  models.node("Add", [f"{name}0", f"b{name}"], [f"{name}1"], f"bias_{name}")]
    middle = [models.node("Transpose", ["k1"], ["kt"], "turn", perm=[0, 2, 1]), models.node("MatMul", ["q1", "kt"], ["s"], "scores"),
              models.node("Mul", ["s", "half"], ["t"], "scale"), models.node("Softmax", ["t"], ["p"], "softmax", axis=-1), models.node("MatMul", ["p", "v1"], ["c"], "values")]
    return models.model([*nodes[:6], *middle, *nodes[6:], models.node("Add", ["x", "o1"], ["y"], "residual")], {"x": [1, 16, 32]}, {"y": [1, 16, 32]}, weights)


def test_attention_in_int8_goes_in_as_ranges_and_arrives(tmp_path: Path) -> None:
    """Its Q/DQ form is refused by the toolkit, or crashes it."""
    body = export(job(proto=attention()), make("rknn"), tmp_path / "out")
    assert body["read_back"]["differences"] == [] and body["conventions"]["path"].startswith("B")
    assert any("path A was refused" in r for r in body["remarks"]) and body["facts"]["on_cpu"] == []


def test_what_the_toolkit_refuses_is_told_in_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "net.onnx"
    broken.write_bytes(b"no model")
    request = {"do": "build", "platform": "rk3588", "level": 0, "model": "net.onnx"}
    with pytest.raises(ToolError, match=r"^building net: .+") as caught:
        ask(toolchains.need("rknn"), "rknn", request, folder=tmp_path, seconds=300.0, what="building net")
    assert "\n" not in str(caught.value)
