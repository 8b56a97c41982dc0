"""AMCT and ATC: files by their documented grammars, the seven parameters, the log. No vendor's tool is here; the log lines are made from the
documented messages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import exporter_faults
import models
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper
from target_cases import job_for

from qbench.errors import InputError, PlanError, ToolError
from qbench.export import export
from qbench.plan import Granularity
from qbench.targets.exporters import ascend, make
from qbench.targets.exporters import ascend_amct as amct
from qbench.targets.exporters import ascend_atc as atc
from qbench.targets.exporters import ascend_log as log

scales = st.floats(2.0**-40, 2.0**20, width=32)


def head() -> onnx.ModelProto:
    """Conv + Relu, then a Gemm over the flattened result."""
    rng = np.random.default_rng(4)
    weights = {"w": rng.normal(0.0, 0.3, (4, 3, 3, 3)).astype(np.float32), "g": rng.normal(0.0, 0.3, (144, 5)).astype(np.float32),
               "gb": rng.normal(0.0, 0.3, 5).astype(np.float32)}
    nodes = [models.node("Conv", ["x", "w"], ["c0"], "conv"), models.node("Relu", ["c0"], ["c1"], "relu"), models.node("Flatten", ["c1"], ["f"], "flat"),
             models.node("Gemm", ["f", "g", "gb"], ["y"], "gemm")]
    return models.model(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 5]}, weights)


@given(st.lists(st.builds(amct.Record, st.text("abc/._0", min_size=1), scales, st.integers(-128, 127), st.lists(scales, min_size=1, max_size=5).map(tuple)),
                max_size=4, unique_by=lambda r: r.layer))
def test_a_record_reads_as_it_was_written(records: list[amct.Record]) -> None:
    """float32 in text and back, bit for bit."""
    assert amct.read_record(amct.record_text(records)) == tuple(records)


@pytest.mark.parametrize(("text", "words"), [
    ('record { key: "a" value { scale_x: 1.0 } }', "grammar allows: .*scale_x"),
    ('record { key: "a" value { scale_d: "one" } }', "grammar allows"),
    ('record { key: "a" value { scale_d: 1.0 scale_w: 1.0 offset_w: 3 } }', r"layer 'a' has offset_w \[3\]; AMCT takes a 0"),
    ('record { key: "a" value { scale_d: 1.0 scale_w: 1.0 } }', r"layer 'a' has offset_w \[\]"),
    ('record { key: "a" value { scale_d: -1.0 } }', "layer 'a' has scale_d -1, offset_d 0: scales are positive"),
    ('record { key: "a" value { scale_d: 1.0 offset_d: 200 } }', "offsets lie in int8"),
])
def test_what_the_records_grammar_does_not_allow_is_named(text: str, words: str) -> None:
    with pytest.raises(ToolError, match=rf"record.txt.*{words}"):
        amct.read_record(text)


def test_the_simple_configuration_reads_as_it_was_written_and_refuses_other_fields() -> None:
    config = amct.Config(True, ("a", "b/c"))
    assert amct.read_config(amct.config_text(config)) == config
    with pytest.raises(ToolError, match=r"quant.cfg is not what AMCT's grammar allows: .*quant_layers"):
        amct.read_config('quant_layers: "a"')


def command(**changes: object) -> atc.Command:
    given: Mapping[str, object] = {"framework": "5", "soc_version": "Ascend310P3", "input_shape": {"x": (1, 3, 16, 16)}, "input_format": "NCHW", "output": "model",
                                   "precision_mode": "force_fp16", "log": "error", "model": "m.onnx"}
    return atc.Command(**(dict(given) | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(("changes", "words"), [
    ({"framework": "3"}, r"atc --framework=3: an ONNX model is 5"),
    ({"soc_version": "Ascend310P"}, r"atc --soc_version=Ascend310P: ascend310p is exactly Ascend310P3 or Ascend310P1 .*--option soc_version=NAME"),
    ({"input_shape": {"x": (-1, 3, 16, 16)}}, r"atc --input_shape=x:-1,3,16,16: the model's inputs are x \[1, 3, 16, 16\]; all of them, fixed"),
    ({"input_shape": {}}, r"atc --input_shape=: the model's inputs are x"),
    ({"input_format": "NHWC"}, r"atc --input_format=NHWC: this model's inputs are NCHW"),
    ({"output": "a b"}, r"atc --output=a b: a name of letters"),
    ({"precision_mode": "force_fp32"}, r"atc --precision_mode=force_fp32: not for a model that AMCT quantized; use one of force_fp16"),
    ({"precision_mode": "int8"}, r"atc --precision_mode=int8: known are force_fp16"),
    ({"log": "loud"}, r"atc --log=loud: known are error"),
])
def test_each_of_the_seven_parameters_is_checked_before(changes: dict[str, object], words: str) -> None:
    network = job_for("ascend310p").prepared.network
    atc.check_command(command(), network, "ascend310p")
    with pytest.raises(InputError, match=words):
        atc.check_command(command(**changes), network, "ascend310p")


def test_atcs_line_reads_as_it_was_written_and_a_broken_one_is_refused() -> None:
    wanted = command(input_shape={"image": (1, 3, 8, 8), "in:2": (1, 4)}, input_format="ND", keep_dtype="keep.cfg")
    assert atc.read_command(f"#!/bin/sh\n{wanted.line()} > atc.log 2>&1\n") == wanted
    with pytest.raises(ToolError, match="there is none"):
        atc.read_command("echo hello")


def test_data_types_read_as_they_were_written_and_a_broken_line_is_named() -> None:
    rows = (atc.Dtypes("a/Conv", ("float16", "float16"), ("float16",)), atc.Dtypes("cast", ("int64",), ("float16",)))
    assert atc.read_customize(atc.customize_text(rows)) == rows
    assert atc.read_keep(atc.keep_text(("a", "b"))) == ("a", "b")
    with pytest.raises(ToolError, match=r"customize_dtypes.cfg, line 2: 'nonsense' is not Opname::InputDtype"):
        atc.read_customize("a::InputDtype:float16,OutputDtype:float16\nnonsense\n")
    with pytest.raises(ToolError, match=r"line 1: 'float8' is no data type"):
        atc.read_customize("a::InputDtype:float8,OutputDtype:float16\n")


def test_amct_finds_the_plans_codes_again(tmp_path: Path) -> None:
    """Oracle: QuantizeLinear by numpy on the float weights of the handed model against the codes of the evaluated one."""
    job = job_for("ascend310p")
    export(job, make("ascend"), tmp_path / "out")
    handed = {i.name: numpy_helper.to_array(i) for i in onnx.load(tmp_path / "out" / ascend.HANDED).graph.initializer}
    plan = {i.name: numpy_helper.to_array(i) for i in onnx.load(tmp_path / "out/model.qdq.onnx").graph.initializer}
    for name in ("wa", "wb", "wc"):
        scale = handed[f"{name}_pair_scale"].reshape(-1, 1, 1, 1)
        np.testing.assert_array_equal(np.rint(handed[f"{name}_float"] / scale).astype(np.int8), plan[f"{name}_q"])
    assert not any(n.op_type == "DequantizeLinear" and n.inputs[0].const_value is not None  # type: ignore[union-attr]
                   for n in ir.load(tmp_path / "out" / ascend.HANDED).graph), "whole pairs only"


def test_scales_per_channel_of_a_gemm_are_refused_and_merged_by_consent(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"weight:g of Gemm 'gemm' has 5 scales; AMCT: Gemm and MatMul take one scale .*--scale per-layer.*weights=per-tensor") as refused:
        export(job_for("ascend310p", proto=head(), schemes_of="mediatek-apu"), make("ascend"), tmp_path / "no")
    assert refused.value.exit_code == 2 and list(tmp_path.iterdir()) == []
    job = job_for("ascend310p", proto=head(), schemes_of="mediatek-apu", options={"weights": "per-tensor"})
    body = export(job, make("ascend"), tmp_path / "out")
    row = next(r for r in body["read_back"]["rows"] if r["name"] == "weight:g")
    assert "rounded again to the largest of 5" in row["consent"]
    record = {r.layer: r for r in amct.read_record((tmp_path / "out/record.txt").read_text())}
    assert record["gemm"].weights == (max(job.demanded.tensors["weight:g"].scale),)
    assert body["simulations"][0]["sqnr_db"] > 25.0


@pytest.mark.parametrize("granularity", [Granularity.PER_LAYER, Granularity.PER_CHANNEL])
def test_the_targets_own_scheme_needs_no_consent(granularity: Granularity, tmp_path: Path) -> None:
    """It says that Gemm and MatMul take one scale, whatever the others have."""
    job = job_for("ascend310p", proto=head(), granularity=granularity)
    assert len(job.demanded.tensors["weight:g"].scale) == 1
    body = export(job, make("ascend"), tmp_path / "out")
    assert (body["simulations"][0]["lsb"], body["read_back"]["differences"]) == (0.0, [])


def test_float_layers_are_pinned_by_name(tmp_path: Path) -> None:
    body = export(job_for("ascend310", {"b": "fp16", "c": "fp32"}), make("ascend"), tmp_path / "out")
    rows = atc.read_customize((tmp_path / "out/customize_dtypes.cfg").read_text())
    assert [r.name for r in rows] == ["b", "relu_b"]
    assert rows[0] == atc.Dtypes("b", ("float16",) * 3, ("float16",))
    assert atc.read_keep((tmp_path / "out/keep_dtype.cfg").read_text()) == ("c", "add")
    assert amct.read_config((tmp_path / "out/quant.cfg").read_text()).skip_layers == ("b", "c")
    line = atc.read_command((tmp_path / "out/convert.sh").read_text())
    assert (line.soc_version, line.keep_dtype, line.customize_dtypes) == ("Ascend310", "keep_dtype.cfg", "customize_dtypes.cfg")
    actual = {r["name"]: r["actual"] for r in body["read_back"]["rows"]}
    assert (actual["a"], actual["b"], actual["c"]) == ("int8", "fp16", "fp32")


@pytest.mark.parametrize(("file", "change", "named"), [
    ("record.txt", lambda t: t[t.index("record", 1):], ("a", "precision")),
    ("record.txt", lambda t: t.replace('wts_type: "INT8"', 'wts_type: "INT4"', 1), ("a", "precision")),
    ("quant.cfg", lambda t: t + 'skip_layers: "a"\n', ("a", "precision")),
])
def test_files_that_contradict_one_another_are_found(file: str, change: object, named: tuple[str, str], tmp_path: Path) -> None:
    job = job_for("ascend310")
    export(job, make("ascend"), tmp_path / "out")
    path = tmp_path / "out" / file
    path.write_text(change(path.read_text()))  # type: ignore[operator]
    assert named in {(d.name, d.what) for d in exporter_faults.differences_now("ascend", job, tmp_path / "out")}


LOG = """ATC start working now, please wait for a moment.
ATC run failed, Please check the detail log, Try 'atc --help' for more information
EZ3003: 2026-11-30-10:00:00.000.000 No supported Ops kernel and engine are found for [relu_b], optype [Relu].
        Possible Cause: The operator is not supported by the system.
