"""Numbers and verdicts in words."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from finished_search import NAN, Finished
from hypothesis import given
from hypothesis import strategies as st

from qbench.report import text


@pytest.mark.parametrize(("x", "expected"), [
    (12.94, "12.9"), (0.03119, "0.0312"), (1234.4, "1234"), (9.996, "10.00"), (0, "0.00"), (0.0, "0.00"), (NAN, "n/a"), (math.inf, "n/a"),
    (None, "n/a"), ("7", "n/a")])
def test_three_significant_digits_and_no_exponent(x: object, expected: str) -> None:
    assert text.significant(x) == expected


@given(st.floats(1e-9, 1e9))
def test_significant_text_is_within_half_a_digit(x: float) -> None:
    shown = text.significant(x)
    assert "e" not in shown
    assert abs(float(shown) - x) <= max(0.005 * x * (1 + 1e-9), 0.5 if x >= 100 else 0.0)


def test_interval_has_the_decimals_of_its_value() -> None:
    assert text.interval(9.87, 8.491, 11.338) == "[8.49, 11.34]"
    assert text.interval(12.9, 11.08, 15.09) == "[11.1, 15.1]"
    assert text.interval(12.9, NAN, 15.0) == ""


@pytest.mark.parametrize(("n", "expected"), [
    (4_123_456, "4.12 MB"), (812_000, "812 KB"), (512, "512 B"), (0, "0 B"), (1_000_000, "1.00 MB"), (NAN, "n/a"), (-1, "n/a")])
def test_sizes_are_decimal_megabytes(n: float, expected: str) -> None:
    assert text.size(n) == expected


@pytest.mark.parametrize(("seconds", "expected"), [(4.04, "4.0 s"), (4, "4 s"), (48.2, "48 s"), (192.9, "3 min 12 s"), (NAN, "n/a")])
def test_durations(seconds: float, expected: str) -> None:
    assert text.duration(seconds) == expected


def test_a_metric_between_zero_and_one_is_percent_and_its_drop_points(whole: Finished) -> None:
    scale = text.scale_of(whole.result)
    assert scale.value(0.930149) == "93.01 %"
    assert scale.interval(0.92, 1.0) == "[92.00, 100.00]"
    assert scale.drop(0.0004) == "0.04 points"
    assert scale.number(-0.00001) == "0.00"            # never "-0.00"
    assert scale.value(NAN) == "n/a"


def test_decibels_stay_decibels_also_below_one(whole: Finished) -> None:
    reference = replace(whole.result.reference, accuracy=replace(whole.result.reference.accuracy, metric="sqnr_db", value=0.5))
    assert text.scale_of(replace(whole.result, reference=reference)).value(0.5) == "0.50 dB"


def test_a_metric_outside_zero_and_one_is_its_own_number(whole: Finished) -> None:
    high = replace(whole.result.reference, accuracy=replace(whole.result.reference.accuracy, metric="reward", value=17.25))
    assert text.scale_of(replace(whole.result, reference=high)).value(17.25) == "17.250"


def test_plans_stand_in_a_fixed_order(whole: Finished, bare: Finished) -> None:
    assert [label for label, _ in text.side_by_side(whole.result)] == ["float", "all INT8", "all INT16", "all FP16", "chosen"]
    assert [label for label, _ in text.side_by_side(bare.result)] == ["float"]


def test_every_row_has_one_cell_per_plan(whole: Finished) -> None:
    rows = text.comparison(whole.result)
    assert all(len(q.cells) == 5 for q in rows)
    by_name = {q.short: q for q in rows}
    assert by_name["accuracy"].cells[-1] == text.Cell("93.01", "[92.50, 93.49]")
    assert by_name["latency"].cells[-1] == text.Cell("13.4", "[11.5, 15.7]")
    assert by_name["drop"].cells[0] == text.Cell("")
    assert [c.value for c in by_name["budget"].cells] == ["", "yes", "no", "no", "yes"]


def test_power_is_called_unvalidated_unless_the_provenance_says_better(whole: Finished) -> None:
    assert "power (relative, unvalidated)" in [q.label for q in text.comparison(whole.result)]
    unknown = replace(whole.result, provenance={})
    assert text.power_note(unknown) == "relative, unvalidated"
    assert text.power_note(replace(whole.result, provenance={"power": "validated on 3 boards"})) == "validated on 3 boards"


def test_verdicts(whole: Finished, infeasible: Finished, bare: Finished) -> None:
    result = whole.result
    assert result.chosen is not None
    assert text.verdict(result) == "Meets the budget, also with the upper end of the predicted interval."
    unsure = replace(result, chosen=replace(result.chosen, sure=False), unsure=("20ms",))
    assert text.verdict(unsure) == "Meets the budget with its predicted mean; the far end of the interval does not keep 20ms."
    assert text.verdict(infeasible.result) == (
        "No plan meets the budget. What binds: latency 0.01 ms. Best possible: 11.9 ms (all INT8 at 1000MHz).")
    assert text.verdict(bare.result) == "Stopped before the search was done. No plan was evaluated."
    assert text.verdict(replace(result, budgets=())) == "No budget was given: the most frugal plan that is as accurate as the best one."
    assert text.found(bare.result) == ""
    assert text.found(result) == "13.4 ms [11.5, 15.7] predicted, dice 93.01 %, 0.04 points below float; 21 INT8, 3 FP16"


def test_basis_names_what_the_prediction_rests_on(whole: Finished, bare: Finished) -> None:
    said = text.basis(whole.result)
    assert "predicted, 80 % interval" in said
    assert "validated on 6 graphs left out" in said
    assert "validated on nothing: unvalidated" in text.basis(bare.result)


@given(st.text())
def test_plain_names_hold_no_control_characters(name: str) -> None:
    shown = text.plain(name)
    assert len(shown) == len(name)
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u202e\u2066" for c in shown)


@pytest.mark.parametrize(("names", "expected"), [((), ""), (("a",), "a"), (("a", "b"), "a, b"), (("a", "b", "c"), "a, b and 1 more"), (("\x1b[2J", "b"), "\ufffd[2J, b")])
def test_long_lists_say_how_many_are_left(names: tuple[str, ...], expected: str) -> None:
    assert text.some(names, 2) == expected
