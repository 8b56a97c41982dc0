"""The panels beside front and plan: numbers, scales, and what happens where there is nothing to show."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from finished_search import HOSTILE, MEMORY, STORED, Finished
from html_page import Page

from qbench.board import Measurement
from qbench.report import panels, write_report
from qbench.result import SearchResult

WIDTH = panels.WIDTH


def measurement(ms: float) -> Measurement:
    return Measurement.from_dict({
        "board": "replay:rk.json", "model": "m", "recorded": True, "runtime": "r", "facts": {}, "first_run_ms": ms, "load_ms": 1.0, "samples_ms": [ms] * 30, "steps_ms": {},
        "temperature_c": None, "clocks_hz": {}, "series": {}, "power_w": None, "idle_w": None}, "test")


def read(whole: Finished, path: Path, result: SearchResult | None = None, **more: Any) -> Page:
    write_report(result or whole.result, whole.kernels, path, whole.strip, **more)
    page = Page(path.read_text(encoding="utf-8"))
    assert page.open == []
    return page


def test_an_old_result_without_panels_has_none_of_them(whole: Finished, tmp_path: Path) -> None:
    page = read(whole, tmp_path / "r.html")
    assert {"memory", "activations"}.isdisjoint(page.ids)
    assert "No board measured these plans" in page.text


def test_memory_and_histograms_are_drawn_and_told_as_tables(whole: Finished, tmp_path: Path) -> None:
    page = read(whole, tmp_path / "r.html", memory=MEMORY, stored=STORED)
    assert {"memory", "activations"} <= page.ids and HOSTILE not in page.source
    rects = [a for t, a in page.elements if t == "rect"]
    assert sum((a["class"] or "").startswith("m") for a in rects) == 3
    assert [a["class"] for a in rects if a["class"] in ("in", "out")] == ["in", "in", "out"] * 5              # an empty bin is not drawn
    assert "6.00 KB for activations" in page.text and "3 to 24" in page.text
    assert "10.0 dB SQNR. Clipped values: 0.10 %, noise made by clipping: 97 %" in page.text
    assert page.text.index("minmax0 to 4") < page.text.index("kl0 to 2")                                       # the better one first
    groups = [a for t, a in page.elements if t == "div" and "pointed" in (a.get("class") or "")]
    assert len(groups) == 1 + 1 + 5 and all(a["tabindex"] == "0" and a["aria-label"] and a["data-readout"] in page.ids for a in groups)


def test_bars_stand_where_their_values_lie() -> None:
    [first, *_] = panels.histograms(STORED)
    assert [(float(b["x"]), b["text"]) for b in first["bars"]] == [
        (0.0, "0 to 1: 1,000 values"), (WIDTH / 4, "1 to 2: 100 values"), (3 * WIDTH / 4, "3 to 4: 1 values, clipped")]
    assert [float(b["y"]) + float(b["height"]) for b in first["bars"]] == pytest.approx([panels.HEIGHT] * 3, abs=0.11)
    heights = [float(b["height"]) for b in first["bars"]]
    assert heights[0] == panels.HEIGHT and heights[1] / heights[0] == pytest.approx((2 + 0.3) / (3 + 0.3), abs=0.002)
    assert [float(x) for x in first["lines"]] == [pytest.approx(0.001 * WIDTH, abs=0.05), WIDTH / 2]


def test_a_constant_tensor_is_one_bar() -> None:
    [drawn] = panels.histograms([{**STORED[0], "high": 0.0, "histogram": {"low": 0.0, "high": 0.0, "counts": [7]}}])
    assert len(drawn["bars"]) == 1 and all(math.isfinite(float(x)) for x in drawn["lines"])


def test_predicted_stands_beside_measured(whole: Finished, tmp_path: Path) -> None:
    a, b = whole.result.candidates[0], whole.result.candidates[2]                                   # 12.6 ms and 23.1 ms predicted, up to 17 % more
    some = (replace(a, measured=measurement(12.0)), replace(b, measured=measurement(30.0)))
    found = panels.measured(replace(whole.result, candidates=some))
    assert found is not None and found["longest"] == "30.0"
    assert [(r["name"], r["inside"], r["ratio"]) for r in found["rows"]] == [("int8", "yes", "1.05"), ("fp16", "no", "0.77")]
    assert [float(r["dot"].rstrip("%")) for r in found["rows"]] == [40.0, 100.0]
    page = read(whole, tmp_path / "r.html", replace(whole.result, candidates=some))
    assert "12.0 (recorded)" in page.text and "No board measured" not in page.text


def test_calibrators_are_compared_at_one_precision(whole: Finished) -> None:
    int8 = whole.result.uniform["int8"]
    other = replace(int8, name="int8-kl", calibrator="kl", accuracy=replace(int8.accuracy, value=0.92, drop=0.0105, drop_low=0.009, drop_high=0.012))
    mixed = replace(other, name="c1", calibrator="mse", layers=MappingProxyType({"int8": 3, "fp16": 1}))
    assert panels.calibrators(whole.result) is None                                                           # only one was tried
    found = panels.calibrators(replace(whole.result, candidates=(int8, other, mixed)))
    assert found is not None
    assert [(r["name"], r["value"]) for r in found["rows"]] == [("kl", "92.00 %"), ("percentile:p=99.99", "91.74 %"), ("mse", "not evaluated")]
    assert found["rows"][2]["bar"] is None and float(found["zero"].rstrip("%")) == 0.0
    assert float(found["rows"][1]["bar"]["dot"].rstrip("%")) == pytest.approx(100 * 0.0131 / 0.0142, abs=0.1)
