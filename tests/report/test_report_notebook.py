"""What notebooks show: well-formed, small, without colours, and safe with any name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from finished_search import HOSTILE, Finished
from html_page import Page

from qbench.comparison import Comparison, Layer, Row
from qbench.protocols import Accuracy, Price
from qbench.statistics import Source, Statistics
from qbench.statistics.sketch import TensorStatistics


def page_of(result: Any) -> Page:
    source = result._repr_html_()
    page = Page(source)
    assert page.open == [] and len(source) < 20_000
    assert "color" not in source and "background" not in source and HOSTILE not in source
    assert [t for t, _ in page.elements if t in ("script", "img", "style", "link")] == []
    return page


def test_a_search_shows_its_plans_side_by_side(whole: Finished, infeasible: Finished, bare: Finished) -> None:
    page = page_of(replace(whole.result, model=HOSTILE))
    assert HOSTILE in page.text and "all INT8" in page.text and "93.01" in page.text and "[11.5, 15.7]" in page.text
    assert "What binds: latency 0.01 ms" in page_of(infeasible.result).text
    assert "No plan was evaluated." in page_of(bare.result).text


def test_statistics_show_the_tensors_whose_extremes_stand_out() -> None:
    flat, tailed = np.linspace(-1.0, 1.0, 5000, dtype=np.float32), np.append(np.linspace(-1.0, 1.0, 5000), 40.0).astype(np.float32)
    tensors = {name: TensorStatistics.of(x, name) for name, x in ((HOSTILE, flat), ("tailed", tailed), *((f"t{i}", flat) for i in range(15)))}
    page = page_of(Statistics("m" * 64, (Source("s" * 64, "data", 1),), tensors))
    assert page.text.index("tailed") < page.text.index(HOSTILE) and "17 tensors" in page.text and "and 5 more rows" in page.text
    assert f"tailed-140{np.mean(tailed):.4g}" in page.text.replace(" ", "")


def test_a_comparison_shows_its_plans_most_accurate_first() -> None:
    def row(calibrator: str, value: float) -> Row:
        accuracy = Accuracy("top1", value, value - 0.01, value + 0.01, 200, 0.9 - value, 0.0, 0.02, 30.0, 0.99, 0.1, 0.5)
        return Row("int8", calibrator, "per-channel", accuracy, Layer(HOSTILE, 12.5), 1000, Price(1.0, 0.9, 1.1, 1.0, 1.0, 10, "1GHz"), {"int8": 3})

    rows = (row("minmax", 0.8), row("kl", 0.85))
    page = page_of(Comparison("net", False, "rk3588", "2.3", replace(row("", 0.9), precision="float"), rows, (), ("minmax", "kl"), 8, 1.0, {}))
    table = page.text[page.text.index("worst layer"):]
    assert table.index("kl") < table.index("minmax") and "85.00 % [84.00, 86.00]" in table and "12.5 dB" in table
