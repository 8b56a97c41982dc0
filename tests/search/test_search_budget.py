"""Budgets: text in, text out, and what keeps a limit."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qbench.errors import BudgetError
from qbench.protocols import Accuracy, Price
from qbench.search.budget import ACCEPTED, DROP_ACCEPTED, Budget, Kind, MaxDrop, parse_budgets

PRICE = Price(latency_ms=20.0, latency_ms_low=18.0, latency_ms_high=25.0, energy_mj=8.0, power_w=0.4,
              peak_memory_bytes=64_000_000, op_point="1GHz")
ACCURACY = Accuracy("dice", value=0.90, low=0.89, high=0.91, samples=48, drop=0.02, drop_low=0.01, drop_high=0.03,
                    sqnr_db=20.0, cosine=0.99, kl=math.nan, seconds=1.0)

# One of each unit, what it is in its kind's own unit (ms, W, mJ, bytes, inferences a second), and its canonical text.
UNITS = [
    ("20ms", Kind.LATENCY, 20.0, "20ms"),
    ("0.5s", Kind.LATENCY, 500.0, "500ms"),
    ("800us", Kind.LATENCY, 0.8, "800us"),
    ("800µs", Kind.LATENCY, 0.8, "800us"),
    ("1.5W", Kind.POWER, 1.5, "1.5W"),
    ("900mW", Kind.POWER, 0.9, "900mW"),
    ("20uW", Kind.POWER, 2e-5, "20uW"),
    ("8mJ", Kind.ENERGY, 8.0, "8mJ"),
    ("500uJ", Kind.ENERGY, 0.5, "500uJ"),
    ("0.01J", Kind.ENERGY, 10.0, "10mJ"),
    ("1GB", Kind.MEMORY, 1e9, "1GB"),
    ("64MB", Kind.MEMORY, 64e6, "64MB"),
    ("512KB", Kind.MEMORY, 512e3, "512KB"),
    ("2GiB", Kind.MEMORY, 2147483648.0, "2GiB"),
    ("32MiB", Kind.MEMORY, 33554432.0, "32MiB"),
    ("96KiB", Kind.MEMORY, 98304.0, "96KiB"),
    ("4096B", Kind.MEMORY, 4096.0, "4KiB"),
    ("777B", Kind.MEMORY, 777.0, "777B"),
    ("30fps", Kind.RATE, 30.0, "30fps"),
]

REFUSED = [
    ("", "not a positive number with a unit"),
    ("ms", "not a positive number with a unit"),
    ("-5ms", "not a positive number with a unit"),
    ("nan ms", "not a positive number with a unit"),
    ("٣ms", "not a positive number with a unit"),
    ("0ms", "must be greater than 0"),
    ("1e16ms", "at most 10^15"),
    ("20", "has no unit"),
    ("20 parsecs", "the unknown unit 'parsecs'"),
    ("20ms 30ms", "the unknown unit"),
    ("2MW", "m for milli"),
    ("2MJ", "m for milli"),
    ("2mw", "the unknown unit 'mw'"),
]

budgets = st.builds(Budget, st.sampled_from(Kind), st.floats(1e-9, 1e12))
drops = st.builds(MaxDrop, st.floats(0.0, 1.0), st.booleans())
spaces = st.sampled_from(["", " ", "\t", "  "])


@pytest.mark.parametrize(("text", "kind", "limit", "canonical"), UNITS)
def test_every_unit(text: str, kind: Kind, limit: float, canonical: str) -> None:
    assert Budget.parse(text) == Budget(kind, limit)
    assert Budget.parse(text).text == canonical


@given(number=st.decimals(min_value="0.001", max_value="1e9", places=3), unit=st.sampled_from(UNITS), before=spaces, between=spaces)
def test_a_budget_is_number_times_unit_rounded_once(number: object, unit: tuple[str, Kind, float, str], before: str, between: str) -> None:
    text, kind, limit, _ = unit
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZµ")
    factor = Fraction(str(limit)) / Fraction(digits)
    found = Budget.parse(f"{before}{number}{between}{text[len(digits):]} ")
    assert found == Budget(kind, float(Fraction(str(number)) * factor))


@given(budget=budgets)
def test_canonical_text_parses_back(budget: Budget) -> None:
    assert Budget.parse(budget.text) == budget


@given(budget=budgets)
def test_canonical_text_has_no_exponent_and_one_spelling(budget: Budget) -> None:
    assert "e" not in budget.text.lower()
    assert Budget.parse(budget.text).text == budget.text


@pytest.mark.parametrize("text", ["20MS", "20Ms", "64mb", "32mib", "30FPS", "2e1ms", "20.ms", "20.0 ms"])
def test_other_spellings_without_a_second_meaning_are_read(text: str) -> None:
    assert Budget.parse(text).text in ("20ms", "64MB", "32MiB", "30fps")


@pytest.mark.parametrize(("text", "said"), REFUSED)
def test_refusals_name_the_text_and_what_is_accepted(text: str, said: str) -> None:
    with pytest.raises(BudgetError) as caught:
        Budget.parse(text)
    assert repr(text) in str(caught.value)
    assert said in str(caught.value)
    assert str(caught.value).endswith(ACCEPTED)


@given(text=st.one_of(st.text(max_size=20), st.from_regex(r"\s?[0-9.,]{1,6}(e[+-]?[0-9]{1,3})? ?[a-zA-Zµ%]{0,4}", fullmatch=True)))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        budget = Budget.parse(text)
    except BudgetError as error:
        assert ACCEPTED in str(error)
    else:
        assert 0.0 < budget.limit < math.inf
        assert Budget.parse(budget.text) == budget


def test_every_accepted_example_is_accepted() -> None:
    examples = ACCEPTED.removeprefix("accepted are ").replace(" and ", ", ").split(", ")
    assert len(examples) == 13
    assert {Budget.parse(e).kind for e in examples} == set(Kind)


def test_two_budgets_of_one_kind_are_refused() -> None:
    assert [b.text for b in parse_budgets(["20ms", "1W"])] == ["20ms", "1W"]
    with pytest.raises(BudgetError, match="two budgets for latency: 20ms and 30ms; keep one"):
        parse_budgets(["20ms", "1W", "0.03s"])


# ------------------------------------------------------------------------------------------------ kept or not

VALUES = [(Kind.LATENCY, 20.0), (Kind.POWER, 0.4), (Kind.ENERGY, 8.0), (Kind.MEMORY, 64e6), (Kind.RATE, 50.0)]


@pytest.mark.parametrize(("kind", "value"), VALUES)
def test_met_exactly_at_the_limit(kind: Kind, value: float) -> None:
    harder = -1e-9 if kind is not Kind.RATE else 1e-9
    assert Budget(kind, value).value(PRICE) == value
    assert Budget(kind, value).met_by(PRICE)
    assert Budget(kind, value).excess(PRICE) == 0.0
    assert not Budget(kind, value * (1.0 + harder)).met_by(PRICE)


@pytest.mark.parametrize(("kind", "value", "excess"), [(k, v, 1.0) for k, v in VALUES])
def test_excess_is_a_share_of_the_limit(kind: Kind, value: float, excess: float) -> None:
    """A price of twice the limit, or half the rate, is beyond it by once the limit."""
    limit = value * 2.0 if kind is Kind.RATE else value / 2.0
    assert Budget(kind, limit).excess(PRICE) == excess


# The interval's upper end is 25 ms: 1.25 times the mean, also for the energy, which grows with the time.
@pytest.mark.parametrize(("sure", "unsure"), [("25ms", "24.9ms"), ("10mJ", "9.9mJ"), ("40fps", "40.1fps"), ("0.4W", "0.39W"), ("64MB", "63.9MB")])
def test_sure_with_the_upper_end_of_the_interval(sure: str, unsure: str) -> None:
    assert Budget.parse(sure).sure_by(PRICE)
    assert not Budget.parse(unsure).sure_by(PRICE)


@given(budget=budgets, latency=st.floats(1e-3, 1e6), late=st.floats(1.0, 3.0), energy=st.floats(1e-3, 1e6), size=st.integers(1, 10**12))
def test_sure_implies_met(budget: Budget, latency: float, late: float, energy: float, size: int) -> None:
    price = Price(latency, latency, latency * late, energy, energy / latency, size, "")
    assert budget.met_by(price) or not budget.sure_by(price)
    certain = replace(price, latency_ms_high=latency)
    assert budget.sure_by(certain) == (budget.value(certain) >= budget.limit if budget.kind is Kind.RATE else budget.value(certain) <= budget.limit)


def test_a_rate_caps_the_latency() -> None:
    assert Budget.parse("50fps").latency_cap_ms == 20.0
    assert Budget.parse("20ms").latency_cap_ms == 20.0
    assert [Budget.parse(t).latency_cap_ms for t in ("1W", "1mJ", "1MB")] == [None] * 3


# ------------------------------------------------------------------------------------------------ allowed drop


@pytest.mark.parametrize(("text", "limit", "relative", "canonical"), [
    ("0.5%", 0.005, False, "0.005"), ("0.5pt", 0.005, False, "0.005"), ("0.005", 0.005, False, "0.005"), ("2", 2.0, False, "2"),
    ("0.5%rel", 0.005, True, "0.5%rel"), ("0.5 % rel", 0.005, True, "0.5%rel"), ("0", 0.0, False, "0"), ("0%", 0.0, False, "0"),
    ("0.0pt", 0.0, False, "0"), ("0%rel", 0.0, True, "0%rel")])
def test_max_drop_texts(text: str, limit: float, relative: bool, canonical: str) -> None:
    assert MaxDrop.parse(text) == MaxDrop(limit, relative)
    assert MaxDrop.parse(text).text == canonical


@given(drop=drops)
def test_max_drop_text_parses_back(drop: MaxDrop) -> None:
    assert MaxDrop.parse(drop.text) == drop


@pytest.mark.parametrize(("text", "said"), [("", "not a positive number"), ("-1%", "not a positive number"), ("5mm", "unknown unit 'mm'"),
                                            ("101%", "more than everything"), ("200%rel", "more than everything")])
def test_max_drop_refusals(text: str, said: str) -> None:
    with pytest.raises(BudgetError) as caught:
        MaxDrop.parse(text)
    assert repr(text) in str(caught.value)
    assert said in str(caught.value)
    assert str(caught.value).endswith(DROP_ACCEPTED)


@pytest.mark.parametrize(("whole", "right", "text"), [(0.79, 0.785, "0.5%"), (0.96, 0.95, "1%"), (0.3, 0.1, "20%"), (0.8, 0.72, "10%rel")])
def test_a_drop_of_exactly_the_limit_keeps_it(whole: float, right: float, text: str) -> None:
    """One sample of 200 is half a point, whatever binary makes of the difference."""
    at = replace(ACCURACY, value=right, drop=whole - right)
    assert MaxDrop.parse(text).met_by(at)
    assert not MaxDrop.parse(text).met_by(replace(at, value=right - 1e-6, drop=whole - right + 1e-6))


def test_max_drop_absolute_and_relative_to_the_float_value() -> None:
    """The float model is at 0.92: two points lost are 2.17 % of it."""
    assert MaxDrop(0.02).met_by(ACCURACY)
    assert not MaxDrop(0.0199).met_by(ACCURACY)
    assert MaxDrop(0.022, relative=True).met_by(ACCURACY)
    assert not MaxDrop(0.0215, relative=True).met_by(ACCURACY)
    assert MaxDrop(0.03).sure_by(ACCURACY)
    assert not MaxDrop(0.0299).sure_by(ACCURACY)
    assert MaxDrop(0.5, relative=True).allowed(-4.0) == 2.0
    assert MaxDrop(0.015).excess(ACCURACY) == pytest.approx(0.005, rel=1e-12)
