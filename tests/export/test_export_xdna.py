"""AMD's conventions: what is chosen, what is refused, what is rounded by consent. The table comes from AMD Quark (test_export_xdna_toolchain.py)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from target_cases import job_for

from qbench.errors import InputError, PlanError, ToolError
from qbench.export import Job, export
from qbench.targets.exporters import make, xdna
from qbench.targets.exporters.xdna_conventions import KNOWN, convention_of, is_power_of_two


def written(job: Job, folder: Path) -> tuple[dict[str, Any], ir.Model]:
    body = export(job, make("xdna"), folder)
    return body, ir.load(folder / xdna.HANDED)


@pytest.mark.parametrize(("precision", "schemes", "wanted"), [({}, "xdna", "XINT8"), ({"b": "int16"}, "xdna", "A16W8"), ({}, "mlu270", "A8W8")])
def test_the_plan_says_which_convention(precision: dict[str, str], schemes: str, wanted: str, tmp_path: Path) -> None:
    body, model = written(job_for("xdna", precision, schemes_of=schemes), tmp_path / "out")
    assert body["facts"]["convention"] == wanted
    have, known = convention_of(model), KNOWN[wanted]
    assert (have.bias, have.weight, have.domain, have.zero_points_are_0) == (known.bias, known.weight, known.domain, True)
    assert have.power_of_two or not known.power_of_two


def test_all_of_an_xint8_plan_is_amds_convention(tmp_path: Path) -> None:
    _, model = written(job_for("xdna"), tmp_path / "out")
    assert convention_of(model) == KNOWN["XINT8"]


def test_other_scales_do_not_become_xint8_silently(tmp_path: Path) -> None:
    job = job_for("xdna", schemes_of="mlu270", options={"convention": "XINT8"}, calibrator="percentile:p=99.9")
    scale = job.demanded.tensors["x:int8"].scale[0]
    with pytest.raises(PlanError, match=rf"XINT8 takes power-of-two scales, and x:int8 has {scale:.9g}.*calibrator 'percentile:p=99.9' with a scheme that is not power_of_two"
                                        ".*--calibrator power-of-two.*convention=A8W8.*scales=power-of-two") as refused:
        export(job, make("xdna"), tmp_path / "out")
    assert refused.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_by_consent_scales_are_rounded_up_and_listed(tmp_path: Path) -> None:
    """Up, so that nothing saturates that did not before; oracle: numpy's frexp."""
    job = job_for("xdna", schemes_of="mlu270", options={"convention": "XINT8", "scales": "power-of-two"})
    body, model = written(job, tmp_path / "out")
    assert convention_of(model) == KNOWN["XINT8"]
    rows = {r["name"]: r for r in body["read_back"]["rows"]}
    for key, stored in job.demanded.tensors.items():
        mantissa, exponent = np.frexp(max(stored.scale))
        expected = 2.0 ** (exponent - (mantissa == 0.5))
        assert f"scale {expected:.9g} zero point 0" in rows[key]["actual"]
        assert max(stored.scale) <= expected < 2.0 * max(stored.scale)
        assert "rounded up to a power of two" in rows[key]["consent"]
    assert body["simulations"][0]["sqnr_db"] > 15.0


def test_a_plan_of_the_targets_own_scheme_is_evaluated_with_the_biases_that_are_exported(tmp_path: Path) -> None:
    job = job_for("xdna")
    assert {job.demanded.tensors[f"weight:b{k}"].dtype for k in "abc"} == {"int8"}
    body, _ = written(job, tmp_path / "out")
    assert body["read_back"]["announced"] == 0 and body["simulations"][0]["lsb"] == 0.0
    assert not any("biases are rounded" in r for r in body["remarks"])


