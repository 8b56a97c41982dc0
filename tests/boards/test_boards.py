"""Every board keeps the contract; the agent on a real runtime, a fake sysfs tree and a stand-in for a vendor's module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from links import Server, fake_adb, openssh
from typer.testing import CliRunner

from qbench.board import Board, Measurement, Request
from qbench.cli.app import app
from qbench.errors import InputError, ToolError, UnknownName
from qbench.runtime import Session
from qbench.targets.boards import open_board, schemes
from qbench.targets.boards.agent import Meter, clocks, facts, temperature
from qbench.targets.boards.local import AGENT, Local, agent_request, store
from qbench.targets.boards.urls import Options
from qbench.workbench.measuring import measure, measured, samples

QUICK = Request(runs=25, warmup=1, seconds=0.0, threads=1)


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(models.conv_relu().SerializeToString())
    return path


def feeds() -> list[dict[str, models.Array]]:
    rng = np.random.default_rng(0)
    return [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(2)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with openssh(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture(params=schemes())
def board(request: pytest.FixtureRequest, net: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    """One of every scheme."""
    scheme = request.param
    if scheme == "replay":
        open_board("local://").measure(net, feeds(), QUICK).save(net.with_name("record.json"))
        return open_board(f"replay:{net.with_name('record.json')}")
    if scheme == "ssh":
        return open_board(request.getfixturevalue("server").url())
    if scheme == "adb":
        monkeypatch.setenv("PATH", str(fake_adb(net.parent / "bin")), prepend=os.pathsep)
        return open_board(f"adb://emulator-1?python={sys.executable}&folder={net.parent / 'board'}")
    return open_board({"local": "local://onnxruntime?threads=1"}[scheme])


def test_every_board_answers_with_times_and_versions(board: Board, net: Path) -> None:
    found = board.measure(net, feeds(), QUICK)
    assert len(found.samples_ms) >= QUICK.runs and min(found.samples_ms) > 0.0
    assert found.first_run_ms > 0.0 and found.runtime.startswith("onnxruntime ")
    assert {"python", "system", "cores", "runtime"} <= set(found.facts) and board.facts()["runtime"] == found.runtime
    assert found.recorded == board.url.startswith("replay:")
    assert sum(found.steps_ms.values()) <= 2.0 * found.percentile(99)
    assert found.when.endswith("Z")


def test_every_board_names_itself_and_the_model_when_it_fails(board: Board, net: Path) -> None:
    broken = net.with_name("broken.onnx")
    broken.write_bytes(b"\x00nothing")
    with pytest.raises(ToolError, match=r"broken\.onnx") as error:
        board.measure(broken, feeds(), QUICK)
    assert board.url in str(error.value)


@pytest.mark.parametrize("url", ["local://tensorrt", "local://onnxruntime?threads=0", "local://?cores=2", "local://onnxruntime/x", "replay:", "replay:nowhere.json",
                                 "local://?clock=fast", "ssh://", "ssh://board/tensorrt", "ssh://board:port", "ssh://board?timeout=0", "ssh://board?python=", "ssh://board?x",
                                 "adb://", "adb://-e", "adb://1/tflite", "adb://1?key=a"])
def test_urls_that_do_not_parse_are_refused(url: str) -> None:
    with pytest.raises(InputError, match="board"):
        open_board(url)


def test_an_unknown_scheme_lists_those_there_are() -> None:
    with pytest.raises(UnknownName, match="adb:, local:, replay:, ssh:"):
        open_board("carrier-pigeon://x")


def test_the_agent_gives_the_outputs_of_the_runtime(net: Path, tmp_path: Path) -> None:
    wanted = [Session(net).run(f) for f in feeds()]
    request = agent_request(str(net), store(feeds(), tmp_path), QUICK, Options()) | {"outputs": str(tmp_path)}
    (tmp_path / "q.json").write_text(json.dumps(request))
    subprocess.run([sys.executable, str(AGENT), "measure", "onnxruntime", str(tmp_path / "q.json"), str(tmp_path / "a.json")], check=True)
    for number, outputs in enumerate(wanted):
        with np.load(tmp_path / f"{number:04d}.npz") as got:
            np.testing.assert_allclose(got["y"], outputs["y"], rtol=1e-6)


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


RK3588 = {
    "sys/class/devfreq/fdab0000.npu/cur_freq": "1000000000\n", "sys/class/devfreq/fdab0000.npu/governor": "rknpu_ondemand\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "1800000\n", "sys/devices/system/cpu/cpu4/cpufreq/scaling_cur_freq": "2256000\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "ondemand\n",
    "sys/class/thermal/thermal_zone0/temp": "52687\n", "sys/class/thermal/thermal_zone6/temp": "61000\n",
    "proc/device-tree/model": "Radxa ROCK 5B\0", "sys/module/rknpu/version": "0.9.8\n"}


def test_clocks_temperature_and_versions_come_from_sysfs(tmp_path: Path) -> None:
    root = str(tree(tmp_path, RK3588))
    assert clocks(root) == {"fdab0000.npu": 1e9, "cpu": 2.256e9}
    assert temperature(root) == pytest.approx(61.0)
    found = facts("", root)
    assert found["board"] == "Radxa ROCK 5B" and found["npu_driver"] == "0.9.8"
    assert found["governor"] == "fdab0000.npu rknpu_ondemand, ondemand"


def test_a_bare_machine_shows_nothing_rather_than_zeros(tmp_path: Path) -> None:
    root = str(tree(tmp_path, {"sys/class/thermal/thermal_zone0/temp": "not a number", "sys/class/hwmon/hwmon0/power1_input": ""}))
    assert clocks(root) == {} and temperature(root) is None and Meter(root).watts() is None


@pytest.mark.parametrize(("files", "watts", "source"), [
    ({"sys/class/hwmon/hwmon0/power1_input": "2450000", "sys/class/hwmon/hwmon0/name": "ina226"}, 2.45, "ina226"),
    ({"sys/class/hwmon/hwmon1/curr1_input": "400", "sys/class/hwmon/hwmon1/in1_input": "12000", "sys/class/hwmon/hwmon1/name": "ina3221"}, 4.8, "ina3221"),
    ({"sys/class/power_supply/bat0/power_now": "7000000"}, 7.0, "bat0")])
def test_power_is_read_where_there_is_a_meter(tmp_path: Path, files: dict[str, str], watts: float, source: str) -> None:
    """hwmon: power in microwatts, current in milliamperes, voltage in millivolts (Linux kernel, Documentation/hwmon/sysfs-interface.rst)."""
    meter = Meter(str(tree(tmp_path, files)))
    assert meter.watts() == pytest.approx(watts) and meter.source == source


def test_power_and_temperature_reach_the_record(net: Path, tmp_path: Path) -> None:
    root = tree(tmp_path / "root", {**RK3588, "sys/class/hwmon/hwmon0/power1_input": "5000000", "sys/class/hwmon/hwmon0/name": "ina226"})
    found = Local("local://", sysfs=str(root)).measure(net, feeds(), QUICK)
    assert found.power_w == pytest.approx(5.0) and found.idle_w == pytest.approx(5.0) and found.power_source == "ina226"
    assert found.temperature_c == pytest.approx(61.0) and found.clocks_hz["fdab0000.npu"] == (1e9, 1e9)
    assert found.energy_mj == pytest.approx(5.0 * found.latency_ms)


STAND_IN = '''
class RKNNLite:
    """Stand-in for tests: the calls of rknn-toolkit-lite2 that the agent makes; runs nothing."""
    NPU_CORE_0 = 1
    def __init__(self, verbose=False): pass
    def load_rknn(self, path): return 0 if open(path, "rb").read(4) == b"RKNN" else -1
    def init_runtime(self, core_mask): return 0
    def inference(self, inputs, data_format): return [inputs[0] * 2]
'''


def test_the_rknn_runtime_is_driven_through_its_own_calls(tmp_path: Path) -> None:
    """A stand-in module, no Rockchip board: proves the order of calls and the error path, not the numbers."""
    tree(tmp_path, {"lib/rknnlite/api.py": STAND_IN, "lib/rknnlite/__init__.py": "",
                    "lib/rknn_toolkit_lite2-2.3.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: rknn-toolkit-lite2\nVersion: 2.3.2\n"})
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "lib")}
    answers = []
    for content in (b"RKNN....", b"junk"):
        model = tmp_path / "net.rknn"
        model.write_bytes(content)
        request = agent_request(str(model), store(feeds(), tmp_path), QUICK, Options()) | {"outputs": str(tmp_path)}
        (tmp_path / "q.json").write_text(json.dumps(request))
        subprocess.run([sys.executable, str(AGENT), "measure", "rknnlite", str(tmp_path / "q.json"), str(tmp_path / "a.json")], check=True, env=environment)
        answers.append(json.loads((tmp_path / "a.json").read_text()))
    assert answers[0]["runtime"] == "rknnlite 2.3.2" and len(answers[0]["samples_ms"]) >= QUICK.runs
    with np.load(tmp_path / "0001.npz") as got:
        np.testing.assert_array_equal(got["output0"], feeds()[1]["x"] * 2)
    assert answers[1]["error"] == "RuntimeError: load_rknn answered -1"


class Moody:
    """A board that answers with what it was given, in turn."""

    url = "test:"

    def __init__(self, *answers: Measurement) -> None:
        self.answers = list(answers)

    def facts(self) -> dict[str, str]:
        return {}

    def measure(self, *_: Any) -> Measurement:
        return self.answers.pop(0)


def record(*samples: float, recorded: bool = False) -> Measurement:
    return Measurement("test:", "m", "r", {}, 1.0, 1.0, samples, recorded=recorded)


def test_what_is_unsteady_is_measured_again_and_the_steadiest_is_kept(net: Path) -> None:
    wild, mild, calm = record(*[1.0, 3.0] * 20), record(*([1.0] * 8 + [1.5] * 2) * 4), record(*[1.0] * 40)
    board: Callable[..., Board] = Moody
    assert measured(board(wild, calm, mild), net, [], QUICK) is calm
    assert measured(board(wild, mild, wild), net, [], QUICK) is mild
    assert measured(board(replace(wild, recorded=True), calm), net, [], QUICK).recorded


def test_random_inputs_are_said_to_be_random_and_real_ones_are_used(net: Path, tmp_path: Path) -> None:
    made, notes = samples(net, None)
    assert made[0]["x"].shape == (1, 3, 8, 8) and "random" in notes[0]
    np.savez(tmp_path / "d.npz", x=np.stack([f["x"][0] for f in feeds()]))
    made, notes = samples(net, str(tmp_path / "d.npz"))
    assert notes == ()
    np.testing.assert_array_equal(made[1]["x"], feeds()[1]["x"])


def test_a_compiled_model_needs_its_inputs(tmp_path: Path) -> None:
    (tmp_path / "net.rknn").write_bytes(b"RKNN")
    with pytest.raises(InputError, match="compiled model"):
        samples(tmp_path / "net.rknn", None)
    np.savez(tmp_path / "d.npz", x=np.zeros((3, 2), np.uint8), labels=np.zeros(3))
    made, _ = samples(tmp_path / "net.rknn", str(tmp_path / "d.npz"))
    assert [set(m) for m in made] == [{"x"}] * 3 and made[0]["x"].shape == (1, 2)


def test_measure_refuses_to_write_over_its_model(net: Path) -> None:
    with pytest.raises(InputError, match="would destroy it"):
        measure(net, "local://", out=net)
    with pytest.raises(InputError, match="does not exist"):
        measure(net.with_name("none.onnx"), "local://")


def test_the_command_prints_stores_and_replays(net: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.json"
    run = CliRunner().invoke(app, ["measure", str(net), "--runs", "20", "--seconds", "0", "-o", str(out), "--json"])
    assert run.exit_code == 0, run.output
    body = json.loads(run.stdout)
    assert body["recorded"] is False and body["p90_ms"] >= body["latency_ms"] > 0.0 and body["runs"] >= 20
    run = CliRunner().invoke(app, ["measure", str(net), "--board", f"replay:{out}"])
    assert run.exit_code == 0 and ", recorded" in run.stdout and "nothing ran" in run.stdout
