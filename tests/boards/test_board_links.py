"""Boards behind a link: a real OpenSSH server on loopback, a stand-in for adb, and what goes wrong on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import models
import numpy as np
import onnx
import pytest
from links import Proxy, Server, fake_adb, free_port, openssh, wait_until

from qbench.board import Request
from qbench.errors import InputError, ToolError
from qbench.files import sha256
from qbench.targets.boards import open_board
from qbench.targets.boards.remote import KEPT, model_files

QUICK = Request(runs=25, warmup=1, seconds=0.0, threads=1)


def feeds() -> list[dict[str, models.Array]]:
    return [{"x": np.ones((1, 3, 8, 8), np.float32)}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with openssh(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(models.conv_relu().SerializeToString())
    return path


@pytest.fixture(params=["ssh", "adb"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A board whose folder is tmp_path/board."""
    if request.param == "ssh":
        server: Server = request.getfixturevalue("server")
        return server.url(folder=tmp_path / "board")
    monkeypatch.setenv("PATH", str(fake_adb(tmp_path / "bin")), prepend=os.pathsep)
    return f"adb://emulator-1/onnxruntime?python={sys.executable}&folder={tmp_path / 'board'}"


def left(folder: Path) -> list[str]:
    """Files of a board's folder but the models that it keeps."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.parent.name != "models" and p.name != "models")


def heavy(path: Path, megabytes: float) -> Path:
    """A model with that much weight."""
    rng = np.random.default_rng(0)
    rows = int(megabytes * 2**20 / 4 / 64)
    weight = onnx.numpy_helper.from_array(rng.normal(size=(64, rows)).astype(np.float32), "w")
    graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [onnx.helper.make_tensor_value_info("x", 1, [1, 64])],
                                   [onnx.helper.make_tensor_value_info("y", 1, [1, rows])], [weight])
    path.write_bytes(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10).SerializeToString())
    return path


def test_a_board_keeps_the_model_alone_and_gets_it_once(url: str, net: Path, tmp_path: Path) -> None:
    board, folder = open_board(url), tmp_path / "board"
    board.measure(net, feeds(), QUICK)
    kept = folder / "models" / sha256(net)
    assert left(folder) == [] and [p.name for p in (folder / "models").iterdir()] == [kept.name] and sha256(kept) == sha256(net)
    before = kept.stat().st_ino
    board.measure(net, feeds(), QUICK)
    assert kept.stat().st_ino == before, "sent again"
    kept.write_bytes(b"rotten")
    assert board.measure(net, feeds(), QUICK).model == "net.onnx", "a damaged copy is replaced"
    assert sha256(kept) == sha256(net) and left(folder) == []


def test_old_models_make_room(url: str, tmp_path: Path) -> None:
    models_there = tmp_path / "board" / "models"
    models_there.mkdir(parents=True)
    for number in range(KEPT + 3):
        (models_there / f"old{number}").write_text("x")
        os.utime(models_there / f"old{number}", (number, number))
    net = tmp_path / "net.onnx"
    net.write_bytes(models.conv_relu().SerializeToString())
    open_board(url).measure(net, feeds(), QUICK)
    assert {p.name for p in models_there.iterdir()} == {sha256(net), *(f"old{n}" for n in range(4, KEPT + 3))}


def test_weights_beside_the_model_travel_with_it(url: str, tmp_path: Path) -> None:
    loaded = onnx.load(heavy(tmp_path / "one.onnx", 0.1))
    (tmp_path / "sub").mkdir()
    onnx.save(loaded, tmp_path / "sub" / "it's two.onnx", save_as_external_data=True, location="weights of two.bin", size_threshold=0)
    found = open_board(url).measure(tmp_path / "sub" / "it's two.onnx", [{"x": np.ones((1, 64), np.float32)}], QUICK)
    assert found.model == "it's two.onnx" and left(tmp_path / "board") == []


def test_a_link_to_a_model_and_the_halves_of_an_openvino_model(tmp_path: Path) -> None:
    (tmp_path / "blob.onnx").write_bytes(models.conv_relu().SerializeToString())
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "net.onnx").symlink_to(tmp_path / "blob.onnx")
    assert model_files(tmp_path / "links" / "net.onnx") == [(tmp_path / "blob.onnx").resolve()]
    for name in ("ir.xml", "ir.bin"):
        (tmp_path / name).write_text("")
    assert [p.name for p in model_files(tmp_path / "ir.xml")] == ["ir.xml", "ir.bin"]


def test_the_folder_goes_after_a_failure_too(url: str, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"junk")
    with pytest.raises(ToolError, match=r"bad\.onnx does not run"):
        open_board(url).measure(tmp_path / "bad.onnx", feeds(), QUICK)
    assert left(tmp_path / "board") == []


def test_a_board_without_python_says_how_to_name_another(url: str, net: Path) -> None:
    board = open_board(url.replace(f"python={sys.executable}", "python=/nowhere/python3"))
    for work in (board.facts, lambda: board.measure(net, feeds(), QUICK)):
        with pytest.raises(ToolError, match=r"there is no /nowhere/python3 on the board; install Python 3\.8 or later, or name one with \?python="):
            work()


def test_a_board_without_the_runtime_says_what_is_missing(url: str, net: Path) -> None:
    board = open_board(url.replace("/onnxruntime?", "/rknnlite?"))
    with pytest.raises(ToolError, match=r"rknnlite does not answer: .*NotFoundError.*: install it for .* of the board"):
        board.facts()
    with pytest.raises(ToolError, match=r"net\.onnx does not run: ModuleNotFoundError: No module named 'rknnlite'"):
        board.measure(net, feeds(), QUICK)


def test_a_folder_that_cannot_be_made_is_named(url: str, net: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ToolError, match=r"no folder can be written on the board \(tried .*file/x\)"):
        open_board(url.replace(str(tmp_path / "board"), str(tmp_path / "file" / "x"))).measure(net, feeds(), QUICK)


@pytest.mark.parametrize("scheme", ["ssh", "adb"])
def test_a_full_disk_is_said_and_leaves_nothing(scheme: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], check=False, capture_output=True).returncode:
        pytest.skip("no right to mount a small disk here")
    monkeypatch.setenv("PATH", str(fake_adb(tmp_path / "bin")), prepend=os.pathsep)
    url = server.url(folder=disk / "q") if scheme == "ssh" else f"adb://emulator-1?python={sys.executable}&folder={disk / 'q'}"
    try:
        with pytest.raises(ToolError, match=r"big\.onnx \(\d+ bytes\) cannot be written on the board: .*No space left on device.*Free some space"):
            open_board(url).measure(heavy(tmp_path / "big.onnx", 1.0), [{"x": np.ones((1, 64), np.float32)}], QUICK)
        assert left(disk / "q") == [] and list((disk / "q" / "models").iterdir()) == []
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize(("silent", "timeout"), [(False, "5"), (True, "1")])
def test_a_link_that_breaks_leaves_no_half_file(silent: bool, timeout: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut, or silent as behind a dead switch, in the middle of the model."""
    local = tmp_path / "tmp"
    local.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(local))
    with Proxy(server.port, 300_000, silent) as proxy:
        known = server.trust(proxy.port, f"known-{proxy.port}")
        url = server.url(port=proxy.port, known_hosts=known, folder=tmp_path / "board", timeout=timeout)
        with pytest.raises(ToolError, match=r"the link broke .*: nothing was stored, .*try again") as error:
            open_board(url).measure(heavy(tmp_path / "big.onnx", 1.0), [{"x": np.ones((1, 64), np.float32)}], QUICK)
        assert url in str(error.value)
    assert wait_until(lambda: not left(tmp_path / "board")), left(tmp_path / "board")
    assert list((tmp_path / "board" / "models").iterdir()) == [] and list(local.iterdir()) == []