def test_wider_biases_hold_the_same_values(tmp_path: Path) -> None:
    """All scales are powers of two, so the accumulator's steps divide the bias's."""
    body, model = written(job_for("xdna", options={"bias": "int32"}), tmp_path / "kept")
    rows = {r["name"]: r for r in body["read_back"]["rows"]}
    assert "in 32 bits with the scale of the accumulator" in rows["weight:ba"]["consent"] and body["read_back"]["announced"] == 3
    assert body["simulations"][0]["lsb"] == 0.0
    assert convention_of(model) == dataclasses.replace(KNOWN["XINT8"], bias="int32")


def test_biases_are_rounded_to_8_bits_where_the_plan_has_32_which_is_said_with_its_price(tmp_path: Path) -> None:
    body, _ = written(job_for("xdna", schemes_of="mlu270", options={"scales": "power-of-two"}), tmp_path / "out")
    rows = {r["name"]: r for r in body["read_back"]["rows"]}
    assert {"weight:ba", "weight:bb", "weight:bc"} <= set(rows)
    assert "XINT8 stores biases in 8 bits" in rows["weight:ba"]["consent"]
    assert any("biases are rounded to 8 bits" in r and "--option bias=int32" in r for r in body["remarks"])


def test_a_bias_that_is_changed_in_the_file_is_found(tmp_path: Path) -> None:
    """It is beside the plan, and announced: so it is compared too."""
    import exporter_faults

    job = job_for("xdna", schemes_of="mlu270", options={"scales": "power-of-two"})
    written(job, tmp_path / "out")
    exporter_faults._scaled(tmp_path / "out" / xdna.HANDED, "ba_q_scale")
    assert ("weight:ba", "scale") in {(d.name, d.what) for d in exporter_faults.differences_now("xdna", job, tmp_path / "out")}


def test_int16_does_not_fit_the_8_bit_conventions() -> None:
    with pytest.raises(PlanError, match="XINT8 has no 16-bit activations, and the plan has INT16 layers: leave --option convention=XINT8 out"):
        make("xdna").check(job_for("xdna", {"b": "int16"}, options={"convention": "XINT8"}))


def test_zero_points_and_fp32_are_refused_naming_what() -> None:
    with pytest.raises(PlanError, match=r"x:int8: int8 .*zero point -?\d+; AMD's conventions have signed codes with zero point 0"):
        make("xdna").check(job_for("xdna", schemes_of="ascend310"))
    with pytest.raises(PlanError, match="layer 'b' is FP32, which this NPU does not compute: search again with int8, int16, fp16"):
        make("xdna").check(job_for("xdna", {"b": "fp32"}))


@pytest.mark.parametrize("options", [{"convention": "A4W4"}, {"scales": "free"}, {"bias": "fp16"}])
def test_options_have_few_values(options: dict[str, str]) -> None:
    (key, value), = options.items()
    with pytest.raises(InputError, match=rf"xdna: no option '{key}={value}'; there are convention=XINT8 or A8W8 or A16W8"):
        make("xdna").check(job_for("xdna", options=options))


def test_a_file_outside_its_convention_is_never_handed_on(tmp_path: Path) -> None:
    job = job_for("xdna")
    _, model = written(job, tmp_path / "out")
    proto = onnx.load(tmp_path / "out" / xdna.HANDED)
    one = next(i for i in proto.graph.initializer if i.name == "wa_scale")
    one.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(one) * np.float32(1.5), "wa_scale"))
    onnx.save(proto, tmp_path / "spoilt.onnx")
    xdna.check_convention(model, KNOWN["XINT8"], job)
    with pytest.raises(ToolError, match="XINT8: the model has a scale that is no power of two, which AMD Quark does not write"):
        xdna.check_convention(ir.load(tmp_path / "spoilt.onnx"), KNOWN["XINT8"], job)


@pytest.mark.parametrize(("scale", "truth"), [(0.5, True), (1.0, True), (2.0**-20, True), (0.3, False), (0.0, False), (3.0, False)])
def test_powers_of_two(scale: float, truth: bool) -> None:
    assert is_power_of_two(scale) is truth