EZ3002: Optype [CumSum] of Ops kernel [AIcoreEngine] is unsupported. Reason: no input format.
EZ9010: No parser is registered for Op [a/Einsum, optype [Einsum]].
E10001: Value 9 for parameter --framework is invalid. Reason: out of range.
E99999: Unknown error occurred.
"""


def test_the_log_names_operator_layer_and_cure() -> None:
    read = log.parse(LOG, {"relu_b": "b"})
    assert read.succeeded is False
    assert [(e.code, e.operator, e.type, e.layer) for e in read.errors] == [
        ("EZ3003", "relu_b", "Relu", "b"), ("EZ3002", "", "CumSum", ""), ("EZ9010", "a/Einsum", "Einsum", ""), ("E10001", "", "", ""), ("E99999", "", "", "")]
    assert str(read.errors[0]).startswith("EZ3003 at relu_b (Relu), layer b: ") and "qbench rewrite" in str(read.errors[0])
    assert read.errors[4].cure == log.UNKNOWN
    assert log.parse("ATC start working now\nATC run success, welcome to the next use.\n") == log.AtcLog(True, ())
    assert log.parse("ATC start working now\n").succeeded is None


def test_a_log_that_is_given_is_judged(tmp_path: Path) -> None:
    (tmp_path / "bad.log").write_text(LOG)
    (tmp_path / "good.log").write_text("ATC run success\n")
    (tmp_path / "half.log").write_text("ATC start working now\n")
    with pytest.raises(ToolError, match=r"atc did not convert the model .*bad.log.*\n  EZ3003 at relu_b \(Relu\), layer b"):
        export(job_for("ascend310", options={"atc_log": str(tmp_path / "bad.log")}), make("ascend"), tmp_path / "out")
    with pytest.raises(ToolError, match="ends before atc says"):
        export(job_for("ascend310", options={"atc_log": str(tmp_path / "half.log")}), make("ascend"), tmp_path / "out")
    with pytest.raises(InputError, match=r"atc_log=nowhere.log: there is no such file"):
        export(job_for("ascend310", options={"atc_log": "nowhere.log"}), make("ascend"), tmp_path / "out")
    export(job_for("ascend310", options={"atc_log": str(tmp_path / "good.log")}), make("ascend"), tmp_path / "out")


@pytest.mark.parametrize(("options", "words"), [({"soc_version": "Ascend910"}, "soc_version=Ascend910: ascend310 is exactly Ascend310"),
                                                ({"weights": "per-group"}, "weights=per-group: there is weights=per-tensor"), ({"precision_mode": "must_keep_origin_dtype"}, "not for a model")])
def test_options_are_checked_before_anything_is_written(options: dict[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        export(job_for("ascend310", options=options), make("ascend"), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_codes_of_another_kind_are_refused_naming_the_tensor() -> None:
    with pytest.raises(PlanError, match=r"x:int8: uint8 .*AMCT takes int8.*the target's own scheme"):
        make("ascend").check(job_for("ascend310", schemes_of="host"))


def test_a_plan_without_integers_goes_to_atc_as_it_is(tmp_path: Path) -> None:
    body = export(job_for("ascend310", {u: "fp16" for u in "abc"}), make("ascend"), tmp_path / "out")
    assert atc.read_command((tmp_path / "out/convert.sh").read_text()).model == ascend.HANDED
    assert "convert.py" not in (tmp_path / "out/convert.sh").read_text()
    assert body["read_back"]["differences"] == []


def test_a_constant_beside_an_activation_may_have_a_zero_point(tmp_path: Path) -> None:
    """Only weights of Conv, ConvTranspose, Gemm and MatMul need 0."""
    nodes = [models.node("Conv", ["x", "w"], ["c"], "conv"), models.node("Mul", ["c", "k"], ["y"], "mul")]
    weights = {"w": np.ones((2, 3, 1, 1), np.float32), "k": np.linspace(0.5, 2.0, 16, dtype=np.float32).reshape(1, 1, 4, 4)}
    job = job_for("ascend310", proto=models.model(nodes, {"x": ["N", 3, 4, 4]}, {"y": ["N", 2, 4, 4]}, weights))
    assert any(job.demanded.tensors["weight:k"].zero_point)
    body = export(job, make("ascend"), tmp_path / "out")
    row = next(r for r in body["read_back"]["rows"] if r["name"] == "weight:k")
    assert row["actual"] == row["plan"]
