"""Watts: constants from readings, the operating point of least energy, and the fitted boards against their published runs."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cost_networks import branched
from hypothesis import given
from hypothesis import strategies as st
from test_cost_targets import published_networks

from qbench.cost import CostTable, cost_model
from qbench.cost.energy import leakage_watts
from qbench.cost.parameters import EnergyParameters, NpuParameters, read_parameters
from qbench.cost.power import Reading, calibrate_power, effective_farads
from qbench.errors import TargetError
from qbench.network import Precision
from qbench.target import OperatingPoint, Target
from qbench.targets import load

INT8 = Precision.INT8
RK = load("rk3588")
NET = branched()


def parameters(target: Target) -> EnergyParameters:
    return read_parameters("test", target.cost_model, target.cost)


def dynamic(target: Target, op_point: str) -> tuple[float, float]:
    """Joules beside the static power and seconds of the test network in INT8."""
    table = CostTable.build(NET, target)
    price = table.price(table.uniform(INT8)[None], op_point)[0]
    static = cost_model(target).static_watts(target.operating_point(op_point))
    return price.energy_mj * 1e-3 - static * price.latency_ms * 1e-3, price.latency_ms * 1e-3


def reading(op_point: str, idle_w: float, busy_w: float, celsius: float = 25.0) -> Reading:
    joules, seconds = dynamic(RK, op_point)
    return Reading(op_point, idle_w, busy_w, 1.0 / seconds, joules, celsius)


def board_watts(target: Target, op_point: str) -> float:
    table = CostTable.build(NET, target)
    return table.price(table.uniform(INT8)[None], op_point)[0].power_w


# ------------------------------------------------------------------------------------------------------- readings

@given(idle=st.floats(0.05, 30.0), more=st.floats(0.05, 30.0), point=st.sampled_from(["300MHz", "800MHz", "1000MHz"]))
def test_one_pair_of_readings_comes_back_as_the_board_power_of_what_ran(idle: float, more: float, point: str) -> None:
    found = calibrate_power(RK, [reading(point, idle, idle + more)])
    assert board_watts(found, point) == pytest.approx(idle + more, rel=1e-9)
    assert found.cost["base_watts"] == pytest.approx(idle) and found.cost["leakage_amperes"] == 0.0
    assert not found.power_is_relative and found.energy_factors is None
    assert found.power is not None and found.power.validated_on.startswith("unvalidated") and "leakage not separated" in found.power.fitted_on


@given(base=st.floats(0.1, 5.0), leak=st.floats(0.05, 2.0), scale=st.floats(0.1, 50.0), growth=st.floats(0.0, 0.04),
       warm=st.floats(20.0, 80.0), pair=st.sampled_from([("300MHz", "1000MHz"), ("800MHz", "900MHz")]))
def test_a_second_voltage_separates_leakage(base: float, leak: float, scale: float, growth: float, warm: float, pair: tuple[str, str]) -> None:
    """Readings made by the formula itself, P_base + V I_25 exp(k (T - 25)) + scale x dynamic, give its constants back."""
    rows = []
    for name in pair:
        joules, seconds = dynamic(RK, name)
        volts = RK.operating_point(name).volts
        assert volts is not None
        idle = base + volts * leak * math.exp(growth * (warm - 25.0))
        rows.append(reading(name, idle, idle + scale * joules / seconds, warm))
    found = calibrate_power(RK, rows, growth)
    assert found.cost["base_watts"] == pytest.approx(base, rel=1e-6) and found.cost["leakage_amperes"] == pytest.approx(leak, rel=1e-6)
    assert found.cost["control_factor"] == pytest.approx(RK.cost["control_factor"] * scale, rel=1e-9)
    assert found.power is not None and "agree on it within x1.00" in found.power.fitted_on


def test_readings_that_disagree_say_by_how_much() -> None:
    found = calibrate_power(RK, [reading("600MHz", 1.0, 2.0), replace(reading("600MHz", 1.0, 3.0))])
    assert found.power is not None and "agree on it within x2.00" in found.power.fitted_on
    middle = math.sqrt(2.0)                            # geometric mean of 1 W and 2 W of dynamic power
    assert board_watts(found, "600MHz") == pytest.approx(1.0 + middle)


@pytest.mark.parametrize(("rows", "message"), [
    ([], r"rk3588: no power reading; one needs op_point, idle_w and busy_w"),
    ([("800MHz", 2.0, 1.0)], r"reading at 800MHz has idle_w = 2 and busy_w = 1; expected 0 < idle_w < busy_w"),
    ([("800MHz", 0.0, 1.0)], r"idle_w = 0 and busy_w = 1"),
    ([("1200MHz", 1.0, 2.0)], r"no operating point '1200MHz'"),
    ([("800MHz", 2.0, 3.0), ("1000MHz", 1.0, 3.0)], r"base of 9.5 W and a leakage of -10 A; expected idle to grow with the voltage"),
    ([("800MHz", 1.0, 3.0), ("1000MHz", 3.0, 4.0)], r"base of -14 W and a leakage of 20 A"),
])
def test_readings_that_contradict_the_model_are_refused(rows: list[tuple[str, float, float]], message: str) -> None:
    with pytest.raises(TargetError, match=message):
        calibrate_power(RK, [Reading(name, idle, busy, 100.0, 1e-3) for name, idle, busy in rows])


def test_no_voltage_no_leakage() -> None:
    """Two points whose voltages are not public: the base is the mean of what was read, and it says that leakage stays in it."""
    points = (OperatingPoint("slow", 5e8, None), OperatingPoint("fast", 1e9, None))
    bare = replace(RK, operating_points=points, voltage_bins={}, thermal=None)
    found = calibrate_power(bare, [Reading("slow", 1.0, 2.0, 100.0, 1e-3), Reading("fast", 2.0, 4.0, 200.0, 1e-3)])
    assert (found.cost["base_watts"], found.cost["leakage_amperes"]) == (1.5, 0.0)
    assert found.power is not None and "not separated" in found.power.fitted_on and "capacitance" not in found.power.fitted_on


def test_effective_capacitance_by_hand() -> None:
    """3 W more than idle at 0.85 V and 1 GHz: 3 / (0.7225 x 1e9) = 4.15 nF."""
    farads = effective_farads(Reading("1000MHz", 1.0, 4.0, 100.0, 1e-3), RK.operating_point("1000MHz"))
    assert farads == pytest.approx(4.152e-9, rel=1e-3)
    found = calibrate_power(RK, [Reading("1000MHz", 1.0, 4.0, 100.0, 1e-3)])
    assert found.power is not None and "effective capacitance 4.15 nF" in found.power.fitted_on


def test_leakage_grows_with_voltage_and_temperature() -> None:
    p = parameters(replace(RK, cost={**RK.cost, "leakage_amperes": 0.5, "leakage_per_kelvin": 0.02}))
    assert isinstance(p, NpuParameters)
    at = OperatingPoint("x", 1e9, 0.8)
    assert leakage_watts(at, p) == pytest.approx(0.4)
    assert leakage_watts(at, p, 60.0) == pytest.approx(0.4 * np.exp(0.7))
    assert leakage_watts(at, parameters(RK), 60.0) == 0.0


# ------------------------------------------------------------------------------------------------------- the knee

def frugal(target: Target) -> str:
    """The operating point of least energy per inference: a slow clock saves volts, a fast one static power."""
    table = CostTable.build(NET, target)
    return min(table.op_points, key=lambda o: table.price(table.uniform(INT8)[None], o)[0].energy_mj)


@given(idle=st.floats(1e-3, 1.0), factor=st.floats(1.0, 100.0))
def test_more_static_power_never_slows_the_best_clock(idle: float, factor: float) -> None:
    """Time costs more, so racing to the end gains; at nearly none the flat 0.7 V of the slow points leaves nothing to gain by going up."""
    def best(base: float) -> float:
        found = calibrate_power(RK, [reading("1000MHz", base, base + 1.0)])
        return found.operating_point(frugal(found)).clock_hz

    assert best(idle) <= best(idle * factor)


def test_static_power_moves_the_knee_from_the_low_volts_to_the_top() -> None:
    def best(base: float) -> str:
        return frugal(calibrate_power(RK, [reading("1000MHz", base, base + 1.0)]))

    assert best(1e-6) in ("300MHz", "400MHz", "500MHz", "600MHz", "700MHz") and best(1e3) == "1000MHz"


# ------------------------------------------------------------------------------------------------------- bins

def test_rk3588_bins_are_the_device_tree() -> None:
    """Golden: RK3588 npu_opp_table, millivolts of the worst and the best bin, and the column f V^2 relative to the top of HARDWARE A.2."""
    points = RK.operating_points
    assert list(RK.voltage_bins) == [f"L{i}" for i in range(6)] and list(RK.voltage_bins["L0"]) == [p.volts for p in points]
    assert list(RK.voltage_bins["L5"]) == [0.675] * 5 + [0.7, 0.7375, 0.7875]
    relative = [p.clock_hz * p.volts ** 2 / (1e9 * 0.85 ** 2) for p in points if p.volts]
    assert relative == pytest.approx([0.20, 0.27, 0.34, 0.41, 0.47, 0.62, 0.80, 1.00], abs=0.006)


# ------------------------------------------------------------------------------------------------------- fitted boards

def test_energy_interval_is_latency_times_power() -> None:
    s4 = load("mlu370-s4")
    assert s4.power is not None and s4.power.factor_low is not None and s4.energy_factors is not None
    assert s4.energy_factors[0] == pytest.approx(s4.latency_factor_low * s4.power.factor_low)
    assert s4.energy_factors[0] < 1.0 < s4.energy_factors[1]
    assert RK.power is None and RK.energy_factors is None


def test_published_board_watts_lie_in_the_interval() -> None:
    """Golden: run logs of Cambricon/magicmind_cloud (2023), experiments/data/public_power.csv, batch 1, at the published rate."""
    with (Path(__file__).parents[2] / "experiments" / "data" / "public_power.csv").open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["chip"] == "MLU370-S4" and r["graph"] in published_networks() and r["batch"] == "1"]
    assert len(rows) >= 4
    for r in rows:
        table = CostTable.build(published_networks()[r["graph"]], load("mlu370-s4"))
        basis = table.target.power
        assert basis is not None and basis.factor_low is not None and basis.factor_high is not None
        price = table.price(table.uniform(Precision(r["precision"]))[None], "1000MHz")[0]
        base = table.target.cost["base_watts"]
        watts = base + (price.energy_mj - base * price.latency_ms) * 1e-3 * float(r["fps"])
        assert watts * basis.factor_low <= float(r["power_w"]) <= watts * basis.factor_high
