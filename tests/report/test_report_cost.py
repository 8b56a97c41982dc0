"""`qbench cost`, `qbench advise` and `qbench targets NAME` as the user reads them."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from html_page import Page
from models import model, node
from rich.console import Console
from typer.testing import CliRunner

from qbench.cli.app import app
from qbench.report.advice_terminal import advice_report
from qbench.report.cost_page import HEIGHT, WIDTH, buffers, style, write_cost
from qbench.report.cost_terminal import cost_report, time_by_bound
from qbench.report.target_terminal import target_report
from qbench.targets import load, names
from qbench.workbench import CostOptions, cost_of
from qbench.workbench.advising import advise

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cost") / "net.onnx"
    weights = {"w0": np.full((24, 3, 3, 3), 0.1, np.float32), "w1": np.full((8, 24, 1, 1), 0.1, np.float32)}
    nodes = [node("Conv", ["x", "w0"], ["a"], HOSTILE, pads=[1] * 4), node("Sigmoid", ["a"], ["s"], "gate"), node("Mul", ["a", "s"], ["b"], "silu"),
             node("Mish", ["b"], ["c"], "mish"), node("Conv", ["c", "w1"], ["y"], "second")]
    onnx.save(model(nodes, {"x": [1, 3, 64, 64]}, {"y": [1, 8, 64, 64]}, weights, opset=18), str(path))
    return path


@pytest.fixture(scope="module")
def rows(file: Path) -> list[dict[str, Any]]:
    return cost_of(file, ["rk3588"], ["int8"])


def shown(parts: Any, width: int) -> str:
    console = Console(width=width, file=io.StringIO())
    for part in parts:
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("width", [80, 160])
def test_a_price_says_what_binds_what_would_help_and_what_is_unvalidated(rows: list[dict[str, Any]], width: int) -> None:
    said = words(shown(cost_report(rows, width), width))
    for expected in ("rk3588 int8 at 1000MHz", "mJ and", "relative, unvalidated", "fitted on", "80 % conformal", "on the CPU: 1 segment",
                     "unvalidated: 2 cores", "first run: not known", "an operator that the NPU takes in place of Mish", "time by what binds"):
        assert expected in said, expected
    assert "Relu in place of Swish" in said


def test_memory_is_told_by_strategy_and_gap_and_apart_for_a_microcontroller(file: Path, rows: list[dict[str, Any]]) -> None:
    said, memory = words(shown(cost_report(rows, 160), 160)), rows[0]["memory"]
    assert f"strategy: {memory['strategy']}, {100 * memory['gap']:.1f} % above the lower bound" in said and "peak memory" in said
    mcu = cost_of(file, ["stm32h7"], ["int8"])
    said = words(shown(cost_report(mcu, 160), 160))
    assert re.search(r"RAM [\d.]+ KB of 524 KB, flash [\d.]+ K?B of 2.10 MB", said) and "16.4 KB of the runtime" in said and "peak memory" not in said
    write_cost(mcu, "net", file.parent / "mcu.html")
    page = (file.parent / "mcu.html").read_text(encoding="utf-8")
    assert "<dt>RAM</dt>" in page and "<dt>flash</dt>" in page and "of 2.10 MB" in page and "strategy: greedy" in page


def test_advice_labels_relative_energy_where_it_stands(file: Path) -> None:
    assert "mJ (relative, unvalidated), peak memory" in words(shown(advice_report(advise(file, "rk3588"), 160), 160))
    assert "relative" not in words(shown(advice_report(advise(file, "mlu370-s4"), 160), 160)).split("interval:")[0]


def test_several_points_are_a_table_with_the_least_energy_marked(file: Path) -> None:
    every = cost_of(file, ["rk3588"], ["int8"], CostOptions(("all",)))
    lines = shown(cost_report(every, 100), 100).splitlines()
    best = min(every, key=lambda r: r["energy_mj"])
    marked = [line for line in lines if "least energy" in line]
    assert len(marked) == 1 and marked[0].startswith(best["op_point"])
    assert sum(line.startswith(tuple(r["op_point"] for r in every)) for line in lines) == len(every)


def test_time_by_bound_adds_up_and_begins_with_the_largest(rows: list[dict[str, Any]]) -> None:
    found = time_by_bound(rows[0]["kernels"])
    assert sum(found.values()) == pytest.approx(rows[0]["latency_ms"]) and list(found.values()) == sorted(found.values(), reverse=True)


def test_the_page_is_whole_needs_no_network_and_escapes_names(file: Path, tmp_path: Path) -> None:
    several = cost_of(file, ["rk3588", "host"], ["int8"])
    write_cost(several, HOSTILE, tmp_path / "cost.html")
    page = Page((tmp_path / "cost.html").read_text(encoding="utf-8"))
    assert not page.open
    tags = [tag for tag, _ in page.elements]
    assert "script" not in tags and not [a for _, a in page.elements if "src" in a or (a.get("href") or "").startswith("http")]
    assert tags.count("rect") == sum(len(r["memory"]["buffers"]) for r in several)
    assert HOSTILE in page.text
    for r in several:
        for k in r["kernels"]:
            assert k["name"] in page.text
    for expected in ("relative, unvalidated", "Validated on", "lower bound", "one change that would save most"):
        assert expected in page.text


def test_buffers_are_drawn_to_scale(rows: list[dict[str, Any]]) -> None:
    memory, steps = rows[0]["memory"], max(b["last"] + 1 for b in rows[0]["memory"]["buffers"])
    drawn = buffers(memory, steps)
    for b, d in zip(memory["buffers"], drawn, strict=True):
        assert float(d["width"]) == pytest.approx((b["last"] - b["first"] + 1) / steps * WIDTH, abs=0.01)
        assert float(d["height"]) == pytest.approx(b["size"] / memory["arena_bytes"] * HEIGHT, abs=0.01)
        assert HEIGHT - float(d["y"]) - float(d["height"]) == pytest.approx(b["offset"] / memory["arena_bytes"] * HEIGHT, abs=0.02)
        assert b["name"] in d["title"]
    assert [style(b) for b in ("compute", "dram", "something else")] == ["b0", "b1", "b4"]


@pytest.mark.parametrize("width", [80, 140])
def test_advice_shows_states_claims_and_what_does_not_apply(file: Path, width: int) -> None:
    found = advise(file, "rk3588")
    said = words(shown(advice_report(found, width), width))
    for expected in ("contradicted by public sources: not recommended", "all exact steps together (cores), priced as one", "does not apply",
                     "counted in the prediction already", "4 wrong:", "native layout is NC1HWC2", "mJ relative, unvalidated", "rewrite 1 kernels"):
        assert expected in said, expected
    assert "n/a mJ" not in said


@pytest.mark.parametrize("name", names())
def test_a_target_is_shown_with_every_constant_and_source(name: str) -> None:
    target = load(name)
    said = shown(target_report(target), 4000)                 # nothing folds
    whole = words(said)
    for key in target.cost:
        line = next(x for x in said.splitlines() if x.split()[:1] == [key])
        assert words(target.sources[f"cost.{key}"])[:40] in words(line)
    for p in target.precisions:
        assert words(p.source) in whole
    for o in target.operating_points:
        assert o.name in whole
    for precision, why in target.refused.items():
        assert f"no {precision}: {words(why)}" in whole
    for key, fact in target.facts.items():
        assert key in whole and words(fact.source) in whole
    assert words(target.provenance.validated_on) in whole


def test_commands_print_json_and_nothing_else(file: Path, tmp_path: Path) -> None:
    run = CliRunner()
    for arguments in (["cost", str(file), "-t", "rk3588", "--op-point", "all", "-o", str(tmp_path / "cost.html")], ["advise", str(file), "-t", "hexagon"],
                      ["targets", "mlu"]):
        done = run.invoke(app, [*arguments, "--json"])
        assert done.exit_code == 0, done.output
        json.loads(done.stdout)
    assert (tmp_path / "cost.html").is_file()
    done = run.invoke(app, ["cost", str(file), "-o", str(tmp_path / "cost.html")])
    assert done.exit_code == 0 and f"written: {tmp_path / 'cost.html'}" in done.stdout
