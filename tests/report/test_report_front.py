"""The figure of the front."""

from __future__ import annotations

import html
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from finished_search import HOSTILE, NAN, Finished, candidate

from qbench.report import front_figure
from qbench.report.front import limits
from qbench.result import SearchResult


def traces(result: SearchResult) -> dict[str, Any]:
    return {t["name"]: t for t in json.loads(front_figure(result).to_json())["data"] if "name" in t and t["mode"] != "lines"}


def test_every_candidate_is_drawn_once(whole: Finished) -> None:
    drawn = traces(whole.result)
    names = [text.split(" ")[0] for t in drawn.values() for text in t["hovertext"]]
    assert sorted(names) == sorted({"float", *(c.name for c in whole.result.candidates)})
    assert len(drawn["chosen plan"]["x"]) == 1
    assert len(drawn["uniform plans"]["x"]) == 3


def test_axes_are_milliseconds_and_percent_and_colour_is_energy(whole: Finished) -> None:
    chosen = whole.result.chosen
    assert chosen is not None
    trace = traces(whole.result)["chosen plan"]
    assert trace["x"] == [chosen.price.latency_ms]
    assert trace["y"] == pytest.approx([93.01])
    assert trace["marker"]["color"] == [chosen.price.energy_mj]


def test_plans_that_miss_a_budget_differ_in_shape(whole: Finished) -> None:
    drawn = traces(whole.result)
    assert drawn["uniform plans"]["marker"]["symbol"] == ["square", "square-open", "square-open"]
    assert set(drawn["misses a budget"]["marker"]["symbol"]) == {"x-thin-open"}


def test_hover_tells_the_plan_and_escapes_names(whole: Finished) -> None:
    chosen = whole.result.chosen
    assert chosen is not None
    hostile = replace(chosen, origin=HOSTILE, calibrator="<a href='javascript:1'>x</a>")
    said = traces(replace(whole.result, chosen=hostile))["chosen plan"]["hovertext"][0]
    assert "dice 93.01 % [92.50, 93.49]" in said
    assert "21 INT8, 3 FP16" in said
    assert html.escape(HOSTILE) in said
    assert "<a" not in said
    assert "<script" not in said


def test_error_bars_are_the_latency_interval_and_the_paired_drop(whole: Finished) -> None:
    trace = traces(whole.result)["chosen plan"]
    assert trace["error_y"]["array"] == pytest.approx([0.08])
    assert trace["error_y"]["arrayminus"] == pytest.approx([0.11])
    assert trace["error_x"]["array"] == pytest.approx([13.4 * 0.17])
    assert trace["error_x"]["arrayminus"] == pytest.approx([13.4 * 0.14])


@pytest.mark.parametrize(("budgets", "latency", "accuracy"), [
    (("20ms",), 20.0, None), (("0.02 s", "64MB"), 20.0, None), (("500us",), 0.5, None), (("30fps",), 1000 / 30, None),
    (("latency <= 20 ms", "drop <= 0.5 %"), 20.0, 0.9255), (("max-drop 0.15 pt",), None, 0.929), (("max-drop 0.5%rel",), None, 0.9305 * 0.995), (("max-drop 5e-3",), None, 0.9255), (("max-drop 0.01",), None, 0.9205),
    (("1.5W", "8mJ", "64MB"), None, None), (("20ms", "15ms"), 15.0, None), ((), None, None)])
def test_limits_are_read_back_from_the_budgets(whole: Finished, budgets: tuple[str, ...], latency: float | None, accuracy: float | None) -> None:
    found = limits(replace(whole.result, budgets=budgets))
    assert found.latency_ms == (None if latency is None else pytest.approx(latency))
    assert found.accuracy == (None if accuracy is None else pytest.approx(accuracy))


def test_the_feasible_part_is_shaded(whole: Finished) -> None:
    (shape,) = front_figure(whole.result).layout.shapes
    assert shape.x1 == 20.0
    assert shape.y0 == pytest.approx(92.55)
    assert not front_figure(replace(whole.result, budgets=("8mJ",))).layout.shapes


def test_the_staircase_never_falls(whole: Finished) -> None:
    (line,) = [t for t in front_figure(whole.result).data if t.mode == "lines"]
    assert list(line.x) == sorted(line.x)
    assert list(line.y) == sorted(line.y)


def test_collapsed_plans_leave_the_first_view_but_a_button_shows_them(whole: Finished) -> None:
    figure = front_figure(whole.result)
    assert figure.layout.yaxis.range[0] > 90
    near, everything = figure.layout.updatemenus[0].buttons
    assert everything.args[0]["yaxis.range"][0] < 100 * min(c.accuracy.value for c in whole.result.candidates) < 60
    assert everything.args[0]["xaxis.range"][1] > whole.result.reference.price.latency_ms > near.args[0]["xaxis.range"][1]
    shown = [c for c in whole.result.uniform.values() if near.args[0]["yaxis.range"][0] < 100 * c.accuracy.value]
    assert len(shown) == 3
    assert list(near.args[0]["yaxis.range"]) == list(figure.layout.yaxis.range)


