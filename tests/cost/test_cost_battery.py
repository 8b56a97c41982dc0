"""Battery arithmetic: laws, worked examples, and the leak against a simulation day by day."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qbench.cost.battery import (
    DAYS_PER_MONTH,
    Battery,
    event_mwh_a_day,
    mj_an_event,
    months,
    mwh_a_day,
    standby_mwh_a_day,
)

batteries = st.builds(Battery, st.floats(10, 1e5), st.floats(0.5, 50), st.floats(0.05, 1), st.floats(0, 0.5))
spans = st.floats(0.1, 120)
drains = st.floats(1e-3, 1e5)


def test_units_are_those_of_a_label() -> None:
    """2,500 mAh at 6 V are 15 Wh; 1 mA at 6 V is 6 mW, 144 mWh a day; 1 mWh is 3.6 J."""
    assert Battery(2500, 6.0).usable_mwh == 15_000
    assert Battery(2500, 6.0, 0.8).usable_mwh == pytest.approx(12_000)
    assert standby_mwh_a_day(1000, 6.0) == pytest.approx(144)
    assert mj_an_event(1.0, 1) == 3600
    assert mwh_a_day(Battery(1000, 1.0), 1.0) == pytest.approx(1000 / 30.4375)


@given(batteries, spans)
def test_months_and_drain_are_inverses(battery: Battery, span: float) -> None:
    assert months(battery, mwh_a_day(battery, span)) == pytest.approx(span, rel=1e-9)


@given(st.floats(1e-3, 1e6), st.floats(1e-2, 1e5))
def test_event_and_day_are_inverses(mwh: float, events: float) -> None:
    assert event_mwh_a_day(mj_an_event(mwh, events), events) == pytest.approx(mwh, rel=1e-12)


@given(batteries, drains, st.floats(1.01, 10))
def test_more_drain_means_fewer_months(battery: Battery, drain: float, more: float) -> None:
    assert months(battery, drain * more) < months(battery, drain)


@given(batteries, spans, st.floats(1.01, 10))
def test_longer_standby_leaves_less_a_day(battery: Battery, span: float, more: float) -> None:
    assert mwh_a_day(battery, span * more) < mwh_a_day(battery, span)


@given(st.floats(10, 1e5), st.floats(0.5, 50), st.floats(0.05, 0.9), spans, st.floats(0.01, 0.4), st.floats(1.05, 3))
def test_a_larger_or_tighter_battery_gives_more(mah: float, volts: float, share: float, span: float, leak: float, more: float) -> None:
    base = mwh_a_day(Battery(mah, volts, share, leak), span)
    assert mwh_a_day(Battery(mah * more, volts, share, leak), span) == pytest.approx(base * more)
    assert mwh_a_day(Battery(mah, volts * more, share, leak), span) == pytest.approx(base * more)
    assert mwh_a_day(Battery(mah, volts, share, leak / more), span) > base
    assert base < mwh_a_day(Battery(mah, volts, share, 0.0), span)


@given(batteries, spans)
def test_a_leak_costs_no_more_than_it_takes_from_a_full_battery(battery: Battery, span: float) -> None:
    """Drain alone, and drain plus the leak of the full charge, enclose the exact drain."""
    days = span * DAYS_PER_MONTH
    given_away = mwh_a_day(battery, span)
    assert battery.usable_mwh * (1 / days - battery.leak_per_day) - 1e-9 <= given_away <= battery.usable_mwh / days * (1 + 1e-12)


def test_the_leak_against_a_simulation() -> None:
    """Five-minute steps of a battery that loses 3 % a month: it must be empty at the end, to within what a step takes."""
    battery, span, steps_a_day = Battery(2500, 6.0, 0.8, 0.03), 6.0, 288
    drain = mwh_a_day(battery, span)
    charge = battery.usable_mwh
    for _ in range(round(span * DAYS_PER_MONTH * steps_a_day)):
        charge -= (charge * battery.leak_per_day + drain) / steps_a_day
    assert abs(charge) < drain / 2
    shelf = Battery(2500, 6.0, 1.0, 0.03)
    assert shelf.usable_mwh * math.exp(-shelf.leak_per_day * DAYS_PER_MONTH) == pytest.approx(shelf.usable_mwh * 0.97)


def test_nothing_drawn_lasts_for_ever() -> None:
    assert months(Battery(1000, 3.0), 0.0) == math.inf
    assert months(Battery(1000, 3.0, 1.0, 0.02), 0.0) == math.inf
