"""Core ML packages: what is refused, what stands in for INT16, what the package holds, the script for macOS."""

from __future__ import annotations

import ast
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import models
import numpy as np
import onnx
import pytest
from export_cases import three_convs
from onnx import numpy_helper
from target_cases import job_for

from qbench import qdq, toolchains
from qbench.errors import InputError, PlanError, ToolError
from qbench.export import export
from qbench.network import Precision
from qbench.plan import Granularity, make_plan
from qbench.runtime import Session
from qbench.targets import load
from qbench.targets.exporters import coreml, coreml_file, make
from qbench.targets.exporters.coreml_half import with_half_scales
from qbench.targets.exporters.coreml_onnx import to_onnx
from qbench.workbench.exporting import ExportOptions, export_plan

NEEDED = pytest.mark.skipif(toolchains.find(toolchains.load("coreml")) is None, reason="needs coreml: qbench toolchain install coreml")


def test_without_coremltools_what_its_worker_needs_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchains, "find", lambda t: None)
    body = export(job_for("ane-m2"), make("coreml"), tmp_path / "out")
    assert body["status"] == "not compiled here" and "qbench toolchain install coreml" in body["why_not"]
    assert {"program.json", "arrays.npz"} <= {f["file"] for f in body["files"]} and not (tmp_path / "out" / coreml.ON_MAC).exists()


@NEEDED
@pytest.mark.toolchain("coreml")
def test_the_script_for_macos_refuses_elsewhere(tmp_path: Path) -> None:
    export(job_for("ane-a16"), make("coreml"), tmp_path / "out")
    source = (tmp_path / "out" / coreml.ON_MAC).read_text(encoding="utf-8")
    called = {n.attr for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Attribute)}
    assert {"compile_model", "load_from_path", "get_compute_device_usage_for_mlprogram_operation"} <= called
    if sys.platform != "darwin":
        done = subprocess.run([sys.executable, str(tmp_path / "out" / coreml.ON_MAC)], capture_output=True, text=True, check=False)
        assert done.returncode == 2 and "needs macOS" in done.stdout


@pytest.mark.parametrize("options", [{"int16": "int8"}, {"int8": "fp16"}])
def test_the_only_option_is_fp16_for_int16(options: dict[str, str]) -> None:
    (key, value), = options.items()
    with pytest.raises(InputError, match=f"coreml: no option '{key}={value}'; there is int16=fp16"):
        make("coreml").check(job_for("ane-m1", options=options))


def test_a_scale_that_float16_does_not_hold_is_refused() -> None:
    job = job_for("ane-a17pro")
    tiny = dataclasses.replace(job.demanded.tensors["a1:int8"], scale=(1e-9,))
    spoilt = dataclasses.replace(job, demanded=dataclasses.replace(job.demanded, tensors={**job.demanded.tensors, "a1:int8": tiny}))
    with pytest.raises(PlanError, match=r"a1:int8: scale 1e-09 is no float16, the type of Core ML's scales: keep its layer in FP32"):
        make("coreml").check(spoilt)


@NEEDED
@pytest.mark.toolchain("coreml")
def test_int16_becomes_fp16_only_when_asked(tmp_path: Path) -> None:
    onnx.save(three_convs(), tmp_path / "net.onnx")
    prepared = models.prepare(tmp_path / "net.onnx")
    schemes = {str(p.precision): p.scheme for p in load("mlu270").precisions if p.scheme is not None}
    schemes["int8"] = next(p.scheme for p in load("ane-a17pro").precisions if p.scheme is not None)
    chosen = {u.name: Precision.INT16 if u.name == "b" else Precision.INT8 for u in prepared.network.units}
    plan = make_plan(prepared.network, chosen, models.observe(prepared, job_for("ane-m1").samples), schemes, calibrator="minmax", granularity=Granularity.PER_CHANNEL,
                     target="", toolkit="")
    plan.save(tmp_path / "plan.json")
    wanted = ExportOptions(tmp_path / "plan.json", "ane-a17pro", tmp_path / "out", tmp_path / "net.onnx")
    with pytest.raises(InputError, match="int16"):
        export_plan(wanted)
    body = export_plan(dataclasses.replace(wanted, options={"int16": "fp16"}))
    rows = {r["name"]: r for r in body["read_back"]["rows"]}
    assert rows["b"]["actual"] == "fp16" and "FP16 by --option int16=fp16" in rows["b"]["silent"]
    assert rows["a1:int16"]["actual"] is None and "Core ML has no 16-bit integers" in rows["a1:int16"]["silent"]
    assert (rows["a"]["actual"], rows["c"]["actual"]) == ("int8", "int8")
    assert body["simulations"][0]["lsb"] == 0.0


