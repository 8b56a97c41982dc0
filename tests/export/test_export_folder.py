"""The folder of an export: complete or absent, with golden data that its own program checks, the same bytes every time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from export_cases import StandIn, job, with_layer, with_scale

from qbench.errors import ExportMismatch, InputError, ToolError
from qbench.export import Simulated, check_versions, export, satisfies
from qbench.files import sha256
from qbench.network import Precision
from qbench.runtime import Session

MADE = job({"b": "fp16"})
RIGHT = 'def infer(folder, feeds):\n    return [np.load(folder / "golden.npz")["out:y"] + OFFSET]\n'


def test_the_manifest_holds_versions_hashes_golden_data_and_the_comparison(tmp_path: Path) -> None:
    body = export(MADE, StandIn(), tmp_path / "out")
    assert json.loads((tmp_path / "out/manifest.json").read_text()) == body
    assert body["status"] == "compiled here" and body["accepted"] and body["versions"]["toolchain"] == "stand-in 1.0"
    assert {f["file"]: f["sha256"] for f in body["files"]} == {p.name: sha256(p) for p in (tmp_path / "out").iterdir() if p.name != "manifest.json"}
    golden = np.load(tmp_path / "out/golden.npz")
    again = Session(tmp_path / "out/model.qdq.onnx", simulate=True).run({"x": golden["in:x"]})
    assert np.array_equal(golden["out:y"], again["y"])
    assert body["read_back"]["compared"] == len(MADE.demanded.layers) + len(MADE.demanded.tensors) and body["read_back"]["differences"] == []


def test_the_same_job_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (export(MADE, StandIn(board_code=RIGHT), tmp_path / n) for n in ("one", "two"))
    assert first == second
    assert [sha256(tmp_path / "one" / f["file"]) for f in first["files"]] == [sha256(tmp_path / "two" / f["file"]) for f in second["files"]]


@pytest.mark.parametrize(("offset", "status"), [("0.0", 0), ("100.0", 1), ("np.nan", 1)])
def test_the_program_for_the_board_checks_the_golden_output(tmp_path: Path, offset: str, status: int) -> None:
    export(MADE, StandIn(board_code=RIGHT.replace("OFFSET", offset)), tmp_path / "out")
    done = subprocess.run([sys.executable, str(tmp_path / "out/run.py")], capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert ("WRONG" in done.stdout) == bool(status)


def test_a_difference_ends_the_export_and_keeps_the_evidence(tmp_path: Path) -> None:
    spoiled = StandIn(lambda found: with_layer(with_scale(found, "a1:int8", 2.0), "b", precision=Precision.INT8))
    with pytest.raises(ExportMismatch, match=r"2 differences, plan -> actual(.|\n)*b: precision fp16 -> int8(.|\n)*a1:int8: scale") as caught:
        export(MADE, spoiled, tmp_path / "out")
    assert caught.value.exit_code == 3
    assert not (tmp_path / "out").exists()
    kept = json.loads((tmp_path / "out.rejected/manifest.json").read_text())
    assert not kept["accepted"] and {d["name"] for d in kept["read_back"]["differences"]} == {"b", "a1:int8"}


def test_only_an_earlier_export_is_replaced(tmp_path: Path) -> None:
    export(MADE, StandIn(), tmp_path / "out")
    export(MADE, StandIn(), tmp_path / "out")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match=r"holds no export.*nothing is overwritten"):
        export(MADE, StandIn(), mine)
    assert (mine / "thesis.txt").read_text() == "years of work" and sorted(p.name for p in tmp_path.iterdir()) == ["mine", "out"]


def test_a_simulator_that_is_further_off_than_allowed_fails() -> None:
    assert "2 steps" in Simulated("sim", 2.0, 30.0, limit_lsb=1.0).fails
    assert "10.0 dB" in Simulated("sim", None, 10.0, least_sqnr_db=20.0).fails
    assert "nan" in Simulated("sim", None, float("nan"), least_sqnr_db=20.0).fails
    assert not Simulated("sim", 1.0, float("inf"), limit_lsb=1.0, least_sqnr_db=20.0).fails


def test_a_board_with_other_versions_is_refused_naming_both_sides() -> None:
    """B27: runtime 1.4.0 against >= 1.6.0."""
    with pytest.raises(ToolError, match=r"board-7 has runtime 1\.4\.0, the artefact needs runtime >=1\.6\.0: install that runtime on the board, or export again"):
        check_versions({"runtime": ">=1.6.0"}, {"runtime": "1.4.0"}, "board-7")
    with pytest.raises(ToolError, match="does not say which driver"):
        check_versions({"driver": ">=0.9"}, {"runtime": "2.5.0"}, "board-7")
    check_versions({"runtime": ">=1.6.0, <3"}, {"runtime": "v2.5.0b1"}, "board-7")


@pytest.mark.parametrize(("version", "wanted", "right"), [("1.10", ">=1.9", True), ("1.6", "==1.6.0", True), ("2.0", "<2", False), ("3.12.1", ">=3.8, <3.13", True),
                                                          ("0.9.8", ">0.9.8", False), ("0.9.8", "<=0.9.8", True)])
def test_versions_compare_number_by_number(version: str, wanted: str, right: bool) -> None:
    assert satisfies(version, wanted) is right


def test_a_condition_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(ValueError, match="no condition"):
        satisfies("1.0", "about 1.0")
    with pytest.raises(ValueError, match="does not begin with a version"):
        satisfies("unknown", ">=1.0")