def test_a_link_that_breaks_ends_what_runs_on_the_board(server: Server, net: Path, tmp_path: Path) -> None:
    """And the agent puts back the clock before it goes."""
    (tmp_path / "python").write_text(f"#!/bin/sh\ncase $2 in measure) echo $$ > {tmp_path / 'agent'}; esac\nexec {sys.executable} \"$@\"\n")
    (tmp_path / "python").chmod(0o755)
    with Proxy(server.port, 10**9) as proxy:
        url = server.url(port=proxy.port, known_hosts=server.trust(proxy.port, f"known-{proxy.port}"), folder=tmp_path / "board", python=tmp_path / "python")
        said: list[str] = []

        def work() -> None:
            try:
                open_board(url).measure(net, feeds(), Request(runs=25, seconds=60.0))
            except ToolError as error:
                said.append(str(error))

        thread = threading.Thread(target=work)
        thread.start()
        assert wait_until(lambda: (tmp_path / "agent").exists() and (tmp_path / "agent").read_text().strip())
        number = int((tmp_path / "agent").read_text())
        proxy.cut()
        thread.join(20.0)
    assert "the link broke" in said[0]
    assert wait_until(lambda: not Path(f"/proc/{number}").exists()) and wait_until(lambda: not left(tmp_path / "board"))


