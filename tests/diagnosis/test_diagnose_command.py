"""`qbench diagnose` on the command line: what it prints, what it refuses, and the built-in sample."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from lab import Lab, build
from typer.testing import CliRunner

from qbench.cli.app import app
from qbench.diagnosis import Cause
from qbench.errors import InputError
from qbench.runtime import Session
from qbench.samples import load_sample
from qbench.workbench.diagnosing import Wanted, diagnose
from qbench.workbench.quantizing import quantize

CLI = CliRunner()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return build(tmp_path_factory.mktemp("lab"))


def asked(lab: Lab, *more: str) -> list[str]:
    return ["diagnose", str(lab.folder / "net.onnx"), str(lab.folder / "plan.json"), "--data", str(lab.folder / "data.npz"), *more]


def test_the_verdict_comes_with_evidence_confirmation_and_cure(lab: Lab) -> None:
    np.savez(lab.folder / "b.npz", y=lab.board(np.ascontiguousarray(lab.x[:, ::-1])))
    ran = CLI.invoke(app, asked(lab, "--outputs", str(lab.folder / "b.npz")), env={"COLUMNS": "200"})
    assert ran.exit_code == 0, ran.output
    assert "4 samples: channel order" in ran.output
    for word in ("where    simulated -> board, input x", "BGR for RGB", "seen     ", "confirm  ", "cure     ", "explains 100.0%", "not looked at: compiled"):
        assert word in ran.output
    body = json.loads(CLI.invoke(app, asked(lab, "--outputs", str(lab.folder / "b.npz"), "--json")).stdout)
    assert body["cause"] == "channel order" and body["stage"] == "simulated -> board" and body["cure"] and body["confirm"]
    assert body["stages"][-1]["trials"][0]["explained"] > 0.99 and body["left_out"]["compiled"]


def test_healthy_says_healthy(lab: Lab) -> None:
    np.savez(lab.folder / "h.npz", y=lab.board())
    ran = CLI.invoke(app, asked(lab, "--outputs", str(lab.folder / "h.npz")), env={"COLUMNS": "160"})
    assert ran.exit_code == 0 and "healthy" in ran.output and "cure" not in ran.output


def test_names_are_no_markup(lab: Lab) -> None:
    proto = onnx.load(lab.folder / "net.onnx")
    proto.graph.output[0].name = "[red]y[/red]"
    proto.graph.node[-1].output[0] = "[red]y[/red]"
    onnx.save(proto, lab.folder / "marked.onnx")
    np.savez(lab.folder / "m.npz", output0=Session(lab.folder / "marked.onnx").run({"x": lab.x})["[red]y[/red]"])
    ran = CLI.invoke(app, ["diagnose", str(lab.folder / "marked.onnx"), "--data", str(lab.folder / "data.npz"), "--outputs", str(lab.folder / "m.npz")],
                     env={"COLUMNS": "200"})
    assert ran.exit_code == 0 and "[red]y[/red]" in ran.output


def test_messages_and_logs(tmp_path: Path) -> None:
    ran = CLI.invoke(app, ["diagnose", "--message", "Invalid RKNN model version 6"], env={"COLUMNS": "200"})
    assert ran.exit_code == 0
    assert ran.output.startswith("1. Invalid RKNN model version") and "check    qbench doctor" in ran.output and "BUG case B27" in ran.output
    (tmp_path / "log.txt").write_text("a\n" * 20 + "Unsupport onnx opset 21, need <= 19!\n")
    body = json.loads(CLI.invoke(app, ["diagnose", "--log", str(tmp_path / "log.txt"), "--json"]).stdout)
    assert body["matches"][0]["name"] == "opset-too-new" and body["matches"][0]["year"] >= 2015
    assert "no known symptom" in CLI.invoke(app, ["diagnose", "--message", "hello"]).output


def refused(arguments: list[str]) -> str:
    ran = CLI.invoke(app, arguments)
    assert ran.exception is not None and ran.exit_code != 0
    return str(ran.exception)


def test_what_does_not_go_together_is_refused(lab: Lab, tmp_path: Path) -> None:
    net, plan, data = (str(lab.folder / n) for n in ("net.onnx", "plan.json", "data.npz"))
    np.savez(tmp_path / "o.npz", y=lab.board())
    np.savez(tmp_path / "odd.npz", nothing=np.zeros((4, 7)), more=np.zeros((4, 9)))
    assert "take no MODEL" in refused(["diagnose", net, "--message", "x"])
    assert "--message is empty" in refused(["diagnose", "--message", " "])
    assert "cannot be read" in refused(["diagnose", "--log", str(tmp_path / "none")])
    assert "does not exist" in refused(["diagnose", "nowhere.onnx"])
    assert "which inputs were these outputs made from?" in refused(["diagnose", net, plan, "--outputs", str(tmp_path / "o.npz")])
    assert "no tensor of the model is in it" in refused(asked(lab, "--outputs", str(tmp_path / "odd.npz")))
    assert "expected at least the outputs y [4, 4, 10, 12]" in refused(asked(lab, "--outputs", str(tmp_path / "odd.npz")))
    (tmp_path / "junk.onnx").write_bytes(b"no model")
    (tmp_path / "empty.onnx").write_bytes(b"")
    assert "junk.onnx: not a readable ONNX file" in refused(["diagnose", net, str(tmp_path / "junk.onnx"), "--data", data])
    assert "empty.onnx: the file holds no graph" in refused(["diagnose", net, str(tmp_path / "empty.onnx"), "--data", data])
    assert "and no plan was given" in refused(["diagnose", net, "--data", data, "--outputs", str(tmp_path / "o.npz"), "--stats", data])
    assert "nothing to compare" in refused(["diagnose", net, "--data", data])
    assert "give one of the two" in refused(["diagnose", net, "--sample", "brain"])
    assert "are for a model of your own" in refused(["diagnose", "--data", data])
    (tmp_path / "manifest.json").write_text("{}")
    assert "export again where the toolchain is installed" in refused(asked(lab, "--compiled", str(tmp_path)))


@pytest.mark.parametrize("board", [None, np.nan])
def test_a_float_model_that_is_not_finite_itself_is_said(tmp_path: Path, board: float | None) -> None:
    """Where the reference is NaN no machine is to blame; where all of it is, nothing is called healthy."""
    graph = onnx.helper.make_graph([onnx.helper.make_node("Log", ["x"], ["y"])], "logs", [onnx.helper.make_tensor_value_info("x", 1, [1, 4])],
                                   [onnx.helper.make_tensor_value_info("y", 1, [1, 4])])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), tmp_path / "logs.onnx")
    x = np.array([[1, 2, 3, -1], [4, 5, 6, -2]], np.float32)
    with np.errstate(invalid="ignore"):
        y = np.log(x if board is None else x * board)
    np.savez(tmp_path / "y.npz", y=y)
    np.savez(tmp_path / "x.npz", x=x)
    np.savez(tmp_path / "negative.npz", x=-np.abs(x))
    found = diagnose(Wanted(tmp_path / "logs.onnx", data=str(tmp_path / "x.npz"), outputs=tmp_path / "y.npz"))
    assert found.cause is (Cause.HEALTHY if board is None else Cause.NON_FINITE)
    assert "the float model itself gives 2 NaN and 0 infinities in 8 values in y: there nothing is compared" in found.notes
    with pytest.raises(InputError, match="gives no finite value on these samples: y holds 8 NaN"):
        diagnose(Wanted(tmp_path / "logs.onnx", data=str(tmp_path / "negative.npz"), outputs=tmp_path / "y.npz"))


def test_the_simulator_of_an_export_is_a_layer_of_its_own(lab: Lab, tmp_path: Path) -> None:
    """The gap lies between simulated and compiled, and the board agrees with the compiler: the compiler is named."""
    plan = (lab.folder / "plan.json").read_text()
    (tmp_path / "plan.json").write_text(plan)
    (tmp_path / "manifest.json").write_text("{}")
    wrong = lab.board(accumulate={"conv1": lambda a: np.clip(a, -2**15, 2**15 - 1)})
    np.savez(tmp_path / "simulated-vendor.npz", **{"in:x": lab.x, "out:y": wrong})  # type: ignore[arg-type]  # numpy's stub
    found = diagnose(Wanted(lab.folder / "net.onnx", tmp_path))
    assert [s.name for s in found.stages] == ["float -> simulated", "host tensor", "simulated -> compiled"]
    assert found.cause is Cause.SATURATION and found.first is not None and found.first.name == "simulated -> compiled"
    assert any("samples are those that came with" in n for n in found.notes)


def test_the_brain_sample(tmp_path: Path) -> None:
    """A real network end to end: healthy with onnxruntime as the board, and the sample before it named."""
    quantize(None, tmp_path / "q.onnx", sample="brain", limit=2, save_plan=tmp_path / "plan.json")
    x = np.concatenate([b.feeds["image"] for b, _ in zip(load_sample("brain", 3).evaluation.batches(1), range(3), strict=False)])
    session = Session(tmp_path / "q.onnx")
    y = np.concatenate([session.run({"image": x[i:i + 1]})["logits"] for i in range(3)])
    np.savez(tmp_path / "good.npz", logits=y.transpose(0, 2, 3, 1).astype(np.float16))
    np.savez(tmp_path / "old.npz", logits=np.concatenate([y[:1] * 0, y[:-1]]))
    good = diagnose(Wanted(plan=tmp_path / "plan.json", sample="brain", outputs=tmp_path / "good.npz", samples=3, search_s=10.0))
    assert good.stages[-1].name == "simulated -> board" and good.cause is Cause.HEALTHY
    assert any("encode.0" in n and "--stats" in n for n in good.stages[0].notes)                         # two pictures are no calibration: 8.5 dB from float
    old = diagnose(Wanted(plan=tmp_path / "plan.json", sample="brain", outputs=tmp_path / "old.npz", samples=3, search_s=10.0))
    assert old.cause is Cause.STALE and old.first is not None and "the sample before" in old.first.what