@NEEDED
@pytest.mark.toolchain("coreml")
def test_the_package_holds_the_plans_codes_and_float16_scales(tmp_path: Path) -> None:
    """Oracle: the initializers of the evaluated model, by numpy."""
    export(job_for("ane-a17pro", {"b": "fp32"}), make("coreml"), tmp_path / "out")
    plan = {i.name: numpy_helper.to_array(i) for i in onnx.load(tmp_path / "out/model.qdq.onnx").graph.initializer}
    program = coreml_file.read(tmp_path / "out" / coreml.PACKAGE)
    weights = {next(iter(o.outputs)): o for o in program.operations if o.kind == "constexpr_affine_dequantize"}
    assert set(weights) == {"wa_dq", "wc_dq"}
    for name, op in weights.items():
        stem = name.removesuffix("_dq")
        np.testing.assert_array_equal(op.constant("quantized_data"), plan[f"{stem}_q"])
        np.testing.assert_array_equal(op.constant("scale"), plan[f"{stem}_scale"].astype(np.float16))
    types = {name: kind for op in program.operations for name, (kind, _) in op.outputs.items()}
    assert (types["a0"], types["b0"], types["b1"]) == ("float16", "float32", "float32")
    pairs = {n: o.constant("scale").dtype.name for o in program.operations if o.kind == "quantize" for n in o.outputs}
    assert pairs["a1_int8_q"] == "float16" and pairs["b1_int8_q"] == "float32"
    spec = json.loads((tmp_path / "out" / coreml.PACKAGE / "Manifest.json").read_text())
    assert set(spec["itemInfoEntries"]) == {f"00000000-0000-4000-8000-00000000000{n}" for n in (0, 1)}


@NEEDED
@pytest.mark.toolchain("coreml")
def test_a_changed_weight_is_seen_by_computing_the_package(tmp_path: Path) -> None:
    """Read-back compares scales; codes are proved by their outputs."""
    job = job_for("ane-a17pro")
    export(job, make("coreml"), tmp_path / "out")
    path = tmp_path / "out" / coreml.PACKAGE / coreml_file.WEIGHTS
    before = Session(qdq.to_bytes(with_half_scales(job)), simulate=True).run(job.golden)["y"]

    def computed() -> models.Array:
        return Session(to_onnx(coreml_file.read(tmp_path / "out" / coreml.PACKAGE)).SerializeToString(), simulate=True).run(job.golden)["y"]

    np.testing.assert_array_equal(computed(), before)
    content = bytearray(path.read_bytes())
    content[-40] ^= 0x40
    content[128] ^= 0x40
    path.write_bytes(content)
    assert np.abs(computed() - before).max() > 0.0


def test_a_damaged_package_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model.mlpackage"
    (folder / coreml_file.MODEL).parent.mkdir(parents=True)
    (folder / coreml_file.MODEL).write_bytes(b"\x0a\xff\x01ab")
    with pytest.raises(ToolError, match="ends inside a field"):
        coreml_file.read(folder)
    (folder / coreml_file.MODEL).write_bytes(b"\x08\x08")
    with pytest.raises(ToolError, match="holds no ML program"):
        coreml_file.read(folder)
