"""Plans as text: they come back equal, and a broken or foreign one is refused with the entry's name."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from models import conv_relu, plan, prepare

from qbench.affine import Range
from qbench.errors import PlanError
from qbench.network import Precision
from qbench.plan import Plan, check_fits


@pytest.fixture()
def saved(tmp_path: Path) -> tuple[Plan, Path]:
    prepared = prepare(conv_relu())
    made = plan(prepared, {"x": Range(-0.1, 1 / 3), "c": Range(-1.0, 2.0), "y": Range(0.0, 2.5)})
    path = tmp_path / "plan.json"
    made.save(path)
    return made, path


def test_a_plan_comes_back_equal(saved: tuple[Plan, Path]) -> None:
    made, path = saved
    assert Plan.load(path) == made
    assert Plan.load(path).key == made.key


def test_key_ignores_notes_and_operating_point_only(saved: tuple[Plan, Path]) -> None:
    made, _ = saved
    assert replace(made, notes={"x": "why"}, op_point="300MHz").key == made.key
    assert replace(made, ranges={**made.ranges, "x": Range(-0.1, 0.3)}).key != made.key


@pytest.mark.parametrize(("entry", "value", "message"), [
    ("format", "other/9", "expected 'qbench-plan/2'"), ("precision", {"conv": "int3"}, "precision is missing or broken"),
    ("ranges", {"x": [1.0]}, "ranges is missing or broken"), ("granularity", "per-pixel", "granularity is missing or broken")])
def test_a_broken_plan_names_the_entry(saved: tuple[Plan, Path], entry: str, value: object, message: str) -> None:
    _, path = saved
    body = json.loads(path.read_text())
    body[entry] = value
    path.write_text(json.dumps(body))
    with pytest.raises(PlanError, match=message):
        Plan.load(path)


def test_no_file_and_no_json_are_said(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot be read"):
        Plan.load(tmp_path / "none.json")
    (tmp_path / "odd.json").write_text("{")
    with pytest.raises(PlanError, match="line 1 is not JSON"):
        Plan.load(tmp_path / "odd.json")


def test_a_plan_for_another_model_is_refused(saved: tuple[Plan, Path]) -> None:
    made, _ = saved
    network = prepare(conv_relu()).network
    check_fits(made, network)
    with pytest.raises(PlanError, match="made for model"):
        check_fits(replace(made, model_key="0" * 64), network)
    with pytest.raises(PlanError, match="unit 'other' is in the plan only"):
        check_fits(replace(made, precision={**made.precision, "other": Precision.INT8}), network)
