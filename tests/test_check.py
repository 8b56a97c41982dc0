"""`qbench search --check`: the gate for continuous integration."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qbench.cli import main

SAMPLE = ("search", "--sample", "fashion", "--limit", "24")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The result folder of a search with a budget that the gate finds there again."""
    folder = tmp_path_factory.mktemp("gate")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert gate("--budget", "1ms", "--max-drop", "5%", "--trials", "2", "--no-track", "-o", "found") == 0
        yield folder / "found"


def gate(*options: object) -> int:
    try:
        main([*SAMPLE, *map(str, options)])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_a_plan_that_holds_says_what_its_search_said(found: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert gate("--check", found, "--json") == 0
    body: dict[str, Any] = json.loads(capfd.readouterr().out)
    chosen = json.loads((found / "summary.json").read_text())["chosen"]
    assert body["passed"] and [k["limit"] for k in body["limits"]] == ["1ms", "max-drop 0.05"]
    assert body["accuracy"] == pytest.approx(chosen["accuracy"]) and body["latency_ms"] == pytest.approx(chosen["latency_ms"])
    assert body["before"] == {"accuracy": chosen["accuracy"], "latency_ms": chosen["latency_ms"]}


def test_a_broken_limit_ends_with_one_and_is_named(found: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert gate("--check", found / "plan.json", "--budget", "0.01ms", "--max-drop", "90%") == 1
    said = capfd.readouterr().out
    assert "BROKEN  10us" in said and "kept  max-drop 0.9" in said


def test_a_floor_is_broken_by_a_loss(found: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The plan again with one scale per tensor, which costs this network dearly."""
    assert _quantized(found.parent / "rough.json") == 0
    assert gate("--check", found.parent / "rough.json", "--max-drop", "5%") == 1
    assert "BROKEN  max-drop 0.05" in capfd.readouterr().out


def _quantized(plan: Path) -> int:
    try:
        main(["quantize", "--sample", "fashion", "--limit", "16", "--scale", "per-layer", "-o", str(plan.with_suffix(".onnx")), "--save-plan", str(plan)])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_what_cannot_be_checked_is_refused(found: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert gate("--check", found, "--target", "rk3576") == 2 and "was made for rk3588" in capfd.readouterr().err
    alone = found.parent / "alone.json"
    shutil.copy(found / "plan.json", alone)
    assert gate("--check", alone) == 2 and "no limits to check" in capfd.readouterr().err
    body = json.loads(alone.read_text())
    alone.write_text(json.dumps({**body, "model_key": "0" * 64}))
    assert gate("--check", alone, "--budget", "1ms") == 2 and "QB106" in capfd.readouterr().err
