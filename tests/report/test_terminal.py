"""What the terminal shows, at several widths, piped and not."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from finished_search import HOSTILE, NAN, Finished
from rich.console import Console, RenderableType

from qbench import terminal
from qbench.network import Precision
from qbench.protocols import silent
from qbench.report import text
from qbench.target import OperatingPoint, PrecisionSupport, Provenance, Target


def shown(what: RenderableType, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
def test_summary_fits_and_cuts_no_number(whole: Finished, width: int) -> None:
    said = shown(terminal.summary_table(whole.result, width), width)
    assert max(len(line.rstrip()) for line in said.splitlines()) <= width
    assert "…" not in said
    found = re.findall(r"\d+\.\d+", said)
    for quantity in text.comparison(whole.result):
        for cell in quantity.cells:
            for number in re.findall(r"\d+\.\d+", cell.value + cell.interval):
                assert number in found, f"{quantity.short}: {number} is missing at {width} columns"


def test_eighty_columns_hold_value_and_interval_of_five_plans(whole: Finished) -> None:
    lines = shown(terminal.summary_table(whole.result, 80), 80).splitlines()
    assert re.search(r"float +all INT8 +all INT16 +all FP16 +chosen", lines[0])
    assert re.search(r"^accuracy +93.05 +91.74 +93.04 +93.05 +93.01", lines[2])
    assert lines[3].rstrip().endswith("[92.50,93.49]")
    assert any(re.search(r"^budget +yes +no +no +yes", line) for line in lines)
    assert "relative, unvalidated" in " ".join(" ".join(lines).split())


def test_wide_terminals_get_one_line_a_plan(whole: Finished) -> None:
    said = shown(terminal.summary_table(whole.result, 160), 160)
    assert re.search(r"^chosen +93.01 \[92.50, 93.49\] +0.04 \[-0.04, 0.15\] +13.4 \[11.5, 15.7\]", said, re.MULTILINE)


def test_summary_shows_the_nearest_plan_and_missing_ones(infeasible: Finished, bare: Finished) -> None:
    assert "nearest" in shown(terminal.summary_table(infeasible.result, 80), 80)
    said = shown(terminal.summary_table(bare.result, 80), 80)
    assert "n/a" in said
    assert "nan" not in said


def test_headline_says_asked_verdict_and_found(whole: Finished, infeasible: Finished) -> None:
    said = shown(terminal.headline(whole.result), 200)
    assert said.splitlines() == [text.asked(whole.result), text.verdict(whole.result), text.found(whole.result)]
    assert "would help: --budget 12ms" in shown(terminal.headline(infeasible.result), 200)


def test_names_are_neither_markup_nor_terminal_codes(whole: Finished) -> None:
    rows = [{**whole.kernels[0], "name": "[bold red]x[/] \x1b[31mred"}, {**whole.kernels[0], "name": HOSTILE}]
    said = shown(terminal.kernel_table(rows, 120), 120)
    assert "[bold red]x[/]" in said
    assert HOSTILE in said
    assert "\x1b" not in said
    assert "[/] x" in shown(terminal.warning_list(["[/] x"]), 80)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_kernel_table_folds_names_and_keeps_numbers(whole: Finished, width: int) -> None:
    rows = [{**row, "name": f"{row['name']}/{'deep/' * 12}Conv"} for row in whole.kernels]
    said = shown(terminal.kernel_table(rows, width), width)
    assert max(map(len, said.splitlines())) <= width
    assert "…" not in said
    for row in rows:
        assert re.search(rf"(?<![\d.]){re.escape(text.significant(row['ms']))}(?![\d.])", said)
    assert "24 kernels" in said
    assert ("mJ" in said) == (width >= 100)


def test_kernel_table_takes_missing_numbers() -> None:
    said = shown(terminal.kernel_table([{"name": "a", "ms": NAN}], 80), 80)
    assert "n/a" in said
    assert "nan" not in said


def a_target() -> Target:
    return Target(
        name="toy-npu", title="Toy NPU, 1 TOPS", toolkits=("1.0", "2.0"),
        precisions=(PrecisionSupport(Precision.INT8, 256, None), PrecisionSupport(Precision.FP16, 64, None)),
        operating_points=(OperatingPoint("200MHz", 2e8, 0.8), OperatingPoint("1000MHz", 1e9, None)), cost_model="npu", cost={},
        latency_factor_low=0.9, latency_factor_high=1.2, power_is_relative=True,
        provenance=Provenance("5 networks", "2 networks", "80 % conformal"))


@pytest.mark.parametrize("width", [80, 120])
def test_targets_table(width: int) -> None:
    said = shown(terminal.targets_table([a_target()], width), width)
    for expected in ("toy-npu", "INT8", "FP16", "200MHz", "x 0.9 to 1.2", "networks"):
        assert expected in said
    assert ("2.0" in said) == (width >= 100)
    assert "n/a" in shown(terminal.targets_table([replace(a_target(), operating_points=())], width), width)


class Clock:
    """A clock that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def terminal_console(**environment: str) -> Console:
    return Console(width=100, file=io.StringIO(), force_terminal=True, color_system="standard",
                   _environ={"TERM": "xterm", **environment})


def drawn(console: Console, patience: float) -> str:
    clock = Clock()
    with terminal.progress(console, clock) as tell:
        tell("evaluating [x]", 0, 10)
        clock.now = patience
        tell("evaluating [x]", 5, 10)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_progress_shows_a_bar_with_the_time_left_after_two_seconds() -> None:
    said = drawn(terminal_console(), patience=4.0)
    assert "evaluating [x]" in said
    assert "5/10" in said.replace(" ", "")
    assert "4 s left" in said


def test_short_work_shows_no_bar() -> None:
    assert "evaluating" not in drawn(terminal_console(), patience=1.0)


def test_progress_honours_no_color() -> None:
    coloured, plain = drawn(terminal_console(), 4.0), drawn(terminal_console(NO_COLOR="1"), 4.0)
    assert re.search(r"\x1b\[[\d;]*3\dm", coloured)
    assert not re.search(r"\x1b\[[\d;]*3\dm", plain)


def test_progress_is_silent_when_piped_or_dumb() -> None:
    piped = Console(file=io.StringIO(), force_terminal=False)
    with terminal.progress(piped) as tell:
        assert tell is silent
        tell("x", 1, 2)
    assert isinstance(piped.file, io.StringIO)
    assert piped.file.getvalue() == ""
    with terminal.progress(terminal_console(TERM="dumb")) as tell:
        assert tell is silent


def test_work_of_unknown_length_and_work_that_begins_again() -> None:
    console, clock = terminal_console(), Clock()
    with terminal.progress(console, clock) as tell:
        tell("loading", 3, 0)
        tell("loading", 10, 10)
        clock.now = 10.0
        tell("loading", 1, 10)
        clock.now = 13.0
        tell("loading", 2, 10)
    assert isinstance(console.file, io.StringIO)
    assert "2/10" in console.file.getvalue().replace(" ", "")
