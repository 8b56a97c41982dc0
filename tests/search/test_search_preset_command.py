"""`qbench presets` and `qbench search --preset` as a user meets them, on the small sample."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qbench.plan import Plan

OWN = '''
name = "shop"
title = "Camera in a shop"
story = "Sorts clothes."
goal = "energy"
[accuracy]
max_drop_percent = 3.0
max_class_drop_percent = 6.0
worst_case = false
why = "a test"
[latency]
limit_ms = 5.0
worst_case = true
sustained = false
why = "a test"
[chip]
precisions = ["int8", "fp16"]
operating_points = ["700MHz", "1000MHz"]
why = "a test"
'''


def qbench(*arguments: object, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", "qbench", *map(str, arguments)], check=False, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def search(cwd: Path, *arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    return qbench("search", "--sample", "fashion", "--limit", 300, "--trials", 6, "--calibrator", "mse", "--no-track", "-t", "rk3588", *arguments, cwd=cwd, code=code)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.toml").write_text(OWN)
    return folder, json.loads(search(folder, "--preset", "shop.toml", "-o", "out", "--json").stdout)


def test_a_preset_of_ones_own_sets_limits_that_the_plan_keeps(shop: tuple[Path, dict[str, Any]]) -> None:
    folder, body = shop
    assert body["budgets"] == ["5ms worst-case", "max-drop 0.03", "max-class-drop 0.06"]
    chosen = body["chosen"]
    assert body["feasible"] and chosen["op_point"] == "700MHz" and set(chosen["layers"]) <= {"int8", "fp16"}
    assert chosen["latency_ms_high"] <= 5.0 and chosen["drop"] <= 0.03 and max(c["drop"] for c in chosen["classes"]) <= 0.06
    assert len(chosen["classes"]) == 10 and sum(c["samples"] for c in chosen["classes"]) == 300
    assert sum(c["samples"] * c["value"] for c in chosen["classes"]) / 300 == pytest.approx(chosen["accuracy"])
    kept = [c for c in body["candidates"] if c["feasible"]]
    assert chosen["energy_mj"] == min(c["energy_mj"] for c in kept if c["sure"] or not any(k["sure"] for k in kept))
    for c in body["candidates"]:
        broken = c["latency_ms_high"] > 5.0 or c["drop"] > 0.03 or max(k["drop"] for k in c["classes"]) > 0.06
        assert c["feasible"] != broken
    assert Plan.load(folder / "out" / "plan.json").op_point == "700MHz"


def test_the_derivation_is_in_summary_report_and_terminal(shop: tuple[Path, dict[str, Any]]) -> None:
    folder, body = shop
    lines = body["preset"]["derivation"]
    assert body["preset"]["name"] == "shop" and lines[0].startswith("1. accuracy: the metric at most 3 points below float")
    assert json.loads((folder / "out" / "summary.json").read_text())["preset"] == body["preset"]
    page = (folder / "out" / "report.html").read_text()
    assert "From the product to the limits: shop" in page and "Class by class" in page and "at most 3 points below float" in page
    printed = search(folder, "--preset", "shop.toml", "--max-drop", "10%", "-o", "again").stdout
    assert "Replaced by --max-drop 0.1" in printed and "class drop" in printed
    qbench("report", "out", "-o", "again.html", cwd=folder)
    assert (folder / "again.html").read_text() == page


def test_the_presets_content_is_part_of_the_study(shop: tuple[Path, dict[str, Any]]) -> None:
    """The same file continues the search; another word in it begins a new one, which still finds the same here."""
    folder, body = shop
    again = json.loads(search(folder, "--preset", "shop.toml", "-o", "out", "--json").stdout)
    assert again["candidates"] == body["candidates"] and again["float_pass_equivalents"] == body["float_pass_equivalents"]
    (folder / "other.toml").write_text(OWN.replace("Sorts clothes", "Sorts shoes"))
    import optuna

    search(folder, "--preset", "other.toml", "-o", "out", "--json")
    assert len(optuna.get_all_study_names(f"sqlite:///{folder}/out/study.db")) == 2


def test_what_cannot_be_judged_is_refused(shop: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = shop
    done = search(folder, "--preset", "shop.toml", "--metric", "cosine", "-o", "no", code=2)
    assert "metric cosine has no classes" in done.stderr and "--max-class-drop none" in done.stderr
    done = search(folder, "--preset", "shop.toml", "--metric", "sqnr", "-o", "no", code=2)
    assert "points of a metric in 0..1, and sqnr is not one" in done.stderr
    assert "no preset 'lock'" in search(folder, "--preset", "lock", "-o", "no", code=2).stderr


def test_presets_are_listed_shown_and_copied(tmp_path: Path) -> None:
    listed = qbench("presets", cwd=tmp_path).stdout
    assert all(name in listed for name in ("door-lock", "medical", "driver-monitor", "wildlife-camera"))
    [shown] = json.loads(qbench("presets", "door-lock", "--json", cwd=tmp_path).stdout)
    assert shown["op_points"][0] == "700MHz" and shown["precisions"] == ["int8", "fp16"] and shown["target"] == "rk3588"
    every = json.loads(qbench("presets", "--target", "mlu370-s4", "--json", cwd=tmp_path).stdout)
    assert [row["name"] for row in every] == ["door-lock", "driver-monitor", "medical", "wildlife-camera"]
    qbench("presets", "door-lock", "--copy", "my.toml", cwd=tmp_path)
    assert json.loads(qbench("presets", "my.toml", "--json", cwd=tmp_path).stdout) == [shown]
    assert "is there already" in qbench("presets", "door-lock", "--copy", "my.toml", cwd=tmp_path, code=2).stderr
    assert "say which preset" in qbench("presets", "--copy", "your.toml", cwd=tmp_path, code=2).stderr
