"""Quantized .tflite files: what is refused, what the file holds, the line of ncc-tflite."""

from __future__ import annotations

from pathlib import Path

import models
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from target_cases import attention, job_for

from qbench import toolchains
from qbench.errors import InputError, PlanError, ToolError
from qbench.export import export
from qbench.targets.exporters import make, mediatek, tflite_file

NEEDED = pytest.mark.skipif(toolchains.find(toolchains.load("mediatek")) is None, reason="needs mediatek: qbench toolchain install mediatek")


def test_without_litert_what_its_worker_needs_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchains, "find", lambda t: None)
    body = export(job_for("mediatek-apu"), make("mediatek"), tmp_path / "out")
    assert body["status"] == "not compiled here" and "qbench toolchain install mediatek" in body["why_not"]
    assert {"program.json", "arrays.npz", "compile.sh"} <= {f["file"] for f in body["files"]}


@pytest.mark.parametrize(("precision", "options", "line"), [
    ({}, {}, "ncc-tflite --arch=mdla3.0 --relax-fp32 -o model.dla model.tflite\n"), ({"b": "fp32"}, {"arch": "mdla5.3"}, "ncc-tflite --arch=mdla5.3 -o model.dla model.tflite\n")])
def test_the_line_of_the_compiler(precision: dict[str, str], options: dict[str, str], line: str) -> None:
    assert mediatek.script(job_for("mediatek-apu", precision, options=options)).endswith(line)


@pytest.mark.parametrize("arch", ["3.0", "mdla", "mdla3.0 --fast"])
def test_the_architecture_is_checked(arch: str) -> None:
    with pytest.raises(InputError, match=f"mediatek: no option 'arch={arch}'; there is arch=mdlaX.Y"):
        make("mediatek").check(job_for("mediatek-apu", options={"arch": arch}))


def test_what_the_kernels_do_not_take_is_refused() -> None:
    with pytest.raises(PlanError, match=r"x:int8: uint8 scale .*LiteRT's kernels take int8"):
        make("mediatek").check(job_for("mediatek-apu", schemes_of="host"))
    with pytest.raises(PlanError, match="FP16 and FP32 layers, and ncc-tflite has one switch for all"):
        make("mediatek").check(job_for("mediatek-apu", {"a": "fp16", "b": "fp32"}))


@NEEDED
@pytest.mark.toolchain("mediatek")
@pytest.mark.parametrize(("precision", "bias"), [("int8", "int32"), ("int16", "int64")])
def test_the_file_holds_the_plans_codes(precision: str, bias: str, tmp_path: Path) -> None:
    """Oracle: the initializers of the evaluated model. Scales are the plan's own, bit by bit."""
    job = job_for("mediatek-apu", dict.fromkeys("abc", precision))
    body = export(job, make("mediatek"), tmp_path / "out")
    plan = {i.name: numpy_helper.to_array(i) for i in onnx.load(tmp_path / "out/model.qdq.onnx").graph.initializer}
    held = tflite_file.read(tmp_path / "out" / mediatek.MODEL).tensors
    data = (tmp_path / "out" / mediatek.MODEL).read_bytes()
    for name in ("wa", "wb", "wc"):
        assert held[f"{name}_dq"].scale == tuple(float(s) for s in plan[f"{name}_scale"])
        assert plan[f"{name}_q"].transpose(0, 2, 3, 1).tobytes() in data, "codes, output channels first, N H W C"
    for name in ("a0", "b0", "c0"):
        assert held[f"{name}_bias"].dtype == bias
    assert plan["ba_q"].astype(bias).tobytes() in data
    assert body["read_back"]["announced"] == 0


@NEEDED
@pytest.mark.toolchain("mediatek")
def test_softmax_has_the_fixed_scale_and_another_plan_is_converted(tmp_path: Path) -> None:
    """B12: the kernel insists on 1/256 and -128."""
    job = job_for("mediatek-apu", proto=attention())
    assert str(job.demanded.tensors["p:int8"]) == "int8 scale 0.00390625 zero point -128"
    export(job, make("mediatek"), tmp_path / "own")
    other = job_for("mediatek-apu", proto=attention(), schemes_of="ane-a17pro")
    body = export(other, make("mediatek"), tmp_path / "other")
    model = tflite_file.read(tmp_path / "other" / mediatek.MODEL)
    maker = model.maker("p_int8_q")
    if model.tensors["p_int8_q"].scale != (1 / 256,):
        assert maker is not None and maker.code == tflite_file.QUANTIZE
        assert (model.tensors[maker.inputs[0]].scale, model.tensors[maker.inputs[0]].zero_point) == ((1 / 256,), (-128,))
    assert body["read_back"]["differences"] == []


@NEEDED
@pytest.mark.toolchain("mediatek")
@pytest.mark.parametrize("attributes", [{}, {"auto_pad": "SAME_UPPER"}, {"pads": [0, 0, 1, 1]}, {"pads": [0, 0, 1, 1], "count_include_pad": 1},
                                        {"pads": [1, 1, 1, 1], "count_include_pad": 1}])
def test_an_average_is_taken_before_it_is_stored_in_a_smaller_range(attributes: dict[str, object], tmp_path: Path) -> None:
    """Averages reach less far than what they are taken of: converting first would saturate."""
    proto = models.model([models.node("AveragePool", ["x"], ["y"], "average", kernel_shape=[2, 2], strides=[1, 1], **attributes)], {"x": [1, 2, 5, 6]}, {"y": None}, {})
    job = job_for("mediatek-apu", {"average": "int8"}, proto=proto)
    assert job.demanded.tensors["y:int8"].scale[0] < job.demanded.tensors["x:int8"].scale[0]
    assert export(job, make("mediatek"), tmp_path / "out")["simulations"][0]["lsb"] <= 2.0


@NEEDED
@pytest.mark.toolchain("mediatek")
def test_padding_that_is_not_counted_is_refused(tmp_path: Path) -> None:
    proto = models.model([models.node("AveragePool", ["x"], ["y"], "average", kernel_shape=[2, 2], pads=[1, 1, 1, 1])], {"x": [1, 2, 5, 6]}, {"y": None}, {})
    with pytest.raises(ToolError, match=r"AveragePool \(node 'average'\): LiteRT counts its padding in the average"):
        export(job_for("mediatek-apu", proto=proto), make("mediatek"), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_tflite_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tflite").write_bytes(b"nothing of it")
    with pytest.raises(ToolError, match=r"is no \.tflite file"):
        tflite_file.read(tmp_path / "x.tflite")
    (tmp_path / "x.tflite").write_bytes(b"\xff\xff\x00\x00TFL3")
    with pytest.raises(ToolError, match="is damaged"):
        tflite_file.read(tmp_path / "x.tflite")


def test_float_codes_keep_their_numbers() -> None:
    assert np.dtype(tflite_file.TYPES[9]) == np.int8 and np.dtype(tflite_file.TYPES[7]) == np.int16
