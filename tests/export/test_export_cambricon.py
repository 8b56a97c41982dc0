"""MagicMind: the JSON files by their schema, and the script against a stand-in that records its calls. The stand-in is ours, made after the public
samples: it proves which calls are made, not that MagicMind takes them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from pydantic import ValidationError
from target_cases import job_for

from qbench.errors import InputError, PlanError, TargetError, ToolError
from qbench.export import export
from qbench.targets.exporters import cambricon, make
from qbench.targets.exporters import cambricon_files as files
from qbench.targets.exporters.cambricon import CambriconExporter

STAND_IN = '''"""A stand-in for magicmind.python.runtime: every call is written down; a node named in REFUSED refuses its precision."""
import json, os


class Status:
    def __init__(self, good=True):
        self.good = good

    def ok(self):
        return self.good

    def __str__(self):
        return "stand-in: not supported"


calls = []


class Range:
    def __init__(self, low, high):
        self.ends = [low, high]


class Tensor:
    def __init__(self, name):
        self.name = name

    def set_dynamic_range(self, one, per_axis):
        calls.append([self.name, "range", [one.ends]])
        return Status()

    def set_dynamic_range_per_axis(self, many, per_axis):
        calls.append([self.name, "range", [r.ends for r in many]])
        return Status()


class Node:
    def __init__(self, name):
        self.name = name

    def get_input(self, index):
        return Tensor(f"{self.name} in {index}")

    def get_output(self, index):
        return Tensor(f"{self.name} out {index}")

    def set_precision(self, index, kind):
        calls.append([f"{self.name} in {index}", "precision", kind])
        return Status(self.name != os.environ.get("REFUSED"))

    def set_output_type(self, index, kind):
        calls.append([f"{self.name} out {index}", "type", kind])
        return Status()


class Network:
    def get_input(self, index):
        return Tensor(f"input {index}")

    def find_node_by_name(self, name):
        return None if name == os.environ.get("MISSING") else Node(name)


class BuilderConfig:
    def parse_from_file(self, path):
        calls.append(["config", "file", json.load(open(path))["precision_config"]["precision_mode"]])
        return Status()


class Model:
    def serialize_to_file(self, path):
        json.dump(calls, open(path, "w"))
        return Status()


class Builder:
    def build_model(self, name, network, config):
        return Model()


class ModelKind:
    kOnnx = "onnx"


class DataType:
    QINT8, QINT16, FLOAT16, FLOAT32 = "QINT8", "QINT16", "FLOAT16", "FLOAT32"
'''
PARSER = '''from magicmind.python.runtime import Status


class Parser:
    def __init__(self, kind):
        pass

    def parse(self, network, path):
        return Status()
'''


def build(folder: Path, where: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """build.py with the stand-in in the place of MagicMind."""
    package = where / "stand_in/magicmind/python/runtime"
    package.mkdir(parents=True, exist_ok=True)
    for place in (package.parent.parent, package.parent):
        (place / "__init__.py").write_text("")
    (package / "__init__.py").write_text(STAND_IN)
    (package / "parser.py").write_text(PARSER)
    return subprocess.run([sys.executable, str(folder / cambricon.SCRIPT)], capture_output=True, text=True, check=False,
                          env={"PYTHONPATH": str(where / "stand_in"), "PATH": "/usr/bin:/bin", **environment})


def test_the_script_sets_every_range_and_precision(tmp_path: Path) -> None:
    job = job_for("mlu270", {"b": "int16", "c": "fp16"})
    export(job, make("cambricon"), tmp_path / "out")
    ran = build(tmp_path / "out", tmp_path)
    assert (ran.returncode, ran.stdout.strip()) == (0, "model.mm is built"), ran.stderr
    calls = json.loads((tmp_path / "out/model.mm").read_text())
    assert ["config", "file", "qint8_mixed_float16"] in calls
    found = {(name, what): value for name, what, value in calls}
    assert (found["a in 0", "precision"], found["a in 1", "precision"], found["b in 0", "precision"], found["c in 0", "precision"]) == ("QINT8", "QINT8", "QINT16", "FLOAT16")
    scale = job.demanded.tensors["x:int8"].scale[0]
    assert found["a in 0", "range"] == found["input 0", "range"] == [[-127 * scale, 127 * scale]]
    assert found["b in 1", "range"] == [[-32767 * s, 32767 * s] for s in job.demanded.tensors["weight:wb"].scale]
    assert ("c in 0", "range") not in found


def test_the_script_stops_at_the_first_refusal_and_names_the_node(tmp_path: Path) -> None:
    export(job_for("mlu270"), make("cambricon"), tmp_path / "out")
    ran = build(tmp_path / "out", tmp_path, REFUSED="b")
    assert ran.returncode == 1 and "MagicMind refuses QINT8 for input 0 of b: stand-in: not supported" in ran.stderr
    ran = build(tmp_path / "out", tmp_path, MISSING="add")
    assert ran.returncode == 1 and "MagicMind's network has no node 'add': its parser renamed or fused it" in ran.stderr


def test_a_range_is_what_cambricons_own_sample_says() -> None:
    """Symmetric 8 bits of scale 0.00787402 are the range {-1, 1}: comment in Cambricon's quantization sample (2020-2023)."""
    from qbench.export import StoredTensor

    (low, high), = cambricon._ranges(StoredTensor("int8", (0.00787402,), (0,)))
    assert (low, high) == pytest.approx((-1.0, 1.0), abs=1e-6)


