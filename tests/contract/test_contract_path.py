"""The way of a frame to an input: bytes by hand, what is unvalidated says so, what cannot be priced is refused."""

from __future__ import annotations

import json
from pathlib import Path

import models
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from qbench import targets
from qbench.cli.app import app
from qbench.contract import Contract, contract_of
from qbench.contract_path import FACTOR, timed, ways
from qbench.data import parse_preprocessing
from qbench.errors import DataError, InputError
from qbench.network import Network
from qbench.workbench.datapath import data_path

BGR = "size=8x8,colour=bgr,mean=0.5,std=0.5"


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(models.conv_relu().SerializeToString())
    return path


def contract(net: Path, target: str = "rk3588", how: str = BGR) -> Contract:
    network: Network = models.prepare(net).network
    return contract_of(network, targets.load(target), preprocessing=parse_preprocessing(how) if how else None)[0]


def test_bytes_by_hand(net: Path) -> None:
    """A 40x30 frame into 3x8x8, 192 values: decoded 3600 bytes; resize reads them and writes 192; reordering 2 x 192; normalising reads 1 and
    writes 4 bytes a value; transposing moves 8; the runtime's copy of float32 8, of 8-bit pixels 2; NV12 has 1.5 bytes a pixel."""
    found = ways(contract(net), (30, 40), targets.load("rk3588"))
    moved = [{s.name: s.bytes_moved for s in w.steps} for w in found]
    assert moved[0] == {"decode": 3600, "resize": 3792, "colour order": 384, "normalise": 960, "layout": 1536, "copy": 1536}
    assert moved[1] == {"decode": 3600, "resize": 3792, "colour order": 384, "copy": 384}
    assert moved[2] == {"decode": 3600, "resize": 3792, "colour order": 384}
    assert moved[3] == {"NV12 to RGB and resize": 1800 + 192}
    assert found[0].bytes_moved > found[1].bytes_moved > found[2].bytes_moved > found[3].bytes_moved


def test_estimates_are_bytes_over_the_rates_of_the_file_and_say_unvalidated(net: Path) -> None:
    chip = targets.load("rk3588")
    found = ways(contract(net), (30, 40), chip)
    resize = found[0].steps[1]
    middle = 3792 / chip.cost["cpu_bytes_per_s"] * 1e3
    assert resize.target_ms == pytest.approx((middle / FACTOR, middle, middle * FACTOR))
    assert found[0].steps[0].target_ms is None                                          # decoding is not a matter of bytes
    assert found[3].steps[0].target_ms is not None and found[3].steps[0].target_ms[2] == float("inf")
    assert all("unvalidated" in w.basis for w in found) and "assumed" in found[0].basis


def test_a_target_without_a_known_engine_has_no_such_way(net: Path) -> None:
    assert [w.name for w in ways(contract(net, "xdna"), (30, 40), targets.load("xdna"))] == [w.name for w in ways(contract(net), (30, 40), targets.load("rk3588"))][:3]


def test_each_step_is_timed_once(net: Path) -> None:
    asked: list[str] = []

    def time_of(step: str) -> tuple[float, float, float]:
        asked.append(step)
        return 1.0, 2.0, 3.0

    found = timed(ways(contract(net), (30, 40), targets.load("rk3588")), time_of)
    assert asked == ["decode", "resize", "colour order", "normalise", "layout", "copy 768", "copy 192"]
    assert found[0].host_ms == 12.0 and found[2].host_ms == 6.0 and found[3].host_ms is None


def test_real_times_are_ordered_and_positive(net: Path, tmp_path: Path) -> None:
    Image.fromarray(np.zeros((30, 40, 3), np.uint8)).save(tmp_path / "p.png")
    found = data_path(contract(net), targets.load("rk3588"), "", tmp_path / "p.png")
    assert found[0].steps[0].bytes_moved == 3600
    for s in found[0].steps:
        assert s.host_ms is not None and 0.0 < s.host_ms[0] <= s.host_ms[1] <= s.host_ms[2]


def test_from_the_command_line(net: Path) -> None:
    asked = ["contract", str(net), "--preprocess", BGR, "--frame", "40x30"]
    ran = CliRunner().invoke(app, asked, env={"COLUMNS": "160"})
    assert ran.exit_code == 0, ran.output
    for words in ("1. the host prepares float32", "4. NV12 frame", "unvalidated", "estimated", "needs: --as pixels --zero-copy"):
        assert words in ran.output
    body = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert len(body["ways"]) == 4 and body["ways"][3]["steps"][0]["target_ms"][2] is None


def test_what_cannot_be_priced_is_refused(net: Path, tmp_path: Path) -> None:
    chip = targets.load("rk3588")
    for frame in ("1920", "0x4", "axb", "99999x99999"):
        with pytest.raises(InputError, match="WIDTHxHEIGHT"):
            data_path(contract(net), chip, frame)
    with pytest.raises(InputError, match="give --preprocess"):
        data_path(contract(net, how=""), chip, "40x30")
    (tmp_path / "no.jpg").write_bytes(b"no picture")
    with pytest.raises(DataError, match="cannot be read as a picture"):
        data_path(contract(net), chip, "", tmp_path / "no.jpg")
