"""The clock that is held while measuring, on fake devfreq trees; and throttling told from the readings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from links import wait_until

from qbench.board import Measurement, Request, parse_clock
from qbench.errors import InputError, ToolError
from qbench.targets.boards.local import AGENT, Local, agent_request, store
from qbench.targets.boards.urls import Options

NPU = "sys/class/devfreq/fdab0000.npu"
QUICK = Request(runs=25, warmup=1, seconds=0.0, threads=1, clock="900MHz")
STEADY = tuple(1.0 + 0.01 * (i % 7) for i in range(60))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A board whose clock goes where set_freq says: they are one file."""
    folder = tmp_path / "root" / NPU
    (folder / "userspace").mkdir(parents=True)
    (folder / "governor").write_text("rknpu_ondemand\n")
    (folder / "cur_freq").write_text("1000000000\n")
    (folder / "available_frequencies").write_text("300000000 900000000 1000000000\n")
    (folder / "userspace" / "set_freq").symlink_to("../cur_freq")
    (folder.parent / "fb000000.gpu").mkdir()
    return tmp_path / "root"


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(models.conv_relu().SerializeToString())
    return path


def feeds() -> list[dict[str, models.Array]]:
    return [{"x": np.ones((1, 3, 8, 8), np.float32)}]


def governor(root: Path) -> str:
    return (root / NPU / "governor").read_text().strip()


@pytest.mark.parametrize("clock", ["900MHz", "npu:0.9GHz", "fdab0000.npu:900MHz"])
def test_the_clock_is_held_verified_and_put_back(clock: str, root: Path, net: Path) -> None:
    found = Local("local://", sysfs=str(root)).measure(net, feeds(), replace(QUICK, clock=clock))
    assert found.facts["clock_lock"] == "fdab0000.npu at 900 MHz, verified" and found.clocks_hz["fdab0000.npu"] == (9e8, 9e8)
    assert "fdab0000.npu userspace" in found.facts["governor"] and governor(root) == "rknpu_ondemand"
    assert {hz for _, hz in found.series["fdab0000.npu"]} == {9e8}


def test_the_url_asks_too_and_the_request_goes_first(root: Path, net: Path) -> None:
    board = Local("local://?clock=300MHz", options=Options(clock="300MHz"), sysfs=str(root))
    assert board.measure(net, feeds(), replace(QUICK, clock="")).clocks_hz["fdab0000.npu"] == (3e8, 3e8)
    assert board.measure(net, feeds(), QUICK).clocks_hz["fdab0000.npu"] == (9e8, 9e8)


def test_a_clock_set_by_the_user_before_is_put_back(root: Path, net: Path) -> None:
    (root / NPU / "governor").write_text("userspace\n")
    Local("local://", sysfs=str(root)).measure(net, feeds(), QUICK)
    assert governor(root) == "userspace" and (root / NPU / "cur_freq").read_text() == "1000000000"


def test_a_clock_that_does_not_come_is_an_error_and_the_governor_is_put_back(root: Path, net: Path) -> None:
    (root / NPU / "userspace" / "set_freq").unlink()
    with pytest.raises(ToolError, match=r"fdab0000\.npu was set to 900 MHz and runs at 1000 MHz"):
        Local("local://", sysfs=str(root)).measure(net, feeds(), QUICK)
    assert governor(root) == "rknpu_ondemand"


@pytest.mark.parametrize(("clock", "words"), [("950MHz", "has no 950 MHz, only 300, 900, 1000 MHz"), ("dmc:900MHz", "0 devfreq devices have 'dmc' .*there are: fb000000.gpu, fdab0000.npu"),
                                              ("0:900MHz", "2 devfreq devices")])
def test_a_clock_that_the_board_does_not_have_is_refused_before_anything_changes(clock: str, words: str, root: Path, net: Path) -> None:
    with pytest.raises(ToolError, match=words):
        Local("local://", sysfs=str(root)).measure(net, feeds(), replace(QUICK, clock=clock))
    assert governor(root) == "rknpu_ondemand"


def test_without_the_right_or_the_governor_the_error_says_so(root: Path, net: Path) -> None:
    (root / NPU / "userspace" / "set_freq").unlink()
    (root / NPU / "userspace").rmdir()
    with pytest.raises(ToolError, match=r"cannot be written to .*set_freq .*run as root, with a kernel that has the userspace governor"):
        Local("local://", sysfs=str(root)).measure(net, feeds(), QUICK)
    assert governor(root) == "rknpu_ondemand"