def test_without_outliers_there_is_one_view(whole: Finished) -> None:
    near = tuple(c for c in whole.result.candidates if c.accuracy.value > 0.91 and c.price.latency_ms < 25)
    calm = replace(whole.result, candidates=near, front=near[:3], uniform={}, reference=replace(near[0], name="float"))
    assert not front_figure(calm).layout.updatemenus


def test_missing_numbers_are_left_out_and_counted(whole: Finished) -> None:
    broken = replace(whole.result.candidates[5], accuracy=replace(whole.result.candidates[5].accuracy, value=NAN))
    result = replace(whole.result, candidates=(*whole.result.candidates[:5], broken, *whole.result.candidates[6:]),
                     front=tuple(c for c in whole.result.front if c.name != broken.name))
    figure = front_figure(result)
    assert "1 not drawn" in figure.layout.xaxis.title.text
    assert all(math.isfinite(y) for t in figure.data for y in t.y if y is not None)


def test_without_energy_the_front_is_drawn_in_one_colour(whole: Finished) -> None:
    def blank(c: Any) -> Any:
        return replace(c, price=replace(c.price, energy_mj=NAN))

    r = whole.result
    result = replace(r, reference=blank(r.reference), uniform={k: blank(c) for k, c in r.uniform.items()}, chosen=blank(r.chosen),
                     front=tuple(map(blank, r.front)), candidates=tuple(map(blank, r.candidates)))
    assert not any(t.marker.showscale for t in front_figure(result).data)


def test_a_plan_without_energy_is_drawn_among_those_that_have_one(whole: Finished) -> None:
    """plotly refuses a missing number among colours."""
    reference = replace(whole.result.reference, price=replace(whole.result.reference.price, energy_mj=NAN))
    drawn = traces(replace(whole.result, reference=reference))
    assert drawn["float reference"]["marker"]["color"] == ["#52514e"]
    assert drawn["chosen plan"]["marker"]["color"] == traces(whole.result)["chosen plan"]["marker"]["color"]


def test_nothing_to_draw_is_an_empty_figure(bare: Finished) -> None:
    figure = front_figure(bare.result)
    assert len(figure.data) == 0
    assert "1 not drawn" in figure.layout.xaxis.title.text


def test_marks_that_lie_together_share_one_text(whole: Finished) -> None:
    r = whole.result
    assert r.chosen is not None
    apart = traces(r)
    assert apart["uniform plans"]["text"] == ["all INT8", "all INT16", "all FP16"] and apart["float reference"]["text"] == ["float"]
    there = r.uniform["int16"]
    other = replace(there, name="fp16", price=replace(there.price, latency_ms=there.price.latency_ms * 1.001))
    together = traces(replace(r, uniform={**r.uniform, "fp16": other}, candidates=tuple(c for c in r.candidates if c.name != "fp16")))
    assert together["uniform plans"]["text"] == ["all INT8", "all INT16<br>all FP16", ""]


@pytest.mark.parametrize(("dx", "dy", "spot"), [(0.5, 0.004, "top left"), (-0.5, 0.004, "top right"), (0.5, -0.004, "top right")])
def test_the_text_of_the_chosen_plan_keeps_off_other_marks(whole: Finished, dx: float, dy: float, spot: str) -> None:
    """In the middle of the picture with another plan beside it, above or below, to the right or left. Its bars run through it, so it stands at a corner."""
    chosen = candidate("c040", 15.0, 0.90, layers={"int8": 24})
    far = [candidate("int8", 10.0, 0.85, layers={"int8": 24}), candidate("c001", 20.0, 0.80, layers={"int8": 24}), candidate("c002", 10.0, 0.95, layers={"int8": 24})]
    near = candidate("c003", 15.0 + dx, 0.90 + dy, layers={"int8": 24})
    result = replace(whole.result, chosen=chosen, front=(), uniform={}, reference=replace(far[1], name="float"), candidates=(*far, near, chosen))
    assert traces(result)["chosen plan"]["textposition"] == [spot]


def test_texts_at_the_rim_stay_inside(whole: Finished) -> None:
    """The float reference is the slowest here, and all INT8 the fastest."""
    name = "a precision with a long name"
    uniform = {name: whole.result.uniform["int8"]}
    drawn = traces(replace(whole.result, candidates=(), front=(), uniform=uniform))
    assert drawn["float reference"]["textposition"][0].endswith("left") and drawn["uniform plans"]["textposition"][0].endswith("right")


def test_texts_beside_marks_are_escaped(whole: Finished) -> None:
    evil = replace(whole.result.uniform["int8"], name="evil")
    drawn = traces(replace(whole.result, uniform={HOSTILE: evil}))["uniform plans"]["text"]
    assert drawn == [html.escape(f"all {HOSTILE.upper()}")]
