"""The RC model against scipy's integrator, and what an ambient, a rule and a housing do to a latency."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from qbench.cost.thermal import Cooling, Sustained, Working, cold, rule_text, sustained
from qbench.errors import TargetError
from qbench.target import ThermalRule
from qbench.targets import load

FOUND = load("rk3588").thermal
assert FOUND is not None
RULE: ThermalRule = FOUND
# Shaped like RK3588: latency falls with the clock, watts rise faster
POINTS = (Working("600MHz", 600e6, 16e-3, 2.0), Working("800MHz", 800e6, 12.5e-3, 3.0), Working("1000MHz", 1000e6, 10e-3, 5.0))
ambients, resistances, capacities = st.floats(-40.0, 84.0), st.floats(0.5, 40.0), st.floats(0.5, 200.0)


def run(ambient: float, resistance: float, capacity: float, op_point: str = "1000MHz", rule: ThermalRule | None = RULE,
        start: float | None = None) -> Sustained:
    return sustained(POINTS, op_point, Cooling(ambient, resistance, capacity), rule, start)


def integrated(ambient: float, resistance: float, capacity: float, start: float, phases: int) -> list[tuple[float, bool]]:
    """Durations of the phases between throttle and release by scipy's Runge-Kutta, full speed first: (seconds, at full speed)."""
    watts, full, found = {True: POINTS[2].watts, False: POINTS[1].watts}, True, list[tuple[float, bool]]()
    temperature = start
    for _ in range(phases):
        goal = RULE.throttle_above_c if full else RULE.release_below_c

        def crossing(_: float, y: Sequence[float], goal: float = goal) -> float:
            return y[0] - goal

        crossing.terminal = True  # type: ignore[attr-defined]
        run = solve_ivp(lambda _, y, p=watts[full]: [(p * resistance - (y[0] - ambient)) / (resistance * capacity)], (0.0, 50 * resistance * capacity),
                        [temperature], events=crossing, rtol=1e-10, atol=1e-10)
        assert run.t_events[0].size == 1
        found.append((float(run.t[-1]), full))
        temperature, full = goal, not full
    return found


@given(ambient=ambients, resistance=resistances, capacity=capacities, start=st.floats(-40.0, 120.0), share=st.floats(0.01, 5.0))
def test_temperature_follows_the_differential_equation(ambient: float, resistance: float, capacity: float, start: float, share: float) -> None:
    cooling, seconds = Cooling(ambient, resistance, capacity), share * resistance * capacity
    run = solve_ivp(lambda _, y: [(4.0 * resistance - (y[0] - ambient)) / (resistance * capacity)], (0.0, seconds), [start], rtol=1e-9, atol=1e-9)
    now = cooling.temperature_c(start, 4.0, seconds)
    assert now == pytest.approx(run.y[0, -1], abs=1e-5)
    if abs(now - start) > 1e-3 and share < 3.0:
        assert cooling.seconds_to(now, start, 4.0) == pytest.approx(seconds, rel=1e-6)


@given(ambient=ambients, resistance=resistances, capacity=capacities)
def test_steady_state_is_power_times_resistance(ambient: float, resistance: float, capacity: float) -> None:
    cooling = Cooling(ambient, resistance, capacity)
    assert cooling.steady_c(3.0) == pytest.approx(ambient + 3.0 * resistance)
    assert cooling.temperature_c(20.0, 3.0, 60 * resistance * capacity) == pytest.approx(cooling.steady_c(3.0), abs=1e-9)
    found = run(ambient, resistance, capacity, rule=None)
    assert found.state == "never throttles"
    assert found.temperature_c == pytest.approx(ambient + 5.0 * resistance)


def test_unreachable_temperatures_take_for_ever() -> None:
    cooling = Cooling(20.0, 10.0, 5.0)                          # 3 W end at 50 C
    assert cooling.seconds_to(50.0, 20.0, 3.0) == math.inf == cooling.seconds_to(60.0, 20.0, 3.0) == cooling.seconds_to(10.0, 20.0, 3.0)
    assert cooling.seconds_to(20.0, 20.0, 3.0) == 0.0


@pytest.mark.parametrize(("ambient", "resistance", "capacity"), [(30.0, 12.0, 8.0), (40.0, 10.0, 30.0), (25.0, 15.0, 4.0), (46.0, 9.0, 8.0)])
def test_oscillation_agrees_with_the_integrator(ambient: float, resistance: float, capacity: float) -> None:
    """Two whole periods after the burst, 800 MHz in between."""
    found = run(ambient, resistance, capacity)
    assert found.state == "oscillates" and found.throttled_point == "800MHz" and found.holds
    phases = integrated(ambient, resistance, capacity, ambient, 5)
    assert found.burst_s == pytest.approx(phases[0][0], rel=1e-5)
    later = phases[1:]
    total = sum(t for t, _ in later)
    assert found.period_s == pytest.approx(total / 2, rel=1e-5)
    assert found.duty == pytest.approx(sum(t for t, full in later if full) / total, rel=1e-5)
    done = sum(t / (POINTS[2] if full else POINTS[1]).latency_s for t, full in later)
    assert found.latency_s == pytest.approx(total / done, rel=1e-5)
    assert found.watts == pytest.approx(sum(t * (POINTS[2] if full else POINTS[1]).watts for t, full in later) / total, rel=1e-5)


