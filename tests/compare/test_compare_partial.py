"""Stopping early: whatever was measured is written whole, and says that it is not all."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from compare_cases import case_of, chain, fashion_folder, page_of

from qbench.calibrators.kl import Kl
from qbench.errors import InputError
from qbench.evaluation import OnnxEvaluator
from qbench.workbench.comparing import CompareJob, run_compare


def stopping(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Ctrl-C arrives during evaluation number `after` + 1."""
    evaluate = OnnxEvaluator.evaluate_model
    done: list[int] = []

    def stop(self: OnnxEvaluator, *arguments: Any, **options: Any) -> Any:
        if len(done) == after:
            raise KeyboardInterrupt
        done.append(1)
        return evaluate(self, *arguments, **options)

    monkeypatch.setattr(OnnxEvaluator, "evaluate_model", stop)


@pytest.mark.parametrize("after", [1, 4, 6, 7])
def test_a_stop_leaves_a_valid_partial_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    stopping(monkeypatch, after)
    result = run_compare(CompareJob(case_of(chain(big=50.0)), calibrators=("minmax", "mse"), out=tmp_path))
    assert result.partial and len(result.rows) == min(after, 6)
    body = json.loads((tmp_path / "compare.json").read_text())
    assert body["partial"] and [r["rank"] for r in body["rows"]] == list(range(1, len(result.rows) + 1))
    assert body["summary"].startswith("Stopped before it was done.")
    assert page_of(tmp_path / "compare.html").open == []
    assert {p.name for p in (tmp_path / "plans").iterdir()} == {Path(r.plan).name for r in result.rows}
    assert not [p for p in tmp_path.rglob("*") if p.name.endswith(".tmp")]


def test_a_stop_before_the_first_plan_leaves_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping(monkeypatch, 0)
    with pytest.raises(KeyboardInterrupt):
        run_compare(CompareJob(case_of(chain()), calibrators=("minmax",), out=tmp_path))
    assert not (tmp_path / "compare.json").exists() and not (tmp_path / "compare.html").exists()


def test_control_c_ends_the_command_with_130_and_a_result(tmp_path: Path) -> None:
    fashion_folder(tmp_path)
    command = [sys.executable, "-m", "qbench", "compare", "net.onnx", "-d", "calibration.npz", "--eval-data", "evaluation.npz", "--metric", "top1",
               "--calibrator", "minmax", "--calibrator", "all", "-o", "out", "--json"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # noqa: PLW1509  (a job in the background inherits that it is ignored)
    try:
        until = time.monotonic() + 120
        while not (tmp_path / "out" / "compare.json").exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    body = json.loads(said)
    assert body["partial"] and 3 <= len(body["rows"]) < 30
    assert json.loads((tmp_path / "out" / "compare.json").read_text()) == body
    assert (tmp_path / "out" / "compare.html").is_file()


def test_a_calibrator_that_refuses_the_network_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise InputError("not for this network")

    monkeypatch.setattr(Kl, "range", refuse)
    result = run_compare(CompareJob(case_of(chain()), calibrators=("kl", "minmax"), scales=("per-channel",), out=tmp_path))
    assert [r.calibrator for r in result.rows] == ["minmax"]
    assert result.unmeasured == {"int8, kl, per-channel": "not for this network"}
    assert "not for this network" in page_of(tmp_path / "compare.html").text
    with pytest.raises(InputError, match="not for this network"):
        run_compare(CompareJob(case_of(chain()), calibrators=("kl",), scales=("per-channel",), out=tmp_path))


def test_a_second_comparison_leaves_no_plans_of_the_first(tmp_path: Path) -> None:
    run_compare(CompareJob(case_of(chain()), calibrators=("minmax", "mse"), scales=("per-channel",), out=tmp_path))
    result = run_compare(CompareJob(case_of(chain()), calibrators=("minmax",), scales=("per-layer",), out=tmp_path))
    assert [p.name for p in (tmp_path / "plans").iterdir()] == [Path(r.plan).name for r in result.rows] == ["int8-minmax-per-layer.json"]
    assert not [p for p in tmp_path.rglob("*") if p.name.endswith(".tmp")]
