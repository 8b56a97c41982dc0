"""qbench quantize with corrections, as a user types it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from test_corrections_orchestration import ADAROUND, classifier

from qbench.cli import main
from qbench.plan import Plan
from qbench.runtime import Session


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    proto, dataset = classifier()
    onnx.save(proto, str(tmp_path / "net.onnx"))
    np.savez(tmp_path / "calib.npz", **dict(next(iter(dataset.batches(24))).feeds))  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    return tmp_path


def qbench(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return int(end.value.code or 0)


def test_from_data_with_corrections_and_again_from_the_plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert qbench("quantize", "net.onnx", "--data", "calib.npz", "--scale", "per-layer", "-c", "bias:how=analytic", "-c", "cle", "-c", ADAROUND,
                  "--save-plan", "plan.json", "-o", "one.onnx", "--json") == 0
    body: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [c["step"] for c in body["corrections"]] == ["cle", "mask", "fixed-outputs", "bias-guard", ADAROUND, "bias:how=analytic"]
    assert all(set(c) == {"step", "sqnr_before_db", "sqnr_after_db", "seconds", "remarks"} for c in body["corrections"])
    assert body["steps"] == list(Plan.load(folder / "plan.json").corrections) and body["plan_file"] == "plan.json"
    assert qbench("quantize", "net.onnx", "--plan", "plan.json", "-o", "two.onnx") == 0
    assert (folder / "one.onnx").read_bytes() == (folder / "two.onnx").read_bytes()
    assert Session(folder / "two.onnx", 1).run({"x": np.zeros((2, 3, 8, 8), np.float32)})["y"].shape == (2, 4)


def test_the_table_shows_what_was_gained(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert qbench("quantize", "net.onnx", "--data", "calib.npz", "--scale", "per-layer", "-c", "cle", "-o", "q.onnx") == 0
    shown = capsys.readouterr()
    row = next(line.split() for line in shown.out.splitlines() if line.startswith("cle"))
    assert float(row[3]) == pytest.approx(float(row[2]) - float(row[1]), abs=0.0151) and float(row[3]) != 0
    assert "no attention mask" not in shown.out + shown.err                      # steps that did nothing and were not asked for are not listed
    assert "cle: 3 pairs of layers" in shown.err


def test_defaults_can_be_switched_off(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, steps in ((["-c", "none"], []), ([], ["bias-guard"]), (["-c", "none", "-c", "bias"], ["bias"])):
        assert qbench("quantize", "net.onnx", "--data", "calib.npz", *options, "-o", "q.onnx", "--json") == 0
        assert json.loads(capsys.readouterr().out)["steps"] == steps


def test_schemes_of_ones_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert qbench("quantize", "net.onnx", "--data", "calib.npz", "--activation", "int8:symmetric", "--weight", "int4:symmetric,narrow",
                  "--save-plan", "plan.json", "-o", "q.onnx") == 0
    assert "weights are stored as int4:symmetric,narrow, as asked for" in capsys.readouterr().err
    scheme = Plan.load(folder / "plan.json").schemes["int8"]
    assert (scheme.weight.bits, scheme.activation.signed, scheme.activation.symmetric) == (4, True, True)
    codes = [np.asarray(onnx.numpy_helper.to_array(i)) for i in onnx.load("q.onnx").graph.initializer if i.name.startswith("w") and i.name.endswith("_q")]
    assert codes and max(int(np.abs(c.astype(int)).max()) for c in codes) == 7


def test_the_sample_needs_no_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also the proof on the shipped network: per tensor, equalization brings the output from noise to a signal."""
    assert qbench("quantize", "--sample", "fashion", "--scale", "per-layer", "-c", "cle", "-o", "f.onnx", "--json") == 0
    gains = {c["step"]: c for c in json.loads(capsys.readouterr().out)["corrections"]}
    assert gains["cle"]["sqnr_before_db"] < 10 and gains["cle"]["sqnr_after_db"] > 25


@pytest.mark.parametrize(("arguments", "words"), [
    (["net.onnx"], "--plan plan.json, or --stats FILE from `qbench stats`, or --data D"), (["--data", "calib.npz"], "--data without a model"),
    (["net.onnx", "--sample", "fashion"], "give one of the two"), (["net.onnx", "--plan", "p.json", "--data", "calib.npz"], "give --plan or --data, not both"),
    (["net.onnx", "--plan", "p.json", "-c", "cle"], "give --plan or --correct, not both"), (["net.onnx", "--plan", "p.json", "--weight", "int4"], "--weight"),
    (["net.onnx", "--plan", "p.json", "--calibrator", "kl"], "give --plan or --calibrator, not both"),
    (["net.onnx", "--plan", "p.json", "--precision", "fp16"], "give --plan or --precision"), (["net.onnx", "--plan", "p.json", "--limit", "3"], "--limit"),
    (["net.onnx", "--stats", "s.npz", "--limit", "3"], "--limit says how samples are read, and there are none"),
    (["net.onnx", "--stats", "s.npz", "--non-finite", "ignore"], "--non-finite says how samples are read"),
    (["net.onnx", "--data", "calib.npz", "--weight", "int4:symmetric", "--weight-block", "32"], "--weight-block 32 is for --scale per-group"),
    (["net.onnx", "--data", "calib.npz", "-c", "magic"], "known: adaround, bias"), (["net.onnx", "--data", "calib.npz", "--weight", "int99"], "int99"),
    (["net.onnx", "--data", "calib.npz", "--scale", "per-thing"], "per-group")])
def test_what_does_not_go_together_is_refused(folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert qbench("quantize", *arguments, "-o", "q.onnx") == 2
    assert words in capsys.readouterr().err and not (folder / "q.onnx").exists()


@pytest.mark.parametrize("arguments", [
    ["-o", "net.onnx"], ["-o", "calib.npz"], ["-o", "q.onnx", "--save-plan", "calib.npz"], ["-o", "q.onnx", "--save-plan", "q.onnx"],
    ["-o", "q.onnx", "--save-plan", "./net.onnx"]])
def test_no_input_is_overwritten(folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    before = {name: (folder / name).read_bytes() for name in ("net.onnx", "calib.npz")}
    assert qbench("quantize", "net.onnx", "--data", "calib.npz", *arguments) == 2
    assert "would destroy it" in capsys.readouterr().err
    assert before == {name: (folder / name).read_bytes() for name in before}


@pytest.mark.parametrize("goal", [["-o", "w.bin"], ["-o", "q.onnx", "--save-plan", "./w.bin"]])
def test_weights_beside_the_model_are_not_overwritten(folder: Path, capsys: pytest.CaptureFixture[str], goal: list[str]) -> None:
    onnx.save_model(onnx.load("net.onnx"), "apart.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    before = (folder / "w.bin").read_bytes()
    assert qbench("quantize", "apart.onnx", "--data", "calib.npz", *goal) == 2
    assert "holds weights of apart.onnx and would destroy them" in capsys.readouterr().err
    assert (folder / "w.bin").read_bytes() == before and not (folder / "q.onnx").exists()
    (folder / "w.bin").unlink()
