"""`qbench contract` and `qbench doctor` as a user meets them."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from models import conv_relu, observe, plan, prepare
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from qbench import targets, toolchains
from qbench.cli.app import app
from qbench.contract import Said
from qbench.errors import InputError, ToolError
from qbench.workbench import doctoring
from qbench.workbench.contracting import check_inputs
from qbench.workbench.doctoring import Finding, Health, State, board_findings, examine, package

RUNNER = CliRunner()


def qbench(*arguments: object, code: int = 0) -> str:
    done = RUNNER.invoke(app, [str(a) for a in arguments])
    assert done.exit_code == code, f"{arguments}: exit {done.exit_code}\n{done.output}\n{done.exception}"
    return done.stdout


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, ...]:
    """net.onnx in the working folder; the shape of its input."""
    monkeypatch.chdir(tmp_path)
    proto = conv_relu()
    onnx.save(proto, "net.onnx")
    return tuple(d.dim_value or 1 for d in proto.graph.input[0].type.tensor_type.shape.dim)


def test_a_good_input_ends_with_0_and_a_bad_one_with_1(net: tuple[int, ...]) -> None:
    np.save("good.npy", np.zeros(net, np.float32))
    np.save("bad.npy", np.zeros(net[1:], np.float64))
    assert "keeps it" in qbench("contract", "net.onnx", "--input", "good.npy")
    said = qbench("contract", "net.onnx", "--input", "bad.npy", code=1)
    assert "batch axis is missing" in said and "x.astype(numpy.float32)" in said and "cure:" in said
    body = json.loads(qbench("contract", "net.onnx", "--input", "bad.npy", "--json", code=1))
    assert [b["clause"] for b in body["inputs"][0]["breaches"]] == ["shape", "dtype"] and body["kept"] is False
    assert body["inputs"][0]["contract"]["buffer_bytes"] == 4 * int(np.prod(net))


def test_the_code_runs(net: tuple[int, ...]) -> None:
    Path("written.py").write_text(qbench("contract", "net.onnx", "--target", "xdna", "--zero-copy", "--code"))
    (written,) = [f for n, f in runpy.run_path("written.py").items() if n.startswith("prepare_")]
    assert written(np.zeros(net, np.float32)).ctypes.data % 4096 == 0


def test_codes_take_scale_and_zero_point_from_the_plan(net: tuple[int, ...]) -> None:
    ready = prepare(Path("net.onnx"))
    feeds = [{ready.network.inputs[0]: np.random.default_rng(0).normal(size=net).astype(np.float32)}]
    made = plan(ready, observe(ready, feeds))
    made.save(Path("plan.json"))
    seen = next(iter(feeds[0].values()))
    body = json.loads(qbench("contract", "net.onnx", "--as", "codes", "--plan", "plan.json", "--json"))["inputs"][0]["contract"]
    assert body["scale"] == pytest.approx((max(seen.max(), 0) - min(seen.min(), 0)) / 255, rel=1e-3) and body["dtype"] in ("int8", "uint8")


def test_what_is_said_of_an_input_is_checked(net: tuple[int, ...]) -> None:
    np.save("x.npy", np.zeros(net, np.float32))
    said = qbench("contract", "net.onnx", "--input", "x.npy", "--scale", "0.5", code=1)
    assert "quantization: found scale 0.5, needed real values" in said


def test_an_unknown_target_and_handover_are_refused(net: tuple[int, ...]) -> None:
    for arguments in (["--target", "nothing"], ["--as", "dma"]):
        with pytest.raises(InputError, match="known"):
            app(["contract", "net.onnx", *arguments], standalone_mode=False)


FACTS = {"runtime": "rknnlite 2.5.0", "librknnrt": "2.5.0", "npu_driver": "0.9.8", "governor": "fdab0000.npu userspace", "device_nodes": "/dev/rknpu rw", "servers": "rknn_server"}


@pytest.mark.parametrize(("change", "name", "state", "words"), [
    ({}, "runtime", State.OK, ""),
    ({"librknnrt": "2.3.2"}, "runtime", State.FAILED, "install librknnrt 2.5.0"),
    ({"librknnrt": "2.6.0"}, "runtime", State.WARNING, "export with toolkit 2.6.0"),
    ({"runtime": ""}, "runtime", State.FAILED, "install it there"),
    ({"runtime": "onnxruntime 1.22.0"}, "runtime", State.WARNING, "rknnlite"),
    ({"npu_driver": ""}, "kernel module rknpu", State.FAILED, "modprobe"),
    ({"npu_driver": "0.7.2"}, "kernel module rknpu", State.WARNING, "newer kernel"),
    ({"governor": "fdab0000.npu rknpu_ondemand"}, "governor", State.WARNING, "--clock"),
    ({"governor": ""}, "governor", State.UNKNOWN, ""),
    ({"device_nodes": ""}, "device node", State.FAILED, "groups"),
    ({"device_nodes": "/dev/rknpu no permission"}, "device node", State.FAILED, "groups"),
    ({"servers": ""}, "server", State.OK, "connected PC"),
])
def test_a_board_is_held_against_the_target(change: dict[str, str], name: str, state: State, words: str) -> None:
    found = board_findings("replay:x", FACTS | change, targets.load("rk3588"), "2.5.0")
    finding = next(f for f in found if f.name == name)
    assert finding.state is state and words in finding.cure
    others = [f for f in found if f.name not in (name, "kernel module rknpu")]
    assert all(f.state is State.OK for f in others), others


def test_a_board_without_a_listed_runtime_version_is_a_warning() -> None:
    found = board_findings("x", FACTS | {"librknnrt": "1.6.0"}, targets.load("rk3588"))
    assert next(f for f in found if f.name == "runtime").state is State.WARNING


def test_what_the_agent_does_not_show_is_unknown_and_not_good() -> None:
    found = board_findings("x", {"runtime": "onnxruntime 1.22.0"}, None)
    assert {f.name: f.state for f in found} == {"runtime": State.OK, "governor": State.UNKNOWN, "device node": State.UNKNOWN, "server": State.UNKNOWN}


def test_packages_are_held_against_their_bounds() -> None:
    assert package("numpy", ">=2.0").state is State.OK
    old, absent, extra = package("numpy", ">=999"), package("no-such-package-here", ">=1"), package("no-such-package-here", ">=1", "face")
    assert old.state is State.FAILED and "pip install 'numpy>=999'" in old.cure
    assert absent.state is State.FAILED and extra.state is State.OK and "qbench[face]" in extra.cure


def test_a_missing_toolchain_fails_only_where_the_target_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchains, "check", lambda name: toolchains.Status(toolchains.load(name), None))
    alone = [f for f in examine().findings if f.name.startswith("toolchain")]
    needed = [f for f in examine("rk3588").findings if f.name.startswith("toolchain")]
    assert all(f.state is State.OK for f in alone)
    assert {f.name: f.state for f in needed}["toolchain rknn"] is State.FAILED
    assert "qbench toolchain install rknn" in next(f for f in needed if f.name == "toolchain rknn").cure
    assert not any(f.state is State.FAILED for f in examine("host").findings if f.name.startswith("toolchain"))


def test_a_board_that_does_not_answer_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dead:
        url = "ssh://x"

        def facts(self) -> dict[str, str]:
            raise ToolError("x: no route to host")

    monkeypatch.setattr(doctoring, "open_board", lambda url: Dead())
    monkeypatch.setattr(toolchains, "names", tuple)
    health = examine(board="ssh://x")
    assert not health.usable and "no route to host" in health.findings[-1].found and health.findings[-1].cure


def test_a_wrong_board_is_refused_before_anything_else_is_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def looked_at() -> tuple[str, ...]:
        raise AssertionError("the toolchains were looked at")

    monkeypatch.setattr(toolchains, "names", looked_at)
    (tmp_path / "r.json").write_text("[]")
    with pytest.raises(InputError, match="holds no measurement"):
        examine(board=f"replay:{tmp_path / 'r.json'}")


@pytest.mark.parametrize(("state", "code"), [(State.OK, 0), (State.WARNING, 0), (State.UNKNOWN, 0), (State.FAILED, 3)])
def test_the_exit_code_of_doctor(state: State, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding("machine", "python", state, "3.11", ">=3.11", "mend it")
    monkeypatch.setattr(doctoring, "examine", lambda target, board: Health((finding, replace(finding, where="local://"))))
    said = qbench("doctor", code=code)
    assert ("mend it" in said) == (state in (State.WARNING, State.FAILED))
    body = json.loads(qbench("doctor", "--json", code=code))
    assert body["usable"] == (code == 0) and len(body["findings"]) == 2


def test_a_full_disk_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil
    from types import SimpleNamespace

    monkeypatch.setattr(toolchains, "names", tuple)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=1e8))
    found = [f for f in examine().findings if "GB free" in f.found]
    assert found and all(f.state is State.FAILED and "free some space" in f.cure for f in found)


def odd_network(folder: Path, inputs: dict[str, int]) -> Path:
    """Identity of each input, of the given element type; without inputs, of a constant."""
    nodes = [helper.make_node("Identity", [n or "c"], [f"{n}_y"]) for n in inputs or [""]]
    values = {n: helper.make_tensor_value_info(n, t, [1, 3, 4, 6]) for n, t in inputs.items()}
    outputs = [helper.make_tensor_value_info(f"{n}_y", t, [1, 3, 4, 6]) for n, t in (inputs or {"": TensorProto.FLOAT}).items()]
    constant = [] if inputs else [numpy_helper.from_array(np.ones((1, 3, 4, 6), np.float32), "c")]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", list(values.values()), outputs, constant), opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
              folder / "odd.onnx")
    return folder / "odd.onnx"


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_the_type_is_that_of_the_file_not_the_one_it_is_computed_in(tmp_path: Path, kind: str) -> None:
    """A float16 input was once called float32, because qbench reads such networks in float32."""
    model = odd_network(tmp_path, {"x": helper.np_dtype_to_tensor_dtype(np.dtype(kind))})
    for other in ("float16", "float32", "float64"):
        np.save(tmp_path / "x.npy", np.zeros((1, 3, 4, 6), other))
        found = check_inputs(model, "rk3588", [str(tmp_path / "x.npy")])
        assert found.inputs[0].contract.dtype == kind and found.kept == (other == kind), other


def test_an_array_under_another_name_breaks_the_name(tmp_path: Path) -> None:
    model = odd_network(tmp_path, {"x": TensorProto.FLOAT})
    x = np.zeros((1, 3, 4, 6), np.float32)
    for given, clauses in (({"x": x}, []), ({"arr_0": x}, []), ({"image": x}, ["name"])):
        np.savez(tmp_path / "x.npz", **given)  # type: ignore[arg-type]  # numpy's stub
        found = check_inputs(model, "rk3588", [str(tmp_path / "x.npz")])
        assert [b.clause for b in found.inputs[0].breaches] == clauses


@pytest.mark.parametrize(("shape", "cure"), [((1, 1, 4, 6), "x.repeat(3, 1)"), ((1, 4, 4, 6), "x[:, :3]"), ((1, 2, 4, 6), "2 channels where the model reads 3"),
                                             ((1, 3, 6, 4), "x.swapaxes(2, 3)"), ((1, 3, 8, 8), "resize the picture")])
def test_the_cure_of_a_picture_is_for_its_channels_its_sides_or_its_size(tmp_path: Path, shape: tuple[int, ...], cure: str) -> None:
    np.save(tmp_path / "x.npy", np.zeros(shape, np.float32))
    found = check_inputs(odd_network(tmp_path, {"x": TensorProto.FLOAT}), "rk3588", [str(tmp_path / "x.npy")])
    assert found.inputs[0].breaches[0].clause == "shape" and cure in found.inputs[0].breaches[0].cure


@pytest.mark.parametrize(("name", "content"), [("empty.npy", b""), ("short.npz", b"PK\x03\x04"), ("cut.npy", b"\x93NUMPY\x01\x00v")])
def test_files_that_are_cut_off_are_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{name}: cannot be read"):
        check_inputs(odd_network(tmp_path, {"x": TensorProto.FLOAT}), "rk3588", [str(tmp_path / name)])


def test_a_model_without_inputs_and_an_unknown_order_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no input that a caller feeds"):
        check_inputs(odd_network(tmp_path, {}), "rk3588")
    with pytest.raises(InputError, match="--channel-order 'rbg'; known: rgb, bgr, gray"):
        check_inputs(odd_network(tmp_path, {"x": TensorProto.FLOAT}), "rk3588", said=Said(None, "rbg"))
