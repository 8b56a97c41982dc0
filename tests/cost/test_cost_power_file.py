"""A file of power readings, and the thermal answer of `qbench cost`, through the functions that the command calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from models import model, node
from numpy.typing import NDArray

from qbench.cost import CostTable
from qbench.errors import InputError, TargetError
from qbench.graph import load_network
from qbench.network import Precision
from qbench.target import Target
from qbench.targets import load
from qbench.workbench.readings import calibrated
from qbench.workbench.sustaining import thermal_of

READING = '[[reading]]\nmodel = "net.onnx"\nop_point = "1000MHz"\nidle_w = 1.5\nbusy_w = 6.5\n'
RK = load("rk3588")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    weights = {"w": np.ones((32, 16, 3, 3), np.float32)}
    net = model([node("Conv", ["x", "w"], ["y"], "conv", pads=[1, 1, 1, 1])], {"x": [1, 16, 64, 64]}, {"y": [1, 32, 64, 64]}, weights)
    onnx.save(net, tmp_path / "net.onnx")
    return tmp_path


def readings(folder: Path, text: str = READING) -> Path:
    path = folder / "power.toml"
    path.write_text(text)
    return path


def table_of(target: Target, folder: Path) -> tuple[CostTable, NDArray[np.int64]]:
    table = CostTable.build(load_network(folder / "net.onnx").network, target)
    return table, table.uniform(Precision.INT8)


def test_the_busy_reading_comes_back_for_what_ran(folder: Path) -> None:
    table, codes = table_of(calibrated(RK, readings(folder)), folder)
    assert table.price(codes[None], "1000MHz")[0].power_w == pytest.approx(6.5)
    assert not table.target.power_is_relative and RK.power_is_relative
    assert 1.5 < table.price(codes[None], "300MHz")[0].power_w < table.price(codes[None], "800MHz")[0].power_w < 6.5


def test_a_measured_latency_and_a_second_voltage_are_used(folder: Path) -> None:
    table, codes = table_of(RK, folder)
    predicted = table.price(codes[None], "1000MHz")[0].latency_ms
    twice = calibrated(RK, readings(folder, READING + f"latency_ms = {2 * predicted}\n"))
    once = calibrated(RK, readings(folder))
    assert twice.cost["control_factor"] == pytest.approx(2 * once.cost["control_factor"])
    both = calibrated(RK, readings(folder, "leakage_per_kelvin = 0.02\n" + READING + "celsius = 25\n"
                                   + READING.replace("1000MHz", "300MHz").replace("1.5", "1.35").replace("6.5", "2.5") + "celsius = 25\n"))
    assert both.cost["leakage_amperes"] == pytest.approx(1.0)               # 0.15 W more at 0.85 V than at 0.70 V
    assert both.cost["base_watts"] == pytest.approx(1.5 - 1.0 * 0.85)


@pytest.mark.parametrize(("text", "message"), [
    ("", r"power\.toml: no \[\[reading\]\] table; expected one or more, each with model, op_point, idle_w, busy_w"),
    ("reading = 3", r"no \[\[reading\]\] table"),
    ("[[reading", r"power\.toml: cannot be read as a file of power readings"),
    ("colour = 1\n" + READING, r"colour is unknown here; expected reading or leakage_per_kelvin"),
    ("leakage_per_kelvin = 2.0\n" + READING, r"leakage_per_kelvin is 2\.0; expected a number 0 to 0\.2"),
    (READING + "watts = 2\n", r"reading\[0\]\.watts is unknown here; expected one of model, precision"),
    (READING.replace('model = "net.onnx"\n', ""), r"reading\[0\]\.model is None; expected text"),
    (READING.replace("busy_w = 6.5\n", ""), r"reading\[0\]\.busy_w is None; expected a number 0 to 100000"),
    (READING.replace("6.5", '"6.5"'), r"reading\[0\]\.busy_w is '6\.5'; expected a number"),
    (READING.replace("1.5", "nan"), r"reading\[0\]\.idle_w is nan"),
    (READING.replace("1.5", "true"), r"reading\[0\]\.idle_w is True"),
    (READING + 'precision = "int3"\n', r"no precision 'int3'; known"),
    (READING.replace("1000MHz", "1200MHz"), r"no operating point '1200MHz'"),
    (READING.replace("6.5", "1.0"), r"idle_w = 1\.5 and busy_w = 1; expected 0 < idle_w < busy_w"),
])
def test_what_is_wrong_in_the_file_is_named(folder: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        calibrated(RK, readings(folder, text))


def test_a_file_that_is_not_there(folder: Path) -> None:
    with pytest.raises(InputError, match=r"mine\.toml: cannot be read"):
        calibrated(RK, folder / "mine.toml")


# ------------------------------------------------------------------------------------------------------- thermal

def test_without_figures_of_the_board_only_the_rule(folder: Path) -> None:
    table, codes = table_of(RK, folder)
    said = thermal_of(table, codes, "1000MHz", None, None, None)
    assert said["prediction"] is None and said["rule"].startswith("at 85 C or more") and "belong to the board" in said["why"]
    bare, codes = table_of(load("hexagon"), folder)
    assert thermal_of(bare, codes, bare.op_points[-1], None, None, None)["rule"] == "no public throttle rule"


def test_half_of_the_figures_or_no_watts_are_refused(folder: Path) -> None:
    table, codes = table_of(RK, folder)
    with pytest.raises(InputError, match=r"--thermal-resistance, --heat-capacity missing: a temperature takes --ambient"):
        thermal_of(table, codes, "1000MHz", 45.0, None, None)
    with pytest.raises(InputError, match=r"rk3588 has no public watt, so no temperature follows from it: give --power"):
        thermal_of(table, codes, "1000MHz", 45.0, 12.0, 8.0)


def predicted(table: CostTable, codes: NDArray[np.int64], ambient: float) -> dict[str, Any]:
    found: dict[str, Any] = thermal_of(table, codes, "1000MHz", ambient, 10.0, 8.0)["prediction"]
    return found


def test_a_warm_board_is_slower_between_the_two_clocks(folder: Path) -> None:
    table, codes = table_of(calibrated(RK, readings(folder)), folder)
    full, capped = (table.price(codes[None], p)[0].latency_ms * 1e-3 for p in ("1000MHz", "800MHz"))
    cool, warm, hot = (predicted(table, codes, a) for a in (10.0, 25.0, 70.0))
    assert (cool["state"], cool["burst_s"], cool["latency_s"]) == ("never throttles", None, pytest.approx(full))
    assert cool["temperature_c"] == pytest.approx(10.0 + 10.0 * 6.5)
    assert warm["state"] == "oscillates" and full < warm["latency_s"] < capped
    assert (hot["state"], hot["latency_s"], hot["throttled_point"]) == ("stays throttled", pytest.approx(capped), "800MHz")


def test_leakage_counts_as_warm_as_the_rule_allows(folder: Path) -> None:
    """1 A at 25 C that doubles every 35 K: 0.85 V x 1 A x (e^(0.02 x 60) - 1) more at 85 C, and 10 K for each watt."""
    text = READING + READING.replace("1000MHz", "300MHz").replace("1.5", "1.35").replace("6.5", "2.5")
    plain, codes = table_of(calibrated(RK, readings(folder, text)), folder)
    leaky, _ = table_of(calibrated(RK, readings(folder, "leakage_per_kelvin = 0.02\n" + text)), folder)
    cool = [predicted(t, codes, -40.0)["temperature_c"] for t in (plain, leaky)]
    assert cool[1] - cool[0] == pytest.approx(10.0 * 0.85 * 1.0 * (np.exp(1.2) - 1.0), rel=1e-6)


def test_below_ten_degrees_the_slow_points_cost_more(folder: Path) -> None:
    table, codes = table_of(calibrated(RK, readings(folder)), folder)
    warm, cold = (thermal_of(table, codes, "300MHz", a, 0.1, 8.0)["prediction"]["watts"] for a in (10.0, 9.0))
    assert cold > warm
    price = table.price(codes[None], "300MHz")[0]
    assert warm == pytest.approx(price.power_w)


def test_impossible_boards_are_refused(folder: Path) -> None:
    table, codes = table_of(calibrated(RK, readings(folder)), folder)
    with pytest.raises(TargetError, match="thermal resistance -1 K/W"):
        thermal_of(table, codes, "1000MHz", 45.0, -1.0, 8.0)
