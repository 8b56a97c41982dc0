"""The Hexagon exporter without its toolchain: what it refuses, and what it writes for Qualcomm's own tools."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from export_cases import job

from qbench import toolchains
from qbench.errors import InputError, PlanError, PrecisionUnavailable, TargetError
from qbench.export import Job, export
from qbench.export.comparing import reference_outputs
from qbench.network import Precision
from qbench.plan import Granularity
from qbench.target import QuantScheme
from qbench.targets import load
from qbench.targets.exporters import for_target, make
from qbench.targets.exporters.qnn import SOC_MODEL, provider_options
from qbench.targets.exporters.qnn_layers import GIVEN, cut, furthest

TARGET = load("hexagon-8gen3")
SCHEMES = {str(p.precision): p.scheme for p in TARGET.precisions if p.scheme is not None}


def hexagon_job(precision: Mapping[str, str] | None = None, target: str = "hexagon-8gen3", schemes: Mapping[str, QuantScheme] = SCHEMES) -> Job:
    return dataclasses.replace(job(precision, samples=2, schemes=schemes), target=load(target), toolkit="2.42")


def test_architecture_and_chip_are_always_given() -> None:
    for name in SOC_MODEL:
        found = provider_options(load(name))
        assert found["htp_arch"] in {"68", "69", "73", "75", "79", "81"} and int(found["soc_model"]) > 0
        assert for_target(name)[0] == "qnn"
    assert provider_options(TARGET) == {"htp_arch": "75", "soc_model": "57", "enable_htp_fp16_precision": "1"}
    with pytest.raises(TargetError, match=r"which Hexagon is 'rk3588'\?"):
        provider_options(load("rk3588"))


def test_a_precision_that_the_chip_lacks_is_refused() -> None:
    """BUG case B24: V68 has no float, and no HTP has FP32."""
    with pytest.raises(InputError, match="fp16"):
        load("hexagon-qcs6490").support(Precision.FP16)
    with pytest.raises(PrecisionUnavailable, match=r"layer 'b' is FP32, which no HTP computes.* search again with int8, int16"):
        make("qnn").check(hexagon_job({"b": "fp32"}, "hexagon-qcs6490"))


def test_codes_that_the_htp_does_not_take_are_refused() -> None:
    made = hexagon_job({"b": "int16"})
    signed = dataclasses.replace(made.demanded.tensors["b1:int16"], dtype="int16")
    spoiled = dataclasses.replace(made.demanded, tensors={**made.demanded.tensors, "b1:int16": signed})
    with pytest.raises(PlanError, match=r"b1:int16: activations of 16 bits are uint16 on the HTP"):
        make("qnn").check(dataclasses.replace(made, demanded=spoiled))
    wide = dataclasses.replace(made.demanded.tensors["weight:wb"], dtype="int16")
    with pytest.raises(PlanError, match=r"weight:wb: int16 .*the HTP takes int8 symmetric weights"):
        make("qnn").check(dataclasses.replace(made, demanded=dataclasses.replace(made.demanded, tensors={**made.demanded.tensors, "weight:wb": wide})))


def test_int16_is_uint16_activations_with_int8_weights() -> None:
    tensors = hexagon_job({u: "int16" for u in "abc"}).demanded.tensors
    assert {t.dtype for k, t in tensors.items() if k.startswith("weight:")} == {"int8"}
    assert {t.dtype for k, t in tensors.items() if not k.startswith("weight:")} == {"uint16"}


def test_options_and_groups_are_refused() -> None:
    made = hexagon_job()
    with pytest.raises(InputError, match=r"qnn: no option 'path'"):
        make("qnn").check(dataclasses.replace(made, options={"path": "a"}))
    with pytest.raises(PlanError, match=r"per group.*--scale per-channel"):
        make("qnn").check(dataclasses.replace(made, plan=dataclasses.replace(made.plan, granularity=Granularity.PER_GROUP)))


def test_without_the_toolchain_everything_for_the_converter_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchains, "find", lambda _: None)
    body = export(hexagon_job({"b": "int16", "c": "fp16"}), make("qnn"), tmp_path / "out")
    assert body["status"] == "not compiled here" and "qbench toolchain install qnn" in body["why_not"]
    for name in ("aimet_0.6.1.encodings", "aimet_1.0.0.encodings", "aimet_2.0.0.encodings", "model.float.onnx", "model.qnn.onnx", "qairt.sh"):
        assert (tmp_path / "out" / name).is_file(), name
    script = tmp_path / "out/qairt.sh"
    assert subprocess.run(["sh", "-n", str(script)], check=False).returncode == 0
    text = script.read_text()
    assert "--source_model_input_shape x 1,3,16,16" in text and "--quantization_overrides aimet_1.0.0.encodings" in text
    assert '"soc_model": 57, "dsp_arch": "v75"' in text and "Not compiled here" in text


def test_equal_inputs_give_equal_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchains, "find", lambda _: None)
    one, two = (export(hexagon_job({"b": "int16"}), make("qnn"), tmp_path / n) for n in ("one", "two"))
    assert one == two


def test_an_opened_model_gives_the_same_codes_and_shows_a_wrong_layer(tmp_path: Path) -> None:
    """Oracle: onnxruntime on both forms. A layer whose input codes are changed is the only one that differs."""
    from qbench import qdq

    made = hexagon_job({"b": "int16"})
    opened = cut(made)
    for name, model in (("exposed", opened.exposed), ("open", opened.open)):
        qdq.save(model, tmp_path / f"{name}.onnx")
    wanted = reference_outputs(tmp_path / "exposed.onnx", made.samples)
    feeds = [dict(s) | opened.feeds(w) for s, w in zip(made.samples, wanted, strict=True)]
    assert {v.steps for v in furthest(opened.pairs, wanted, reference_outputs(tmp_path / "open.onnx", feeds)).values()} == {0}
    feeds[0][opened.pairs["b1:int16"].codes + GIVEN] = np.zeros_like(feeds[0][opened.pairs["b1:int16"].codes + GIVEN])
    apart = furthest(opened.pairs, wanted, reference_outputs(tmp_path / "open.onnx", feeds))
    assert {k for k, v in apart.items() if v.steps} == {"b1:int8"} and next(iter(apart.values())).sqnr_db < 10.0
