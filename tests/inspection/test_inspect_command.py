"""The command: exit codes, JSON, and a report that fits its terminal."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from models import model, node
from rich.console import Console

from qbench.cli import main
from qbench.report import inspect_text
from qbench.report.inspect_terminal import report
from qbench.workbench.inspecting import inspect_model

TARGETS = ("rk3588", "hexagon", "stm32h7", "ane", "mediatek-apu")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network with open batch and size, one operator on the CPU, one refused, and names that look like markup."""
    rng = np.random.default_rng(0)
    w = {"w": rng.normal(0, 0.1, (8, 3, 3, 3)).astype(np.float32), "s": np.array([1, 1, 2, 2], np.float32)}
    nodes = [node("Conv", ["x", "w"], ["c"], "[bold]conv", pads=[1] * 4), node("Exp", ["c"], ["e"], "exp"), node("Conv", ["e", "w2"], ["d"], "conv2"),
             node("Resize", ["d", "", "s"], ["y"], "up", mode="cubic")]
    w["w2"] = rng.normal(0, 0.1, (8, 8, 1, 1)).astype(np.float32)
    file = tmp_path_factory.mktemp("inspect") / "net.onnx"
    onnx.save(model(nodes, {"x": ["n", 3, "h", "w"]}, {"y": ["n", 8, "h2", "w2"]}, w), file)
    return file


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["inspect", *arguments])
    return int(stopped.value.code or 0)


def test_findings_exit_with_0_and_json_is_a_list_of_objects(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(path), *(a for t in TARGETS for a in ("--target", t)), "--input-shape", "x=1,3,64,64", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == len(TARGETS) and found[0]["target"] == "rk3588" and not found[0]["shapes"]["assumed"]
    for row in found:
        assert {"model", "target", "toolkit", "precision", "op_point", "shapes", "operators", "fallback", "segments", "padding", "sizes", "layouts", "onchip", "graph",
                "rewrites", "latency_ms", "latency_ms_low", "latency_ms_high", "provenance"} <= set(row)
        assert isinstance(row["operators"], list) and isinstance(row["rewrites"], list)
        assert row["latency_ms_low"] <= row["latency_ms"] <= row["latency_ms_high"]
    rk3588, _, stm32, _, apu = found
    assert rk3588["segments"] == 2 and [s["returns"] for s in rk3588["fallback"]["segments"]] == [True, False]
    assert {o["op"]: o["placements"] for o in rk3588["operators"]} == {"Resize": {"refused": 1}, "Exp": {"CPU": 1}, "Conv": {"NPU": 2}}
    assert {p for o in apu["operators"] for p in o["placements"]} == {"unknown"} and apu["fallback"]["possible"] is None
    assert {p for o in stm32["operators"] for p in o["placements"]} == {"CPU"} and stm32["segments"] == 0


@pytest.mark.parametrize("arguments, says", [
    (("nowhere.onnx",), "no such file"), (("{path}", "--target", "rk9999"), "no target 'rk9999'"), (("{path}", "--input-shape", "q=1,2"), "no such input"),
    (("{path}", "--precision", "int3"), "int3"), (("{path}", "--toolkit", "9.9"), "no toolkit '9.9'"),
])
def test_bad_input_exits_with_2(path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str) -> None:
    assert run(*(a.format(path=path) for a in arguments)) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("width", [80, 200])
def test_the_report_fits_the_terminal_and_shows_names_as_they_are(path: Path, width: int) -> None:
    found = inspect_model(path, TARGETS)
    console = Console(width=width, record=True, file=io.StringIO())
    for number, inspection in enumerate(found):
        console.print(report(inspection, whole_model=number == 0))
    text = console.export_text()
    assert max(len(line) for line in text.splitlines()) <= width
    assert text.count("Shapes:") == 1 and text.count("Operators:") == len(TARGETS)
    if width == 200:
        assert "[bold]conv" in text and "x is assumed to be [1, 3, 224, 224] below" in text


def test_the_headline_counts_segments_and_gives_the_interval(path: Path) -> None:
    rk3588, apu = inspect_model(path, ["rk3588", "mediatek-apu"], input_shapes={"x": (1, 3, 64, 64)})
    assert inspect_text.headline(rk3588).startswith("net on rk3588 (toolkit 2.5.0), int8 at 1000MHz: 2 CPU segments, ")
    assert "CPU segments not known" in inspect_text.headline(apu)
    assert "[" in inspect_text.headline(apu) and "unvalidated" in inspect_text.basis(apu)
    parts = {p.title: p for p in inspect_text.parts(rk3588)}
    assert list(parts) == ["Shapes", "Types", "Operators", "Fallback", "Padding", "Input size", "Layout", "Memory", "Graph", "Rewrites known"]
    assert "open axes" in parts["Shapes"].said
    assert all(len(r) == len(p.heads) for p in parts.values() for r in p.rows)


def test_a_model_that_cannot_be_made_static_is_told_in_words(tmp_path: Path) -> None:
    proto = model([node("Reshape", ["x", "s"], ["y"], "r")], {"x": ["n", 3, "h", "w"]}, {"y": [1, 147]}, {"s": np.array([1, 147])})
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.array([1, 147]), "s"))
    onnx.save(proto, tmp_path / "m.onnx")
    (found,) = inspect_model(tmp_path / "m.onnx", ["rk3588"])
    assert "no static network can be had" in inspect_text.headline(found) and "Reshape 'r' is written for [1, 147]" in found.shapes.static
    assert [p.title for p in inspect_text.parts(found)] == ["Shapes", "Types"]
