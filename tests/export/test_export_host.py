"""This machine as a target: what runs in integers, scales read back, times, and a run.py that runs."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import exporter_faults
import models
import numpy as np
import onnx
import pytest
from target_cases import job_for

from qbench import toolchains
from qbench.errors import InputError, PlanError
from qbench.export import Contents, StoredTensor, export
from qbench.network import Precision
from qbench.targets.exporters import host_openvino, make
from qbench.targets.exporters.host_onnxruntime import OPTIMIZED

EXPORTERS = ["onnxruntime", "openvino"]
needs_openvino = pytest.mark.skipif(toolchains.find(toolchains.load("openvino")) is None, reason="needs openvino: qbench toolchain install openvino")
BOTH = [pytest.param("onnxruntime"), pytest.param("openvino", marks=needs_openvino)]


def relu_above_zero() -> onnx.ModelProto:
    """Conv a + Relu and Conv b meet in a Concat: one scale, whose zero point is not the lowest code, so that a's Relu is no saturation of its codes."""
    rng = np.random.default_rng(2)
    weights = {"wa": rng.normal(0.0, 0.3, (4, 3, 3, 3)).astype(np.float32), "wb": rng.normal(0.0, 0.3, (4, 3, 3, 3)).astype(np.float32)}
    nodes = [models.node("Conv", ["x", "wa"], ["a0"], "a", pads=[1, 1, 1, 1]), models.node("Relu", ["a0"], ["a1"], "relu_a"),
             models.node("Conv", ["x", "wb"], ["b0"], "b", pads=[1, 1, 1, 1]), models.node("Concat", ["a1", "b0"], ["y"], "concat", axis=1)]
    return models.model(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 8, 8, 8]}, weights)