@pytest.mark.parametrize(("change", "words"), [
    ({"precision_config": {"precision_mode": "qint4", "activation_quant_algo": "symmetric", "weight_quant_granularity": "per_axis"}}, "precision_config.precision_mode"),
    ({"archs": []}, "archs"), ({"archs": [{"mtp_999": [1]}]}, "archs"), ({"graph_shape_mutable": "no"}, "graph_shape_mutable"), ({"colour": "red"}, "colour"),
])
def test_what_the_builders_schema_does_not_allow_is_named(change: dict[str, object], words: str) -> None:
    good = cambricon.builder_config(job_for("mlu370-s4")).model_dump(mode="json")
    files.read_builder(json.dumps(good))
    with pytest.raises(ToolError, match=rf"builder_config.json: .*{words}"):
        files.read_builder(json.dumps(good | change))


def test_a_range_that_is_not_symmetric_is_refused_by_the_reader() -> None:
    body = cambricon.layers(job_for("mlu270")).model_dump(mode="json")
    body["nodes"][0]["inputs"][0]["ranges"] = [[-1.0, 2.0]]
    with pytest.raises(ToolError, match=r"layers.json: node 'a', x:int8: a symmetric range is -x to x"):
        files.read_layers(json.dumps(body))
    with pytest.raises(ToolError, match=r"layers.json: nodes.0.inputs.0.type"):
        body["nodes"][0]["inputs"][0]["type"] = "INT8"
        files.read_layers(json.dumps(body))
    with pytest.raises(ValidationError):
        files.Tensor(index=-1, type="QINT8")


def test_a_configuration_for_another_chip_is_refused(tmp_path: Path) -> None:
    job = job_for("mlu220")
    export(job, make("cambricon"), tmp_path / "out")
    path = tmp_path / "out" / cambricon.BUILDER
    path.write_text(path.read_text().replace("mtp_220", "mtp_372"))
    with pytest.raises(ToolError, match=r"archs are .*mtp_372.*, mlu220 is .*mtp_220"):
        cambricon.read_folder(job, tmp_path / "out")


def test_the_handed_model_is_float_and_holds_the_plans_codes(tmp_path: Path) -> None:
    export(job_for("mlu270"), make("cambricon"), tmp_path / "out")
    model = onnx.load(tmp_path / "out" / cambricon.HANDED)
    assert not {n.op_type for n in model.graph.node} & {"QuantizeLinear", "DequantizeLinear"}
    onnx.checker.check_model(model, full_check=True)


@pytest.mark.parametrize(("precision", "mode"), [({}, "qint8_mixed_float16"), ({u: "int16" for u in "abc"}, "qint16_mixed_float16"), ({u: "fp16" for u in "abc"}, "force_float16"),
                                                 ({"b": "fp32"}, "qint8_mixed_float32"), ({u: "fp32" for u in "abc"}, "force_float32"),
                                                 ({"a": "fp32", "b": "int16", "c": "int16"}, "qint16_mixed_float32")])
def test_the_mode_is_that_of_the_plan(precision: dict[str, str], mode: str) -> None:
    assert cambricon.builder_config(job_for("mlu270", precision)).precision_config.precision_mode == mode


def test_what_ranges_cannot_say_is_refused_naming_the_tensor() -> None:
    with pytest.raises(PlanError, match=r"x:int8: int8 .*the ranges handed to MagicMind are symmetric: use the target's own scheme"):
        CambriconExporter().check(job_for("mlu270", schemes_of="ascend310"))
    with pytest.raises(TargetError, match="which architecture is 'rk3588'"):
        CambriconExporter().check(job_for("rk3588"))
    with pytest.raises(InputError, match="cambricon: no option 'cores'"):
        CambriconExporter().check(job_for("mlu270", options={"cores": "4"}))
