"""docs/targets: the pages are what the generator makes, hold every number of the target files, and draw the rows where they belong."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import log10
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata

from qbench.network import Precision
from qbench.report.held_out import Errors, HeldOut, ratio_errors, unvalidated
from qbench.report.held_out_svg import svg
from qbench.report.target_page import Operators, escaped, headline, page, table
from qbench.report.target_text import constants, footing, number, stored
from qbench.targets import load, names
from qbench.targets.loader import FOLDER
from qbench.targets.rules import rules_of
from qbench.targets.rules.registry import Book

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "targets"
SVG = "{http://www.w3.org/2000/svg}"


@cache
def script(name: str) -> ModuleType:
    """A module of experiments/, which is no package."""
    folder = str(ROOT / "experiments")
    if folder not in sys.path:
        sys.path.append(folder)
    return __import__(name)


@cache
def made() -> dict[str, str]:
    found: dict[str, str] = script("target_pages").files()
    return found


@cache
def rows_of(name: str) -> list[HeldOut]:
    return [r for r in script("validation").read() if r.target == name]


@dataclass(frozen=True)
class Row:
    network: str
    design: str
    precision: str
    measured_ms: float
    predicted_ms: float
    low_ms: float
    high_ms: float


def row(network: str, measured: float, predicted: float, precision: str = "int8", design: str = "", factor: float = 2.0) -> Row:
    return Row(network, design or network, precision, measured, predicted, predicted / factor, predicted * factor)


# ------------------------------------------------------------------------------------------------------- the committed files

def test_the_committed_pages_are_what_the_generator_makes_now() -> None:
    there = {p.name: p.read_text(encoding="utf-8") for p in PAGES.glob("*")}
    differ = sorted(n for n in there.keys() | made().keys() if there.get(n) != made().get(n))
    assert not differ, "run: python experiments/target_pages.py"


def test_every_target_has_a_page_and_a_line_in_the_table() -> None:
    assert {n.removesuffix(".md") for n in made() if n.endswith(".md")} == {*names(), "index"}
    for name in names():
        assert f"[{name}]({name}.md)" in made()["index.md"]


@pytest.mark.parametrize("name", names())
def test_a_page_draws_its_rows_or_says_unvalidated(name: str) -> None:
    said, drawn = made()[f"{name}.md"], f"{name}.svg" in made()
    assert drawn == bool(rows_of(name)) == (f"]({name}.svg)" in said) == ("**Unvalidated.**" not in said)
    assert "## What is unvalidated\n\n* **" in said


def numbers_in(value: object) -> Iterator[float]:
    """Every number of a table read from TOML."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from numbers_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from numbers_in(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def texts_in(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_in(inner)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("name", names())
def test_every_number_and_text_of_the_file_is_on_its_page(name: str) -> None:
    body = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    said = re.sub(r"\\([\\|<>*`~])", r"\1", made()[f"{name}.md"])
    shown = {float(x) for x in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]\d+)?", said)}
    for x in numbers_in(body):
        assert x in shown or x / 1e6 in shown, f"{name}: {x:g} is on no page"       # clocks are in MHz
    whole = " ".join(said.split())
    for key in ("cost_model", "rules"):
        body.pop(key, None)
    if rules_of(load(name)) is rules_of(load("rk3588")):
        body.pop("cpu_ops")                                     # the answers of the rule set say more
        body.pop("cpu_ops_source")
    for text in texts_in(body):
        assert " ".join(text.split()) in whole, f"{name}: {text!r}"


@pytest.mark.parametrize("name", [n for n in names() if rows_of(n)])
def test_every_held_out_row_is_on_its_page(name: str) -> None:
    said = made()[f"{name}.md"]
    for r in rows_of(name):
        assert re.search(rf"\| {re.escape(escaped(r.network))} \| {r.precision.upper()} \| {re.escape(number('', r.measured_ms))} \|", said), r
    assert said.count("| outside |") == sum(not r.low_ms <= r.measured_ms <= r.high_ms for r in rows_of(name))


@pytest.mark.parametrize("name", [n for n in names() if rows_of(n)])
def test_the_rows_carry_the_interval_that_the_target_file_states(name: str) -> None:
    """Both are written by the fit scripts; three digits of the factor and five of the milliseconds are kept."""
    target = load(name)
    for r in rows_of(name):
        assert r.low_ms / r.predicted_ms == pytest.approx(target.latency_factor_low, abs=1e-3)
        assert r.high_ms / r.predicted_ms == pytest.approx(target.latency_factor_high, abs=1.5e-3)