@pytest.mark.parametrize("name", BOTH)
def test_the_boards_program_runs_here_and_agrees(name: str, tmp_path: Path) -> None:
    export(job_for("host", {"b": "float"}), make(name), tmp_path / "out")
    ran = subprocess.run([sys.executable, str(tmp_path / "out/run.py")], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "y: largest difference" in ran.stdout and "ok" in ran.stdout


@pytest.mark.parametrize("name", BOTH)
def test_the_boards_program_says_when_the_artefact_is_another(name: str, tmp_path: Path) -> None:
    export(job_for("host"), make(name), tmp_path / "out")
    path = tmp_path / "out/golden.npz"
    stored = dict(np.load(path))
    stored["out:y"] = stored["out:y"] + 1.0
    np.savez(path, **stored)
    ran = subprocess.run([sys.executable, str(tmp_path / "out/run.py")], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "WRONG" in ran.stdout


@pytest.mark.parametrize("name", BOTH)
def test_integer_layers_float_layers_and_times_are_told(name: str, tmp_path: Path) -> None:
    body = export(job_for("host", {"b": "float"}), make(name), tmp_path / "out")
    assert (body["facts"]["integer_layers_planned"], body["facts"]["integer_kernels"], body["facts"]["in_float_between_pairs"]) == (2, 2, [])
    assert 0.0 < body["facts"]["latency_ms_median"] <= body["facts"]["latency_ms_p90"]
    rows = {r["name"]: r["actual"] for r in body["read_back"]["rows"]}
    assert (rows["a"], rows["b"], rows["c"]) == ("int8", "fp32", "int8")
    assert body["simulations"][0]["lsb"] <= 1.0
    assert body["requires"]["runtime"].startswith(">=")


def test_a_layer_without_an_integer_kernel_is_announced_not_hidden(tmp_path: Path) -> None:
    """onnxruntime takes a Relu into its integer Conv only where 0 is the lowest code."""
    body = export(job_for("host", proto=relu_above_zero()), make("onnxruntime"), tmp_path / "out")
    assert body["facts"]["in_float_between_pairs"] == ["a"]
    row = next(r for r in body["read_back"]["rows"] if r["name"] == "a")
    assert (row["plan"], row["actual"]) == ("int8 on NPU", "fp32")
    assert "no integer kernel of this runtime takes Conv+Relu here" in row["consent"]
    assert any("1 integer layers run in float between their pairs" in r for r in body["remarks"])


def test_the_same_layer_without_its_pair_is_a_fault(tmp_path: Path) -> None:
    """The announcement is for values of the plan: without the pair they are others."""
    job = job_for("host", proto=relu_above_zero())
    export(job, make("onnxruntime"), tmp_path / "out")
    model = onnx.load(tmp_path / "out" / OPTIMIZED)
    pair = [n for n in model.graph.node if "a1_int8" in " ".join((*n.input, n.name))]
    for node in pair:
        model.graph.node.remove(node)
    onnx.save(model, tmp_path / "out" / OPTIMIZED)
    found = {(d.name, d.what) for d in exporter_faults.differences_now("onnxruntime", job, tmp_path / "out")}
    assert found & {("a", "precision"), ("a1:int8", "missing"), ("concat", "precision")}


def test_scales_that_onnxruntime_shares_are_found_under_the_name_that_is_left(tmp_path: Path) -> None:
    """Two results of one range: its optimizer keeps one of the equal initializers, and the reading follows the node."""
    weights = {"w": np.eye(4, dtype=np.float32)[:, :, None, None], "v": -np.eye(4, dtype=np.float32)[:, :, None, None]}
    nodes = [models.node("Conv", ["x", "w"], ["a"], "first"), models.node("Conv", ["a", "v"], ["b"], "second"), models.node("Conv", ["b", "v"], ["y"], "third")]
    proto = models.model(nodes, {"x": ["N", 4, 4, 4]}, {"y": ["N", 4, 4, 4]}, weights)
    job = job_for("host", proto=proto)
    body = export(job, make("onnxruntime"), tmp_path / "out")
    assert job.demanded.tensors["x:int8"].scale == job.demanded.tensors["y:int8"].scale
    assert body["read_back"]["differences"] == [] and body["read_back"]["silent"] == 0


@needs_openvino
def test_the_other_half_of_a_pair_is_read_too(tmp_path: Path) -> None:
    """OpenVINO has scales twice: as limits of the FakeQuantize and in the DequantizeLinear."""
    from xml.etree import ElementTree

    job = job_for("host")
    export(job, make("openvino"), tmp_path / "out")
    root = ElementTree.parse(tmp_path / "out" / host_openvino.MODEL).getroot()
    layers = {x.attrib["id"]: x for x in root.iterfind("layers/layer")}
    sources = {(e.attrib["to-layer"], e.attrib["to-port"]): e.attrib["from-layer"] for e in root.iterfind("edges/edge")}
    convert = next(i for i, x in layers.items() if x.attrib["name"] == "b1_int8_QuantizeLinear")
    high = layers[sources[sources[convert, "0"], "2"]].find("data")
    assert high is not None
    content, at = bytearray((tmp_path / "out" / host_openvino.WEIGHTS).read_bytes()), int(high.attrib["offset"])
    content[at:at + 4] = (np.frombuffer(bytes(content[at:at + 4]), "<f4") * np.float32(1.5)).tobytes()
    (tmp_path / "out" / host_openvino.WEIGHTS).write_bytes(content)
    found = {(d.name, d.what) for d in exporter_faults.differences_now("openvino", job, tmp_path / "out")}
    assert ("b1:int8", "scale") in found


def test_openvino_refuses_uint16_naming_the_tensor() -> None:
    job = job_for("host")
    wide = StoredTensor("uint16", (1e-4,), (100,))
    job = dataclasses.replace(job, demanded=Contents(job.demanded.layers, {**job.demanded.tensors, "a1:int16": wide}, job.demanded.source))
    with pytest.raises(PlanError, match=r"a1:int16: uint16, which OpenVINO's CPU plugin computes wrongly .*int16 activations"):
        make("openvino").check(job)


@pytest.mark.parametrize("name", EXPORTERS)
def test_there_are_no_options(name: str) -> None:
    with pytest.raises(InputError, match=rf"{name}: no option 'threads'; it takes none"):
        make(name).check(job_for("host", options={"threads": "1"}))


def test_without_openvino_its_model_is_written_and_how_to_get_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchains, "find", lambda t: None)
    body = export(job_for("host"), make("openvino"), tmp_path / "out")
    assert body["status"] == "not compiled here"
    assert "openvino is not here: qbench toolchain install openvino" in body["why_not"]
    assert (tmp_path / "out" / host_openvino.HANDED).is_file()
    assert json.loads((tmp_path / "out/manifest.json").read_text())["read_back"]["source"] == ""


def test_a_float_plan_has_no_integer_kernel(tmp_path: Path) -> None:
    job = job_for("host", {"a": "float", "b": "float", "c": "float"})
    body = export(job, make("onnxruntime"), tmp_path / "out")
    assert set(job.plan.precision.values()) == {Precision.FP32}
    assert (body["facts"]["integer_kernels"], body["read_back"]["differences"]) == (0, [])


def test_a_float_layer_between_integers_may_run_on_codes_and_is_announced(tmp_path: Path) -> None:
    """Relu and Mul alone, planned in float: onnxruntime makes one integer kernel of DequantizeLinear, Mul, QuantizeLinear."""
    rng = np.random.default_rng(8)
    weights = {"wa": rng.normal(0.0, 0.3, (4, 3, 3, 3)).astype(np.float32), "wb": rng.normal(0.0, 0.3, (4, 3, 3, 3)).astype(np.float32),
               "wc": rng.normal(0.0, 0.3, (4, 4, 1, 1)).astype(np.float32)}
    nodes = [models.node("Conv", ["x", "wa"], ["a"], "a"), models.node("Conv", ["x", "wb"], ["b"], "b"), models.node("Mul", ["a", "b"], ["m"], "mul"),
             models.node("Conv", ["m", "wc"], ["y"], "c")]
    proto = models.model(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 4, 6, 6]}, weights)
    body = export(job_for("host", {"mul": "float"}, proto), make("onnxruntime"), tmp_path / "out")
    row = next(r for r in body["read_back"]["rows"] if r["name"] == "mul")
    assert (row["plan"].split()[0], row["actual"]) == ("fp32", "int8")
    assert "it stands between integers and has no weights" in row["consent"] and "QLinearMul" in row["consent"]
    assert body["facts"]["in_float_between_pairs"] == []
    assert body["simulations"][0]["lsb"] <= 1.0
