"""BUG case B27: a board whose runtime or driver is not what the artefact needs is refused before anything runs."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import models
import pytest
from typer.testing import CliRunner

from qbench.board import Measurement
from qbench.cli.app import app
from qbench.errors import InputError, ToolError
from qbench.targets.boards.agent import facts
from qbench.workbench.measuring import refuse_versions, versions

RK3588 = {"runtime": "rknnlite 1.4.0", "npu_driver": "0.9.8", "python": "3.10.12", "system": "Linux-5.10.160-aarch64"}


@dataclass
class Fake:
    """A board that says what it has and must not be asked for more."""

    said: dict[str, str] = field(default_factory=lambda: dict(RK3588))
    url: str = "board-7"

    def facts(self) -> dict[str, str]:
        return self.said

    def measure(self, *_: Any) -> Measurement:
        raise AssertionError("measured all the same")


def manifest(folder: Path, requires: Any) -> Path:
    path = folder / "manifest.json"
    path.write_text(json.dumps({"requires": requires}))
    return path


def test_runtime_1_4_0_is_refused_where_1_6_0_is_needed_naming_both_sides(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"board-7 has runtime 1\.4\.0, the artefact needs runtime >=1\.6\.0: install that runtime on the board, or export again"):
        refuse_versions(manifest(tmp_path, {"runtime": ">=1.6.0"}), Fake())


@pytest.mark.parametrize(("requires", "words"), [({"driver": ">=0.9.9"}, r"driver 0\.9\.8, the artefact needs driver >=0\.9\.9"), ({"rknnlite": "==2.3.2"}, r"rknnlite 1\.4\.0"),
                                                 ({"firmware": ">=1"}, "does not say which firmware")])
def test_every_clause_counts(requires: dict[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=words):
        refuse_versions(manifest(tmp_path, requires), Fake())


def test_a_board_that_has_it_all_passes(tmp_path: Path) -> None:
    refuse_versions(manifest(tmp_path, {"runtime": ">=1.4, <2", "driver": "==0.9.8", "python": ">=3.8"}), Fake())
    refuse_versions(manifest(tmp_path, {}), Fake({}))


def test_the_library_that_reads_the_model_counts_not_the_package_in_front_of_it() -> None:
    said = RK3588 | {"runtime": "rknnlite 2.3.2", "librknnrt": "1.5.0"}
    assert versions(said)["runtime"] == "1.5.0" and versions(said)["rknnlite"] == "2.3.2"
    assert versions({"npu_driver": "RKNPU driver: v0.9.2", "board": "no number"}) == {"npu_driver": "0.9.2", "driver": "0.9.2"}


def test_versions_of_libraries_and_drivers_are_read_from_their_files(tmp_path: Path) -> None:
    for name, content in {"usr/lib/librknnrt.so": b"\x7fELF\x00\xff librknnrt version: 2.3.0 (c949ad889d@2024-11-07)\x00", "usr/local/Ascend/driver/version.info": b"a=b\nVersion=23.0.3\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    found = facts("", str(tmp_path))
    assert found["librknnrt"] == "2.3.0" and found["npu_driver"] == "23.0.3"


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"requires": 3}', '{"requires": {"runtime": "about 1.0"}}'])
def test_what_is_no_manifest_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(InputError, match=r"m\.json"):
        refuse_versions(tmp_path / "m.json", Fake())
    with pytest.raises(InputError, match=r"none\.json is no manifest"):
        refuse_versions(tmp_path / "none.json", Fake())


def test_the_command_refuses_and_stores_nothing(tmp_path: Path) -> None:
    net, out = tmp_path / "net.onnx", tmp_path / "out.json"
    net.write_bytes(models.conv_relu().SerializeToString())
    run = CliRunner().invoke(app, ["measure", str(net), "--manifest", str(manifest(tmp_path, {"runtime": ">=999"})), "-o", str(out)])
    assert isinstance(run.exception, ToolError) and "needs runtime >=999" in str(run.exception) and not out.exists()
    run = CliRunner().invoke(app, ["measure", str(net), "--manifest", str(manifest(tmp_path, {"runtime": ">=1.0", "onnxruntime": ">=1.0"})), "-o", str(out), "--runs", "20", "--seconds", "0"])
    assert run.exit_code == 0 and out.exists(), run.output


def test_the_command_refuses_a_clock_that_cannot_be_read(tmp_path: Path) -> None:
    net = tmp_path / "net.onnx"
    net.write_bytes(models.conv_relu().SerializeToString())
    run = CliRunner().invoke(app, ["measure", str(net), "--clock", "fast"])
    assert isinstance(run.exception, InputError) and "expected 1000MHz" in str(run.exception)


def test_device_nodes_and_servers_of_a_fake_tree(tmp_path: Path) -> None:
    """Nodes by pattern with the driver behind a render node, and a node that may not be opened; servers by their names in /proc."""
    root = tmp_path / "root"
    (root / "dev/dri").mkdir(parents=True)
    for name in ("dri/renderD128", "dri/renderD129", "davinci0", "null"):
        (root / "dev" / name).write_bytes(b"")
    driver = root / "sys/bus/platform/drivers/RKNPU"
    driver.mkdir(parents=True)
    (root / "sys/class/drm/renderD129/device").mkdir(parents=True)
    (root / "sys/class/drm/renderD129/device/driver").symlink_to(driver)
    for number, name in enumerate(("init", "rknn_server")):
        (root / f"proc/{number + 1}").mkdir(parents=True)
        (root / f"proc/{number + 1}/comm").write_text(name + "\n")
    found = facts("", str(root))
    assert found["servers"] == "rknn_server"
    assert found["device_nodes"].split(", ") == ["/dev/dri/renderD128", "/dev/dri/renderD129 (RKNPU)", "/dev/davinci0"]
    (root / "dev/davinci0").chmod(0)
    if os.geteuid():
        assert facts("", str(root))["device_nodes"].endswith("/dev/davinci0: no permission")
    empty = facts("", str(tmp_path / "nothing"))
    assert empty["device_nodes"] == "" and empty["servers"] == ""
