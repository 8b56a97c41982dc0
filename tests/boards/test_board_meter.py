"""External power meters: read around a board's work, cut to the timed runs; the meter here is a STAND-IN that makes its readings up."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import models
import numpy as np
import pytest
from typer.testing import CliRunner

from qbench.board import Measurement, Request
from qbench.cli.app import app
from qbench.errors import InputError, ToolError, UnknownName
from qbench.targets.boards import open_board
from qbench.targets.boards.meter import IDLE_S, LEAST_S, Metered, open_meter
from qbench.workbench.measuring import measure

STAND_IN = '''
"""Stand-in for a power meter: 2 W while it is idle, 5 W from its second start on, a reading every 10 ms, +-0.1 W by turns."""
import time

class Meter:
    name = "stand-in, invented readings"
    starts = 0
    def start(self):
        self.began, self.starts = time.monotonic(), self.starts + 1
    def stop(self):
        watts = 2.0 if self.starts % 2 else 5.0
        count = int((time.monotonic() - self.began) / 0.01)
        return [(0.01 * i, watts + (0.1 if i % 2 else -0.1)) for i in range(count)]

def make():
    return Meter()

def no_stop():
    return object()

def broken():
    raise OSError("no such serial port")
'''


class Clocked:
    """Readings of a known course: 1 W, and `busy` within [begin, end] seconds of the run it watches."""

    def __init__(self, begin: float, end: float, busy: float = 7.0, rate: float = 100.0) -> None:
        self.begin, self.end, self.busy, self.rate, self.starts, self.stopped = begin, end, busy, rate, 0, 0

    def start(self) -> None:
        self.starts += 1

    def stop(self) -> Sequence[tuple[float, float]]:
        self.stopped += 1
        return [(s, self.busy if self.starts == 2 and self.begin <= s <= self.end else 1.0) for s in (i / self.rate for i in range(int(self.rate * 0.9)))]


class Quick:
    """A board that needs 0.9 s: 0.2 s to load, 0.4 s of 40 timed runs, 0.3 s until it answers. recorded   as a recording says so"""

    url, recorded, fails = "quick://", False, False
    asked: Request | None = None

    def facts(self) -> Mapping[str, str]:
        return {}

    def measure(self, model: Path, feeds: Sequence[Mapping[str, models.Array]], request: Request) -> Measurement:
        self.asked = request
        if self.fails:
            raise ToolError("the board broke")
        time.sleep(0.9)
        return Measurement(self.url, model.name, "r 1", {}, 1.0, 1.0, (10.0,) * 40, ended_ago_s=0.3, recorded=self.recorded)


@pytest.fixture
def spec(tmp_path: Path) -> str:
    (tmp_path / "bench_meter.py").write_text(STAND_IN)
    return f"{tmp_path / 'bench_meter.py'}:make"


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(models.conv_relu().SerializeToString())
    return path


def test_only_the_timed_runs_count(tmp_path: Path) -> None:
    """They lie at 0.2 to 0.6 s of 0.9 s: all readings there are 7 W, those before and after are not taken."""
    board, meter = Quick(), Clocked(0.22, 0.6)
    found = Metered(board, meter, "clocked").measure(tmp_path / "m.onnx", [], Request(seconds=0.1))
    assert found.power_w == pytest.approx(7.0) and found.idle_w == pytest.approx(1.0)
    assert all(0.0 <= s <= 0.4 + 0.01 for s, _ in found.power_readings) and len(found.power_readings) >= 30
    assert board.asked is not None and board.asked.seconds == LEAST_S
    assert found.energy_mj == pytest.approx(70.0) and meter.starts == meter.stopped == 2


def test_energy_has_an_interval_by_hand() -> None:
    """20 readings in 4 groups with means 5, 5, 5, 7: standard error 0.5 W; equal runs of 10 ms: 1.96 * 5 mJ."""
    watts = [5.0] * 15 + [7.0] * 5
    m = Measurement("b", "m", "r", {}, 0.0, 0.0, (10.0,) * 40, power_w=5.5, power_readings=tuple((0.1 * i, w) for i, w in enumerate(watts)))
    assert m.error_w == pytest.approx(0.5)
    assert m.energy_mj_interval == pytest.approx((55.0 - 9.8, 55.0 + 9.8))
    assert replace(m, power_readings=m.power_readings[:5]).energy_mj_interval is None and replace(m, power_w=None).energy_mj_interval is None


def test_a_record_keeps_its_readings(tmp_path: Path) -> None:
    m = Measurement("b", "m", "r", {}, 0.0, 0.0, (10.0,) * 40, power_w=5.0, power_readings=((0.0, 4.9), (0.1, 5.1)), ended_ago_s=0.1)
    m.save(tmp_path / "m.json")
    assert Measurement.from_dict(json.loads((tmp_path / "m.json").read_text()), "m") == m


def test_measured_from_the_command_line_and_from_a_url(net: Path, spec: str, tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["measure", str(net), "--board", "local://onnxruntime?threads=1", "--power-meter", spec, "--runs", "20", "-o", str(tmp_path / "m.json")],
                             env={"COLUMNS": "200"})
    assert ran.exit_code == 0, ran.output
    assert "5.00 W, idle 2.00 W (power meter stand-in, invented readings)" in ran.output and "readings" in ran.output
    body = json.loads((tmp_path / "m.json").read_text())
    low, high = body["energy_mj_interval"]
    assert low < body["energy_mj"] < high and len(body["power_readings"]) > 100
    board = open_board(f"local://onnxruntime?threads=1&meter={spec}")
    assert isinstance(board, Metered) and board.url == "local://onnxruntime?threads=1"
    x = {"x": np.ones((1, 3, 8, 8), np.float32)}
    assert list(board.outputs(net, [x], Request())[0]) == ["y"]


def test_a_failing_board_stops_the_meter(tmp_path: Path) -> None:
    board, meter = Quick(), Clocked(0.0, 1.0)
    board.fails = True
    with pytest.raises(ToolError, match="the board broke"):
        Metered(board, meter, "clocked").measure(tmp_path / "m.onnx", [], Request())
    assert meter.starts == meter.stopped == 2


@pytest.mark.parametrize(("rate", "busy", "message"), [(10.0, 7.0, r"of its 9 readings lie within 0.4 s of timed runs, at least 10"), (100.0, -1.0, "watts of 0 or more"),
                                                       (100.0, float("nan"), "watts of 0 or more")])
def test_readings_that_say_nothing_are_refused(tmp_path: Path, rate: float, busy: float, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        Metered(Quick(), Clocked(0.2, 0.6, busy, rate), "clocked").measure(tmp_path / "m.onnx", [], Request())


def test_a_recording_has_nothing_to_meter(tmp_path: Path, net: Path, spec: str) -> None:
    board = Quick()
    board.recorded = True
    with pytest.raises(InputError, match="is a recording"):
        Metered(board, Clocked(0.2, 0.6), "clocked").measure(tmp_path / "m.onnx", [], Request())


def test_what_is_no_meter_is_refused(spec: str, net: Path) -> None:
    place = spec.rpartition(":")[0]
    with pytest.raises(UnknownName, match="no power meter 'ina'"):
        open_meter("ina")
    with pytest.raises(InputError, match=r"has no start\(\) and no stop\(\)"):
        open_meter(f"{place}:no_stop")
    with pytest.raises(ToolError, match="no such serial port"):
        open_meter(f"{place}:broken")
    with pytest.raises(InputError, match="has no function 'nothing'"):
        measure(net, "local://", power_meter=f"{place}:nothing")
    assert IDLE_S > 0.0