def test_the_governor_is_put_back_when_the_model_fails(root: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"junk")
    with pytest.raises(ToolError, match=r"bad\.onnx does not run"):
        Local("local://", sysfs=str(root)).measure(tmp_path / "bad.onnx", feeds(), QUICK)
    assert governor(root) == "rknpu_ondemand"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_governor_is_put_back_when_the_agent_is_stopped(number: int, root: Path, net: Path, tmp_path: Path) -> None:
    request = agent_request(str(net), store(feeds(), tmp_path), replace(QUICK, seconds=60.0), Options()) | {"sysfs": str(root)}
    (tmp_path / "q.json").write_text(json.dumps(request))
    agent = subprocess.Popen([sys.executable, str(AGENT), "measure", "onnxruntime", str(tmp_path / "q.json"), str(tmp_path / "a.json")], stderr=subprocess.DEVNULL,
                             preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))  # noqa: PLW1509  (a job in the background inherits that SIGINT is ignored)
    assert wait_until(lambda: governor(root) == "userspace")
    agent.send_signal(number)
    assert agent.wait(90.0) != 0 and governor(root) == "rknpu_ondemand" and not (tmp_path / "a.json").exists()


HOT = '''
class RKNNLite:
    """Stand-in for tests: a chip that grows hot and slows down in its twentieth inference."""
    NPU_CORE_0 = 1
    count = 0
    def __init__(self, verbose=False): pass
    def load_rknn(self, path): return 0
    def init_runtime(self, core_mask): return 0
    def inference(self, inputs, data_format):
        import os, time
        time.sleep(0.02)
        self.count += 1
        if self.count == 20:
            root = os.environ["QBENCH_TEST_ROOT"]
            open(root + "/sys/class/thermal/thermal_zone0/temp", "w").write("95000")
            open(root + "/sys/class/devfreq/fdab0000.npu/cur_freq", "w").write("600000000")
        return [inputs[0]]
'''


@pytest.mark.parametrize("clock", ["", "900MHz"])
def test_throttling_while_measuring_is_seen(clock: str, root: Path, tmp_path: Path) -> None:
    for name, text in {"lib/rknnlite/api.py": HOT, "lib/rknnlite/__init__.py": "", "root/sys/class/thermal/thermal_zone0/temp": "60000",
                       "lib/rknn_toolkit_lite2-2.3.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: rknn-toolkit-lite2\nVersion: 2.3.2\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    request = agent_request("m.rknn", store(feeds(), tmp_path), replace(QUICK, runs=40, clock=clock), Options()) | {"sysfs": str(root)}
    (tmp_path / "q.json").write_text(json.dumps(request))
    subprocess.run([sys.executable, str(AGENT), "measure", "rknnlite", str(tmp_path / "q.json"), str(tmp_path / "a.json")], check=True,
                   env=os.environ | {"PYTHONPATH": str(tmp_path / "lib"), "QBENCH_TEST_ROOT": str(root)})
    answer: dict[str, Any] = json.loads((tmp_path / "a.json").read_text())
    found = Measurement.from_dict({**answer, "board": "test:", "model": "m"}, "test")
    start = 900 if clock else 1000
    assert any(w.startswith(f"throttled: clock fdab0000.npu fell from {start} to 600 MHz after") and "from 60 to 95 C" in w for w in found.unstable)
    assert any(w == "the clock was fixed and did not stay: fdab0000.npu at 900 MHz, not held: 600 to 900 MHz" for w in found.unstable) == bool(clock)
    assert found.temperature_c == pytest.approx(95.0) and governor(root) == "rknpu_ondemand"


def seen(clock: list[float], heat: list[float]) -> Measurement:
    series = {"npu": tuple((0.1 * i, mhz * 1e6) for i, mhz in enumerate(clock))} | ({"temperature_c": tuple((0.1 * i, c) for i, c in enumerate(heat))} if heat else {})
    return Measurement("test:", "m", "r", {}, 1.0, 1.0, STEADY, series=series)


def test_a_fall_without_heat_is_not_called_throttling() -> None:
    assert seen([1000, 800, 800], [60.0, 60.5, 61.0]).throttling == ()
    assert seen([1000, 800, 800], []).throttling == ()
    assert seen([300, 1000, 1000], [60.0, 70.0, 80.0]).throttling == ()
    assert seen([1000, 1000, 985], [60.0, 70.0, 80.0]).throttling == ()
    assert "after 0.2 s" in seen([1000, 1000, 900, 600], [60.0, 61.0, 63.0, 80.0]).throttling[0]


@given(st.integers(1, 4000))
def test_clocks_read_back(mhz: int) -> None:
    assert parse_clock(f"{mhz}MHz") == ("", mhz * 1e6)
    device, hz = parse_clock(f"fdab0000.npu:{mhz / 1000}ghz")
    assert device == "fdab0000.npu" and hz == pytest.approx(mhz * 1e6)


@pytest.mark.parametrize("text", ["", "fast", "1000", "-1MHz", "0MHz", "1000mV", "a b:1MHz", ":1MHz"])
def test_what_is_no_clock_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected 1000MHz"):
        parse_clock(text)
