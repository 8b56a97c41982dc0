"""The real onnxruntime-qnn: compiles, simulates, reads back. Skipped where it is not installed (qbench toolchain install qnn)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import models
import numpy as np
import onnx
import pytest
from export_cases import job
from export_forms import enlarged, joined
from toolchain_marks import toolchain

from qbench import qdq, toolchains
from qbench.errors import ExportMismatch, ToolError
from qbench.export import Job, export
from qbench.files import sha256
from qbench.targets import load
from qbench.targets.exporters import make, qnn
from qbench.targets.exporters.qnn_model import handed

pytestmark = toolchain("qnn")
SCHEMES = {str(p.precision): p.scheme for p in load("hexagon-8gen3").precisions if p.scheme is not None}


def hexagon_job(precision: Mapping[str, str] | None = None, target: str = "hexagon-8gen3", proto: onnx.ModelProto | None = None) -> Job:
    return dataclasses.replace(job(precision, proto, schemes=SCHEMES), target=load(target), toolkit="2.42")


def test_the_toolchain_is_what_its_file_pins() -> None:
    status = toolchains.check("qnn")
    assert status.ready, status.broken
    assert status.version == status.toolchain.version


def test_an_int8_plan_is_within_a_step_in_every_layer_and_gives_the_same_bytes_again(tmp_path: Path) -> None:
    first, second = (export(hexagon_job(), make("qnn"), tmp_path / n) for n in ("one", "two"))
    assert first["status"] == "compiled here" and first["read_back"]["differences"] == []
    assert first["simulations"][-1]["lsb"] <= 1.0 and first["simulations"][-1]["limit_lsb"] == 1.0 and first["simulations"][0]["sqnr_db"] > 30.0
    assert second["requires"] == {"runtime": ">=2.51.0"}
    names = [f["file"] for f in first["files"]]
    assert qnn.BINARY in names and [sha256(tmp_path / "one" / n) for n in names] == [sha256(tmp_path / "two" / n) for n in names]


def test_a_mixed_plan_arrives_layer_by_layer(tmp_path: Path) -> None:
    """c in FP16 lies between integer layers: onnxruntime by itself would make it an 8-bit one."""
    made = hexagon_job({"b": "int16", "c": "fp16"})
    body = export(made, make("qnn"), tmp_path / "out")
    assert {r["name"]: r["actual"] for r in body["read_back"]["rows"] if r["kind"] == "layer"} == {"a": "int8 on NPU", "b": "int16 on NPU", "c": "fp16 on NPU"}
    assert {s["what"].rpartition(", ")[2] for s in body["simulations"][1:]} == {"8-bit results", "16-bit results"}
    middle = export(hexagon_job({"b": "fp16"}), make("qnn"), tmp_path / "middle")
    assert {r["name"]: r["actual"] for r in middle["read_back"]["rows"] if r["kind"] == "layer"}["b"] == "fp16 on NPU"


def test_a_signed_concat_behind_a_relu_is_compiled(tmp_path: Path) -> None:
    """The Conv and the Relu whose codes a shared scale leaves partly unused: refused without a pair between them."""
    body = export(hexagon_job(proto=joined("Relu")), make("qnn"), tmp_path / "out")
    assert body["read_back"]["differences"] == [] and body["simulations"][-1]["lsb"] <= 1.0


def test_an_old_chip_is_compiled_as_itself_and_simulated_as_another(tmp_path: Path) -> None:
    body = export(hexagon_job({"b": "int16"}, "hexagon-qcs6490"), make("qnn"), tmp_path / "out")
    assert body["facts"]["htp_arch"] == "68" and body["simulations"][0]["what"].endswith("V73")
    assert any("was not run" in r for r in body["remarks"])
    assert json.loads((tmp_path / "out" / qnn.TRACE).read_text())["soc_traces"][0]["compilation_target"]["htp_arch"] == "V68"


def test_what_the_htp_does_not_take_is_named_and_not_left_to_the_cpu(tmp_path: Path) -> None:
    made = hexagon_job()
    nodes = [models.node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]), models.node("Det", ["c"], ["y"], "determinant")]
    onnx.save(models.model(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 3]}, {"w": np.ones((3, 3, 3, 3), np.float32)}), tmp_path / "net.onnx")
    simulator = qnn.HtpSimulator(made, tmp_path, tmp_path / "work", toolchains.need("qnn"), qnn.provider_options(made.target))
    with pytest.raises(ToolError, match=r"the HTP does not take node 'determinant' \(Det\): "):
        simulator.run("refused", tmp_path / "net.onnx", made.samples, simulate=False)


def test_a_changed_scale_in_what_is_compiled_fails_the_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault goes into the file that the compiler gets, not into what is read back."""
    save = qdq.save

    def spoiled(model: object, path: Path) -> None:
        save(model, path)  # type: ignore[arg-type]
        if path.name == qnn.HANDED:
            proto = onnx.load(path)
            (scale,) = (t for t in proto.graph.initializer if t.name == "a1_int8_scale")
            scale.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(scale) * np.float32(1.01), scale.name))
            onnx.save(proto, path)

    monkeypatch.setattr(qdq, "save", spoiled)
    with pytest.raises(ExportMismatch, match=r"a1:int8: scale "):
        export(hexagon_job(), make("qnn"), tmp_path / "out")


def test_a_layer_of_another_type_in_what_is_compiled_fails_the_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan says FP16 for c, and the compiler gets the model of the plan that has it in INT8."""
    save, other = qdq.save, hexagon_job()

    def spoiled(model: object, path: Path) -> None:
        save(handed(other) if path.name == qnn.HANDED else model, path)  # type: ignore[arg-type]

    monkeypatch.setattr(qdq, "save", spoiled)
    with pytest.raises(ExportMismatch, match=r"c: precision fp16 -> int8"):
        export(hexagon_job({"c": "fp16"}), make("qnn"), tmp_path / "out")


def test_a_linear_resize_stays_in_integers(tmp_path: Path) -> None:
    """Between two scales the provider would take it in FP16."""
    body = export(hexagon_job(proto=enlarged()), make("qnn"), tmp_path / "out")
    assert body["read_back"]["differences"] == [] and body["layers"] == {"int8": 3}
    assert body["simulations"][-1]["lsb"] <= 1.0