def test_dead_servers_are_named(tmp_path: Path, net: Path, server: Server) -> None:
    with pytest.raises(ToolError, match=r"no SSH connection within 5 s .*does sshd listen there\?"):
        open_board(server.url(port=free_port())).measure(net, feeds(), QUICK)
    with Proxy(server.port, -1, silent=True) as proxy, pytest.raises(ToolError, match=r"no SSH connection within 1 s"):
        open_board(server.url(port=proxy.port, timeout="1")).measure(net, feeds(), QUICK)


def test_an_unknown_host_is_never_accepted_and_the_error_gives_the_cure(server: Server, net: Path, tmp_path: Path) -> None:
    wanted = subprocess.run(["ssh-keygen", "-lf", str(server.place / "host.pub")], check=True, capture_output=True, text=True).stdout.split()[1]
    known = tmp_path / "known"
    url = server.url(known_hosts=known)
    with pytest.raises(ToolError, match="host key") as error:
        open_board(url).facts()
    assert wanted in str(error.value) and not known.exists()
    subprocess.run(["sh", "-c", str(error.value).partition("then: ")[2]], check=True)
    assert open_board(url).facts()["runtime"].startswith("onnxruntime")


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa"])
def test_another_host_key_is_told_from_an_unknown_one(kind: str, server: Server, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(tmp_path / "other")], check=True)
    known = tmp_path / "known"
    known.write_text(f"[127.0.0.1]:{server.port} " + " ".join((tmp_path / "other.pub").read_text().split()[:2]) + "\n")
    before = known.read_text()
    with pytest.raises(ToolError, match=r"not the one in .*or another machine answers") as error:
        open_board(server.url(known_hosts=known)).facts()
    assert known.read_text() == before
    subprocess.run(["sh", "-c", str(error.value).partition("If you know why: ")[2]], check=True, capture_output=True)
    assert open_board(server.url(known_hosts=known)).facts()["runtime"].startswith("onnxruntime")


def test_a_configuration_that_cannot_be_read_is_named(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Port none\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ToolError, match=r"~/\.ssh/config cannot be used"):
        open_board(server.url()).facts()


def test_a_wrong_key_is_refused_with_the_cure(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    for name, words in (("", "none of your keys"), ("secret", "ssh-add")):
        key = tmp_path / f"key{name}"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", name, "-f", str(key)], check=True)
        with pytest.raises(ToolError, match=words):
            open_board(server.url(key=key)).facts()
    with pytest.raises(InputError, match="nowhere does not exist"):
        open_board(server.url(key=tmp_path / "nowhere"))


def test_passwords_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(InputError, match="ssh-copy-id me@board") as error:
        open_board("ssh://me:hunter2@board")
    assert "hunter2" not in str(error.value)


def test_a_missing_library_or_program_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    with pytest.raises(InputError, match=r"pip install 'qbench\[ssh\]'"):
        open_board("ssh://board")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError, match="apt-get install adb"):
        open_board("adb://1").facts()


def test_an_adb_board_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(fake_adb(tmp_path / "bin")), prepend=os.pathsep)
    with pytest.raises(ToolError, match=r"adb://lost: the board is not there \(error: device 'lost' not found\): plug it in"):
        open_board("adb://lost").facts()


def test_an_adb_link_that_breaks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, net: Path) -> None:
    """A stand-in whose shell dies before the command's end."""
    folder = fake_adb(tmp_path / "bin")
    (folder / "adb").write_text((folder / "adb").read_text().replace('elif command == "shell":', 'elif command == "shell" and "agent.py" in rest[0]:\n    sys.exit("error: closed")\n'
                                                                     'elif command == "shell":'))
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    with pytest.raises(ToolError, match=r"the link broke \(error: closed\)"):
        open_board(f"adb://emulator-1?folder={tmp_path / 'board'}").measure(net, feeds(), QUICK)
    assert wait_until(lambda: not left(tmp_path / "board"))


def test_the_record_of_a_board_survives_its_file(server: Server, net: Path, tmp_path: Path) -> None:
    found = open_board(server.url()).measure(net, feeds(), QUICK)
    found.save(tmp_path / "m.json")
    assert open_board(f"replay:{tmp_path / 'm.json'}").facts()["runtime"] == found.runtime
    assert json.loads((tmp_path / "m.json").read_text())["board"].startswith("ssh://")