@given(ambient=ambients, hotter=st.floats(0.0, 60.0), resistance=resistances, capacity=capacities, op_point=st.sampled_from(["600MHz", "800MHz", "1000MHz"]))
def test_hotter_never_lowers_sustained_latency_nor_lengthens_the_burst(ambient: float, hotter: float, resistance: float, capacity: float,
                                                                       op_point: str) -> None:
    now, then = run(ambient, resistance, capacity, op_point), run(min(ambient + hotter, 125.0), resistance, capacity, op_point)
    assert then.latency_s >= now.latency_s * (1 - 1e-12)
    assert then.burst_s <= now.burst_s * (1 + 1e-9) and then.burst_latency_s == now.burst_latency_s
    assert then.duty <= now.duty + 1e-12


@given(ambient=ambients, resistance=resistances, worse=st.floats(1.0, 4.0), capacity=capacities)
def test_a_worse_housing_never_lowers_sustained_latency(ambient: float, resistance: float, worse: float, capacity: float) -> None:
    now, then = run(ambient, resistance, capacity), run(ambient, resistance * worse, capacity)
    assert then.latency_s >= now.latency_s * (1 - 1e-12)
    assert POINTS[2].latency_s <= now.latency_s <= POINTS[1].latency_s and 0.0 <= now.duty <= 1.0


@given(ambient=ambients, resistance=resistances, capacity=capacities, factor=st.floats(0.1, 10.0))
def test_heat_capacity_changes_times_alone(ambient: float, resistance: float, capacity: float, factor: float) -> None:
    now, then = run(ambient, resistance, capacity), run(ambient, resistance, capacity * factor)
    assert (now.state, now.temperature_c) == (then.state, then.temperature_c)
    assert then.latency_s == pytest.approx(now.latency_s) and then.duty == pytest.approx(now.duty, rel=1e-6)
    if now.burst_s not in (0.0, math.inf):
        assert then.burst_s == pytest.approx(now.burst_s * factor)


def test_states_by_hand() -> None:
    """10 K/W: 1000 MHz heats by 50 K, 800 MHz by 30 K."""
    assert run(30.0, 10.0, 8.0).state == "never throttles"                      # ends at 80
    assert run(36.0, 10.0, 8.0).state == "oscillates"                           # 86 and 66
    warm, hot = run(52.0, 10.0, 8.0), run(60.0, 10.0, 8.0)
    assert (warm.state, warm.holds, warm.temperature_c) == ("stays throttled", True, 82.0)
    assert (hot.state, hot.holds, hot.temperature_c, hot.latency_s) == ("stays throttled", False, 90.0, 12.5e-3)
    slow = run(70.0, 10.0, 8.0, "600MHz")                                       # under the cap: the rule has nothing left to take
    assert (slow.state, slow.holds, slow.throttled_point) == ("never throttles", False, "")


def test_a_hot_start_is_throttled_at_once() -> None:
    assert run(36.0, 10.0, 8.0, start=86.0).burst_s == 0.0
    cools = run(30.0, 10.0, 8.0, start=86.0)                                    # 80 C and 60 C in the end: it comes back and stays
    assert (cools.state, cools.burst_s, cools.latency_s) == ("never throttles", 0.0, 10e-3)
    assert run(36.0, 10.0, 8.0, start=60.0).burst_s < run(36.0, 10.0, 8.0).burst_s


def test_cold_keeps_the_volts_up() -> None:
    rk3588 = load("rk3588")
    assert cold(rk3588, 10.0) is rk3588 and cold(load("host"), -20.0) is load("host")
    volts = [p.volts for p in cold(rk3588, 9.0).operating_points]
    assert volts == [0.75] * 6 + [0.8, 0.85]


def test_rule_in_words() -> None:
    """Golden: RK3588 npu_opp_table, 85 C with 5 C of hysteresis, 800 MHz; 10 C, 750 mV."""
    assert rule_text(RULE).startswith("at 85 C or more the clock is capped at 800 MHz, until 80 C; below 10 C the supply stays at 0.75 V or more [Rockchip")
    assert rule_text(None) == "no public throttle rule"


@pytest.mark.parametrize("values", [(20.0, 0.0, 1.0), (20.0, 1.0, -1.0), (200.0, 1.0, 1.0), (np.nan, 1.0, 1.0)])
def test_impossible_boards_are_refused(values: tuple[float, float, float]) -> None:
    with pytest.raises(TargetError, match=r"ambient is .* C, thermal resistance .* K/W, heat capacity .* J/K; expected -60 to 125 C and the other two above 0"):
        Cooling(*values)