@pytest.mark.parametrize("name", names())
def test_the_rules_about_operators_are_on_the_page_with_their_sources(name: str) -> None:
    book, said = rules_of(load(name)), made()[f"{name}.md"]
    assert isinstance(book, Book)
    for r in book.rules:
        assert escaped(r.text) in said and escaped(r.source) in said


def test_what_the_toolkit_answered_is_listed_by_place_and_precision() -> None:
    """Golden: rknn-toolkit2 2.5.0 (2025), targets/rules/rknn.json: Sqrt is on the NPU in FP16 only, Softmax always, Erf never, a Gelu is refused."""
    lines = {line.split(" (")[0].removeprefix("* "): set(line.split(": ", 1)[1].split(", ")) for line in made()["rk3588.md"].splitlines()
             if re.match(r"\* (NPU|CPU|refused)", line)}
    assert "Softmax" in lines["NPU"] and "Erf" in lines["CPU"] and "Gelu" in lines["refused"]
    assert "Sqrt" in lines["CPU in INT8, CPU in INT16, NPU in FP16"]
    assert len(set.union(*lines.values())) == sum(map(len, lines.values()))


@pytest.mark.parametrize("name", sorted(n for n in made() if n.endswith(".md")))
def test_every_row_of_a_table_has_the_columns_of_its_heading(name: str) -> None:
    for block in re.findall(r"(?:^\|.*\n)+", made()[name], re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block[:200]


# ---------------------------------------------------------------------------------------------------------------- the drawing

ROWS = [row("slow", 40.0, 10.0), row("quick", 1.0, 1.1, "fp16"), row("middle", 5.0, 4.0, "int16"), row("wide<&", 0.3, 2.0, "fp32")]


def scales(root: ElementTree.Element) -> tuple[np.poly1d, np.poly1d]:
    """Coordinate -> log10 of milliseconds, read off the labels of the axes."""
    ticks = [(t.attrib, float(t.text or "")) for t in root.iter(f"{SVG}text") if re.fullmatch(r"[\d.e+-]+", t.text or "")]
    below = [(float(a["x"]), log10(v)) for a, v in ticks if a["text-anchor"] == "middle"]
    beside = [(float(a["y"]) - 4, log10(v)) for a, v in ticks if a["text-anchor"] == "end"]
    assert len(below) == len(beside) >= 3
    x, y = np.array(below), np.array(beside)
    return np.poly1d(np.polyfit(x[:, 0], x[:, 1], 1)), np.poly1d(np.polyfit(y[:, 0], y[:, 1], 1))


def test_marks_and_band_lie_where_the_axes_say() -> None:
    root = ElementTree.fromstring(svg(ROWS, 0.5, 2.0, "a < b"))
    to_x, to_y = scales(root)
    marks = [m for m in root.iter() if m.find(f"{SVG}title") is not None and m is not root]
    assert len(marks) == len(ROWS)
    assert len({m.attrib["fill"] for m in marks}) == 4                                    # one colour per precision
    circle, square = marks[0], marks[2]
    assert to_x(float(circle.attrib["cx"])) == pytest.approx(log10(10.0), abs=0.005)      # a tenth of a point is 0.0005 decades
    assert to_y(float(circle.attrib["cy"])) == pytest.approx(log10(40.0), abs=0.005)
    x, y = map(float, re.findall(r"[\d.]+", square.attrib["d"])[:2])
    assert (to_x(x), to_y(y)) == pytest.approx((log10(4.0), log10(5.0)), abs=0.005)
    band = next(root.iter(f"{SVG}polygon"))
    ends = [tuple(map(float, p.split(","))) for p in band.attrib["points"].split()]
    assert [to_y(y) - to_x(x) for x, y in ends] == pytest.approx([log10(0.5)] * 2 + [log10(2.0)] * 2, abs=0.005)


def test_the_drawing_names_what_lies_outside_and_counts_the_rest() -> None:
    root = ElementTree.fromstring(svg(ROWS, 0.5, 2.0, "a < b"))
    said = [t.text for t in root.iter(f"{SVG}text")]
    assert [t.text for t in root.iter(f"{SVG}text") if t.attrib.get("class") == "name"] == ["wide<& fp32", "slow int8"]     # the farthest first
    assert "INT16: 1 rows, median error 20%, 1 inside" in said
    assert "band: 80 % interval, x 0.5 to x 2 of the prediction; 2 of 4 rows inside" in said


@pytest.mark.parametrize("spread", [1.0, 3.0, 30.0, 3e4])
def test_axes_have_few_ticks_and_hold_every_row(spread: float) -> None:
    root = ElementTree.fromstring(svg([row("a", 1.0, 1.0), row("b", spread, 1.2 * spread)], 0.8, 1.25, "t"))
    labels = [t for t in root.iter(f"{SVG}text") if re.fullmatch(r"[\d.e+-]+", t.text or "")]
    assert 2 <= len(labels) <= 24
    frame = next(r for r in root.iter(f"{SVG}rect") if r.attrib.get("class") == "frame").attrib
    for mark in root.iter(f"{SVG}circle"):
        assert float(frame["x"]) <= float(mark.attrib["cx"]) <= float(frame["x"]) + float(frame["width"])
        assert float(frame["y"]) <= float(mark.attrib["cy"]) <= float(frame["y"]) + float(frame["height"])


# ---------------------------------------------------------------------------------------------------------------- the figures

pairs = st.lists(st.tuples(st.floats(0.1, 1e3), st.floats(0.1, 1e3)), min_size=1, max_size=30)


@given(pairs)
def test_errors_are_those_of_numpy(values: list[tuple[float, float]]) -> None:
    rows = [row(f"n{i}", m, p, design=f"d{i % 3}") for i, (m, p) in enumerate(values)]
    m, p = np.array(values).T
    e = Errors.of(rows)
    assert (e.rows, e.designs) == (len(rows), min(3, len(rows)))
    assert e.median == pytest.approx(np.median(abs(p / m - 1))) and e.worst == pytest.approx(np.max(abs(p / m - 1)))
    assert e.bias == pytest.approx(np.median(p / m - 1), abs=1e-12)
    assert e.inside == np.sum((p / 2 <= m) & (m <= p * 2))
    ranks = rankdata(m), rankdata(p)
    if len(rows) >= 5 and np.ptp(ranks[0]) and np.ptp(ranks[1]):
        assert e.rank == pytest.approx(np.corrcoef(*ranks)[0, 1])
    else:
        assert e.rank is None


def test_the_error_of_a_ratio_needs_both_precisions() -> None:
    rows = [row("a", 2.0, 3.0, "int8"), row("a", 4.0, 4.0, "fp16"), row("b", 1.0, 1.0, "int8"), row("c", 1.0, 5.0, "fp16")]
    assert ratio_errors(rows, "int8", "fp16") == pytest.approx([(3.0 / 4.0) / (2.0 / 4.0) - 1.0])


@given(st.floats(0.0, 1e15))
def test_no_digit_of_a_figure_is_lost(value: float) -> None:
    assert float(number("dram_bytes_per_s", value).removesuffix(" B/s")) == value


@pytest.mark.parametrize(("source", "expected"), [
    ("fitted: experiments/fit_targets.py", "fitted"), ("fitted for xdna by experiments/fit_targets.py; taken over, not validated", "assumed"),
    ("RK3588 TRM part 1, chapter 36 (2022)", "documented or chosen"), ("Assumed, one CPU core", "assumed"), ("not identified; 0", "assumed")])
def test_a_source_says_what_a_figure_rests_on(source: str, expected: str) -> None:
    assert footing(source) == expected


def test_how_weights_are_stored_names_groups_and_exceptions() -> None:
    scheme = load("rk3588").precisions[0].scheme
    assert scheme is not None and stored(None) == "float"
    assert stored(scheme) == "weights 8 bit signed symmetric narrow per channel, activations 8 bit unsigned asymmetric, bias 32 bit"
    said = stored(replace(scheme, weight_block=32, weight_axis=(("ConvTranspose", "input"), ("MatMul", "tensor"))))
    assert "per channel or per group of 32 input channels, those of ConvTranspose per input, those of MatMul per tensor, activations" in said


# ------------------------------------------------------------------------------------------------------- what is unvalidated

def gaps(name: str, rows: Sequence[HeldOut]) -> dict[str, str]:
    return dict(unvalidated(load(name), rows))


def test_without_rows_the_latency_is_unvalidated() -> None:
    found = gaps("mlu220", [])
    assert found["latency"].startswith("no published latency was predicted") and "INT8" not in found
    assert headline([]) == "unvalidated: no held-out row"
    said = page(load("mlu220"), [], Operators())
    assert "**Unvalidated.**" in said and ".svg" not in said


def test_precisions_designs_and_ratios_without_rows_are_named() -> None:
    rows = [row(f"n{i}", 1.0, 1.0, design=f"d{i % 2}") for i in range(6)]
    found = gaps("rk3588", rows)
    assert found["FP16"] == "offered, but no held-out row has it"
    assert found["INT16"].startswith("offered, but no held-out row has it; built and simulated with toolkit 2.5.0")
    assert "INT8" not in found
    assert found["networks of other kinds"].startswith("only 2 designs were held out (d0, d1)")
    assert found["what INT8 gains over FP16"] == "no network is published in both"
    assert gaps("rk3588", rows[:4])["INT8"] == "only 4 held-out rows"


def test_a_ratio_that_is_wrong_warns_and_a_right_one_does_not() -> None:
    right = [row(f"n{i}", 1.0, 1.0, p) for i in range(5) for p in ("int8", "fp16")]
    wrong = [replace(r, predicted_ms=1.5) if r.precision == "int8" else r for r in right]
    assert "what INT8 gains over FP16" not in gaps("rk3588", right)
    assert gaps("rk3588", wrong)["what INT8 gains over FP16"].startswith("median error of the ratio 50%")


def test_an_interval_that_misses_too_many_rows_is_named_and_so_are_designs_all_outside() -> None:
    rows = [row(f"n{i}", 1.0, 1.0 if i < 6 else 3.0, design="good" if i < 6 else "bad") for i in range(10)]
    found = gaps("rk3588", rows)
    assert found["the interval for INT8"].startswith("it holds only 6 of 10 rows")
    assert "networks like bad" in found
    assert "the interval for INT8" not in gaps("rk3588", rows[:9])             # too few to tell


def test_the_file_says_the_rest() -> None:
    rk, mlu, mcu = gaps("rk3588", []), gaps("mlu370-x4", []), gaps("stm32h7", [])
    assert {"clocks", "several cores", "watts and millijoules"} <= rk.keys() and not {"operators", "voltages", "memory"} & rk.keys()
    assert mlu["watts"].startswith("unvalidated") and "operators" in mlu and "clocks" not in mlu
    assert mcu["voltages"].startswith("not public for 2 of 2") and "operators" not in mcu and "first run" not in mcu
    assert gaps("rk3576", [])["operators"].endswith("taken over for this chip, not asked")
    for name in names():
        assumed = sum(footing(source) == "assumed" for _, _, source in constants(load(name)))
        assert f"{assumed} of {len(load(name).cost)} constants" in gaps(name, [])


def test_every_precision_without_rows_is_named_on_the_real_pages() -> None:
    for name in names():
        have = {r.precision for r in rows_of(name)}
        for p in load(name).precisions:
            if have and p.precision not in have:
                assert f"* **{p.precision.upper()}**: offered, but no held-out row has it" in made()[f"{name}.md"]
    assert Precision.INT8 in {r.precision for r in rows_of("rk3566")}


# ------------------------------------------------------------------------------------------------------------ the generator

def test_the_generator_writes_removes_and_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pages = script("target_pages")
    monkeypatch.setattr(pages, "FOLDER", tmp_path / "pages")
    monkeypatch.setattr(pages, "files", lambda: {"a.md": "one\n", "index.md": "two\n"})
    assert pages.main(["--check"]) == 1 and not (tmp_path / "pages").exists()
    assert pages.main([]) == 0 and pages.main(["--check"]) == 0
    (tmp_path / "pages" / "gone.md").write_text("of a target that is no more", encoding="utf-8")
    (tmp_path / "pages" / "a.md").write_text("edited", encoding="utf-8")
    capsys.readouterr()
    assert pages.main(["--check"]) == 1
    assert capsys.readouterr().out == "2 files, 1 changed: a.md; not a target's: gone.md\n"
    assert pages.main([]) == 0
    assert {p.name: p.read_text(encoding="utf-8") for p in (tmp_path / "pages").iterdir()} == {"a.md": "one\n", "index.md": "two\n"}


def test_a_cell_keeps_its_place_whatever_it_holds() -> None:
    said = table(("a", "b"), [("x | y", "<b>*z*`")])
    assert said.splitlines()[2] == r"| x \| y | \<b\>\*z\*\` |"
