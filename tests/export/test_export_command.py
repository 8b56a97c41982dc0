"""qbench export and qbench toolchain on the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from export_cases import job, three_convs

from qbench.cli import main
from qbench.graph import load_network


def run(arguments: list[str]) -> int:
    """Exit code."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    return int(stopped.value.code or 0)


def files(folder: Path, precision: dict[str, str] | None = None) -> list[str]:
    """Arguments for the three convolutions and their plan."""
    onnx.save(three_convs(), folder / "net.onnx")
    plan = replace(job(precision).plan, model_key=load_network(folder / "net.onnx").network.model_key)
    plan.save(folder / "plan.json")
    return ["export", str(folder / "net.onnx"), "--plan", str(folder / "plan.json"), "-o", str(folder / "out")]


@pytest.fixture
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QBENCH_TOOLCHAINS", str(tmp_path / "none"))
    monkeypatch.delenv("QBENCH_TOOLCHAIN_RKNN", raising=False)


@pytest.mark.usefixtures("nothing_installed")
def test_without_the_toolchain_its_input_is_written_and_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*files(tmp_path, {"b": "fp16"}), "--target", "rk3588", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["status"] == "not compiled here" and "qbench toolchain install rknn" in body["why_not"]
    assert {f["file"] for f in body["files"]} == {"golden.npz", "model.qdq.onnx", "model.rknn.onnx", "plan.json"}
    assert body["golden"]["random"] and body["layers"] == {"fp16": 1, "int8": 2}
    assert run([*files(tmp_path), "--target", "rk3588"]) == 0
    said = capsys.readouterr()
    assert "not compiled here" in said.out and "qbench toolchain install rknn" in said.err and "the golden input is random" in said.err


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize(("more", "words"), [
    (["--target", "stm32h7"], "no exporter for target 'stm32h7'"),
    (["--target", "rk3588", "--exporter", "rkn"], "no exporter 'rkn'"),
    (["--target", "rk3588", "--option", "speed"], "--option 'speed': expected KEY=VALUE"),
    (["--target", "rk3588", "--option", "speed=high"], "rknn: no option 'speed=high'"),
    (["--target", "rk3588", "--sample", "brain"], "give one of the two"),
    (["--target", "rk3588", "--toolkit", "1.0"], "no toolkit '1.0'"),
])
def test_bad_input_ends_with_2_and_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], words: str) -> None:
    assert run([*files(tmp_path), *more]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("nothing_installed")
def test_a_precision_that_the_toolkit_lacks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """B24."""
    assert run([*files(tmp_path, {"b": "int16"}), "--target", "rk3588", "--toolkit", "2.3.2"]) == 2
    assert "does not offer int16 with toolkit 2.3.2" in " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("nothing_installed")
def test_toolchains_are_listed_and_a_missing_one_ends_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["toolchain", "list", "--json"]) == 0
    rknn = next(t for t in json.loads(capsys.readouterr().out) if t["name"] == "rknn")
    assert not rknn["ready"] and rknn["where"] is None and rknn["how_to_get"] == "qbench toolchain install rknn"
    assert run(["toolchain", "check", "rknn"]) == 3
    assert "rknn cannot be used: it is not here; qbench toolchain install rknn" in " ".join(capsys.readouterr().err.split())
    assert run(["toolchain", "list"]) == 0
    assert "rknn" in capsys.readouterr().out
    assert run(["toolchain", "check", "rkn"]) == 2
