"""Outputs of boards: what comes back is what the runtime computed, bit for bit, over every link."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import models
import numpy as np
import onnx
import pytest
from links import Server, fake_adb, openssh

from qbench.board import Request
from qbench.diagnosis import Cause
from qbench.errors import InputError, ToolError
from qbench.runtime import Session
from qbench.targets.boards import open_board
from qbench.targets.boards.local import answer_of
from qbench.targets.boards.outputs import GivesOutputs, decoded, read_dump
from qbench.workbench.diagnosing import Wanted, diagnose


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with openssh(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """With a tensor between the layers as a second output."""
    proto = models.conv_relu()
    proto.graph.output.append(onnx.helper.make_tensor_value_info("c", onnx.TensorProto.FLOAT, None))
    path = tmp_path / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def feeds() -> list[dict[str, models.Array]]:
    rng = np.random.default_rng(0)
    return [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(3)]


@pytest.mark.parametrize("scheme", ["local", "ssh", "adb"])
def test_boards_give_every_tensor_of_every_sample(scheme: str, net: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "local://"
    if scheme == "ssh":
        url = request.getfixturevalue("server").url(folder=net.parent / "board")
    if scheme == "adb":
        monkeypatch.setenv("PATH", str(fake_adb(net.parent / "bin")), prepend=os.pathsep)
        url = f"adb://emulator-1/onnxruntime?python={sys.executable}&folder={net.parent / 'board'}"
    board = open_board(url)
    assert isinstance(board, GivesOutputs)
    got = board.outputs(net, feeds(), Request())
    assert len(got) == 3
    session = Session(net)
    for row, feed in zip(got, feeds(), strict=True):
        for name, value in session.run(feed).items():
            assert row[name].dtype == value.dtype
            np.testing.assert_allclose(row[name], value, rtol=1e-5, atol=1e-6)
    if scheme != "local":
        assert not [p for p in (net.parent / "board").rglob("*") if p.name.startswith("run-")]


def test_a_model_that_does_not_run_names_board_and_model(net: Path) -> None:
    net.write_bytes(b"\x00nothing")
    board = open_board("local://")
    assert isinstance(board, GivesOutputs)
    with pytest.raises(ToolError, match=r"local://: net\.onnx does not run"):
        board.outputs(net, feeds(), Request())


def test_a_recording_gives_the_outputs_beside_it(net: Path) -> None:
    record = net.with_name("board.json")
    open_board("local://").measure(net, feeds(), Request(runs=25, warmup=0, seconds=0.0, threads=1)).save(record)
    board = open_board(f"replay:{record}")
    assert isinstance(board, GivesOutputs)
    with pytest.raises(ToolError, match=r"holds times but no outputs.*board\.outputs\.npz"):
        board.outputs(net, feeds(), Request())
    np.savez(net.with_name("board.outputs.npz"), y=np.arange(6.0).reshape(3, 2))
    assert [float(r["y"][0, 1]) for r in board.outputs(net, feeds(), Request())] == [1.0, 3.0, 5.0]


@pytest.mark.parametrize("scheme", ["local", "ssh"])
def test_a_board_is_diagnosed_by_its_url(scheme: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Healthy over the link, with the tensors between the layers; nothing of the board's time is compared with another chip's."""
    url = "local://onnxruntime?threads=1" if scheme == "local" else request.getfixturevalue("server").url()
    net = tmp_path / "net.onnx"
    net.write_bytes(models.conv_relu().SerializeToString())
    np.savez(tmp_path / "d.npz", x=np.concatenate([f["x"] for f in feeds()]))
    prepared = models.prepare(net)
    models.plan(prepared, models.observe(prepared, feeds())).save(tmp_path / "plan.json")
    found = diagnose(Wanted(net, tmp_path / "plan.json", str(tmp_path / "d.npz"), board=url, samples=3))
    assert found.cause is Cause.HEALTHY
    assert [s.name for s in found.stages] == ["float -> simulated", "simulated -> board"]
    assert len(found.stages[-1].layers) == 2                    # the input as it is stored, and the output


def test_half_an_answer_is_no_answer() -> None:
    with pytest.raises(ToolError, match="holds no whole outputs"):
        decoded("ssh://board", Path("m.onnx"), {"outputs": [{"y": {"dtype": "float32", "shape": [4], "data": "AAAA"}}]})
    with pytest.raises(ToolError, match="does not run: boom"):
        decoded("ssh://board", Path("m.onnx"), json.loads('{"error": "boom"}'))


def test_dumps_are_read_from_a_file_or_a_folder(tmp_path: Path) -> None:
    for i in range(3):
        np.savez(tmp_path / f"{i:04d}.npz", y=np.full((1, 2), i, np.float32))
    assert read_dump(tmp_path)["y"].tolist() == [[0, 0], [1, 1], [2, 2]]
    np.savez(tmp_path / "0003.npz", y=np.zeros((1, 3), np.float32))
    with pytest.raises(InputError, match=r"0003\.npz: its tensors or their shapes"):
        read_dump(tmp_path)


@pytest.mark.parametrize("kind", ["missing", "npy", "text", "objects", "empty", "folder"])
def test_what_is_no_dump_is_refused_with_the_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "d.npz"
    if kind == "npy":
        np.save(tmp_path / "d.npy", np.zeros(3))
        path = tmp_path / "d.npy"
    elif kind == "text":
        path.write_text("nothing")
    elif kind == "objects":
        np.savez(path, y=np.array([{}], object))
    elif kind == "empty":
        np.savez(path, y=np.zeros((0, 4)))
    elif kind == "folder":
        path = tmp_path
    with pytest.raises(InputError, match=r"d\.np|holds no \.npz"):
        read_dump(path)


@pytest.mark.parametrize("text", ["", "Welcome to the board\n{}", "[1]", '{"samples_ms": [1.0'])
def test_an_answer_that_is_not_the_agents_is_refused_with_the_board(text: str) -> None:
    with pytest.raises(ToolError, match=r"ssh://x: the board's answer is not that of qbench's agent.*start-up files"):
        answer_of("ssh://x", text)
    assert answer_of("ssh://x", '{"runtime": "onnxruntime 1"}') == {"runtime": "onnxruntime 1"}
