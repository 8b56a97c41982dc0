"""The page and the terminal view of an analysis: structure, escaping, self-containment, numbers."""

from __future__ import annotations

import base64
import gzip
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser import browser, needs_chromium
from finished_search import HOSTILE
from html_page import Page

from qbench.analysis.records import (
    Analysis,
    Check,
    Error,
    Finding,
    GroupSource,
    Histogram,
    KernelError,
    MixedGroup,
    Part,
    StoredTensor,
    TensorError,
    WeightSpread,
)
from qbench.coverage import Coverage, OperatorRow, Share
from qbench.network import Precision
from qbench.report import analysis_text as words
from qbench.report.analysis_page import context, plot_data, write_analysis
from qbench.report.analysis_terminal import error_table, headline, hidden_rows, verdict_list

EVIL = "</script><img src=http://x onerror=1>\"&<b>"


def tensor(name: str, alone: float, whole: float, channels: int = 4, dead: tuple[int, ...] = (), parts: tuple[Part, ...] = (),
           role: str = "output") -> TensorError:
    found, heard = Error(alone, 0.9991, 0.02), Error(whole, 0.998765, 0.25)
    return TensorError(name, role, name, 1, found, heard, tuple(whole - c for c in range(channels)), tuple(alone - c for c in range(channels)),
                       tuple(1.0 + c for c in range(channels)), dead, dead, parts)


def stored(name: str, kernel: str) -> StoredTensor:
    return StoredTensor(name, name, kernel, 8, -1.5, 6.25, 0.0304, 49, -1.52, 12.5, 0.0031, 0.87, 31.25, -1.5, 9.75, 37.5, False,
                        Histogram(-1.6, 12.5, (3, 0, 900, 42)))


def analysis(name: str = "conv", names: int = 3) -> Analysis:
    """A small network: a noisy convolution called `name`, more of them, a float head whose output has two parts."""
    first = (tensor("t0", 21.25, 20.5, dead=(1, 3)), tensor("in", 41.0, 30.0, role="inner"))
    kernels = [KernelError(name, "Conv+Relu", name, "int8", "", 0.25, 200.0, first, ("x",))]
    kernels += [KernelError(f"c{i}", "Conv", f"c{i}", "int16", "", 0.5, 20.0, (tensor(f"t{i}", 38.0 + i, 19.0 - i),), (f"t{i - 1}",))
                for i in range(1, names)]
    parts = (Part(f"{name} boxes", (0, 2), 640.0, Error(40.0, 1.0, 0.0), Error(39.0, 1.0, 0.0), 0),
             Part("scores", (2, 4), 1.0, Error(0.0, 0.0, 1.0), Error(0.0, 0.0, 1.0), 2))
    last = tensor("y", 200.0, 16.0, dead=(2, 3), parts=parts)
    kernels.append(KernelError("head", "Softmax", "head", "fp16", "small values vanish on an integer grid", 0.0, 17.0, (last,), ("t2",), ("y",)))
    rows = tuple(OperatorRow(k.name, k.name, k.op.split("+")[0], k.name, k.unit, Precision(k.precision), k.reason, 100) for k in kernels)
    shares = (Share(Precision.INT8, 1, 0.25, 100, 0.25), Share(Precision.INT16, 2, 0.5, 200, 0.5), Share(Precision.FP16, 1, 0.25, 100, 0.25))
    return Analysis(
        name, "0123456789abcdef0", "fedcba", "rk3588", "2.5.0", "percentile:p=99.9", "per-channel", "calib.npz", 32, 64, False,
        {"int8": 1, "int16": names - 1, "fp16": 1}, (("y", 16.0), ("y: scores", 0.0)), tuple(kernels), (stored("t0", name), stored("t1", "c1")),
        Coverage(rows, shares, Precision.INT8),
        (MixedGroup("g", "u", "join", "y", (name, "scores"), (GroupSource(name, -3.0, 640.0, 256.0), GroupSource("scores", 0.0, 1.0, 0.4)),
                    640.0, ""),),
        (WeightSpread(name, "w", 8, 12.0, 0.4, 30.0, 5, False, 8, 8.47),), {}, {},
        (Check("raise", name, "int16", (("y", 16.0, 24.5), ("y: scores", 0.0, 30.0)), (name,)),
         Check("range", "t1", "0 to 4", (("y", 16.0, 200.0),))),
        {name: "raised by hand"}, (f"tensor {name}: odd",))


FINDINGS = (Finding("cut", "g", "Scale group 'g' mixes ranges.", 30.0), Finding("raise", "conv", f"Raise {HOSTILE}.", 8.5),
            Finding("fine", "c1", "The rest is fine."))


def page(tmp_path: Path, found: Analysis, findings: tuple[Finding, ...] = FINDINGS) -> Page:
    path = tmp_path / "out" / "analysis.html"
    write_analysis(found, findings, path)
    assert [p.name for p in path.parent.iterdir()] == ["analysis.html"]
    return Page(path.read_text(encoding="utf-8"))


def test_every_section_is_there_and_the_page_is_well_formed(tmp_path: Path) -> None:
    read = page(tmp_path, analysis())
    assert read.open == []
    assert read.ids >= {"findings", "along", "along-plot", "channels", "channel-plot", "histogram", "histogram-plot", "tensors", "checks",
                        "parts", "mixed", "weights", "coverage", "provenance", "kernel-choice", "tensor-choice", "stored-choice",
                        "analysis-data", "plotly-gz"}
    ids = [i for _, a in read.elements if (i := a.get("id"))]
    assert len(ids) == len(set(ids))


def test_findings_come_first_numbered_by_order_with_their_gains(tmp_path: Path) -> None:
    read = page(tmp_path, analysis())
    text = read.text
    places = [text.index(w) for w in ("Scale group 'g' mixes ranges.", "The rest is fine.", "Error along the network")]
    assert places == sorted(places)
    assert "+30.0 dB" in text and "+8.5 dB" in text
    assert [a.get("class") for t, a in read.elements if t == "li" and a.get("class") in ("gain", "plain")] == ["gain", "gain", "plain"]


def test_every_number_is_in_a_table_too(tmp_path: Path) -> None:
    text = page(tmp_path, analysis()).text
    for expected in ("21.2", "20.5", "2 of 4", "25 %", "-1.5 to 6.25", "-1.52 to 12.5", "0.3 %", "87 %", "0.998765", "small values vanish", "640",
                     "0 to 1", "2 to 3", "c1", "INT16", "FP16", "y: scores", "exact", "75.0 % of the multiply-accumulates", "raised by hand",
                     "percentile:p=99.9", "32 samples of calib.npz"):
        assert expected in text, expected


def test_nothing_is_loaded_from_elsewhere_and_plotly_is_inlined_once(tmp_path: Path) -> None:
    from plotly.offline import get_plotlyjs

    read = page(tmp_path, analysis())
    for tag, attributes in read.elements:
        assert tag not in ("link", "iframe", "object", "embed")
        for name in ("src", "href", "action", "data", "srcset", "poster"):
            assert (attributes.get(name) or "#").startswith("#"), f"<{tag} {name}={attributes[name]}>"
    policy = next(a["content"] for t, a in read.elements if t == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none'")
    assert gzip.decompress(base64.b64decode(read.data["plotly-gz"])).decode() == get_plotlyjs()
    assert "MIT license" in read.text


def test_hostile_names_are_text_never_markup(tmp_path: Path) -> None:
    found = replace(analysis(EVIL), target=EVIL, toolkit=EVIL, calibrator=EVIL, data=EVIL, unobserved={EVIL: EVIL})
    read = page(tmp_path, found, (Finding("raise", EVIL, EVIL, 3.0), Finding(EVIL, EVIL, EVIL)))
    assert read.open == []
    assert sum(t == "script" for t, _ in read.elements) == 3                  # data, library, our own
    assert not [a for t, a in read.elements if t == "img" or "onerror" in a]
    assert "x onerror" in read.text and EVIL not in read.source
    assert json.loads(read.data["analysis-data"])["kernels"][0]["name"] == EVIL


def test_tables_can_be_reached_by_keyboard_and_have_names(tmp_path: Path) -> None:
    read = page(tmp_path, analysis(names=30))
    scrolled = [a for t, a in read.elements if t == "div" and "scroll" in (a.get("class") or "").split()]
    assert len(scrolled) == sum(t == "table" for t, _ in read.elements)
    assert all(a.get("tabindex") == "0" and a.get("aria-label") and a.get("role") for a in scrolled)
    assert all(a.get("scope") in ("row", "col") for t, a in read.elements if t == "th")
    assert all(a.get("aria-label") for _, a in read.elements if a.get("role") == "img")
    assert {"tensor-table", "coverage-table"} <= read.ids


def test_what_is_chosen_can_be_chosen(tmp_path: Path) -> None:
    """Each option of a list is an index into the data of the plots."""
    found = analysis()
    read = page(tmp_path, found)
    data = json.loads(read.data["analysis-data"])
    values = [a["value"] for t, a in read.elements if t == "option"]
    assert values == [*(str(i) for i in range(len(found.kernels))), *(str(i) for i in range(len(found.stored)))]
    assert len(data["kernels"]) == len(found.kernels) and len(data["stored"]) == len(found.stored)


def test_the_plots_start_at_the_worst_integer_kernel_and_know_where_its_values_lie() -> None:
    data = plot_data(analysis())
    assert data["selected"] == 0
    first, head = data["kernels"][0], data["kernels"][-1]
    assert [t["tensor"] for t in first["tensors"]] == ["t0", "in"]
    assert first["tensors"][0]["stored"] == 0 and first["tensors"][1]["stored"] is None
    assert (first["tensors"][0]["alone"], head["tensors"][0]["alone"]) == (21.2, None)         # None: exact
    assert head["tensors"][0]["parts"] == [["conv boxes", 0, 2, 39.0], ["scores", 2, 4, 0.0]]
    assert data["stored"][0]["counts"] == [3, 0, 900, 42]
    assert (data["stored"][0]["low"], data["stored"][0]["bestHigh"]) == (-1.5, 9.75)
    assert "clipped" in data["stored"][0]["said"]


def test_a_plan_in_float_says_that_there_is_nothing_to_explain(tmp_path: Path) -> None:
    found = analysis()
    floats = tuple(replace(k, precision="fp16") for k in found.kernels)
    bare = replace(found, kernels=floats, stored=(), mixed=(), weights=(), checks=(), warnings=(), notes={})
    read = page(tmp_path, bare, ())
    assert read.open == [] and {"checks", "mixed", "weights", "histogram", "stored-choice"}.isdisjoint(read.ids)
    assert "Every unit of this plan is in float" in read.text
    assert not re.search(r"\bnan\b|\binf\b|\bNone\b", read.text)


def test_the_same_analysis_gives_the_same_file(tmp_path: Path) -> None:
    for name in "ab":
        write_analysis(analysis(), FINDINGS, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_large_network_stays_under_five_megabytes(tmp_path: Path) -> None:
    wide = tensor("t", 30.0, 25.0, channels=512)
    found = analysis()
    many = tuple(replace(found.kernels[0], name=f"/backbone/stage{i}/block/conv/Conv", tensors=(wide,)) for i in range(150))
    assert len(page(tmp_path, replace(found, kernels=many)).source) < 5_000_000


def test_rows_are_worst_first_and_float_comes_last() -> None:
    rows = words.rows(analysis())
    assert [r.tensor for r in rows] == ["t0", "t1", "t2", "in", "y"]
    assert rows[0].clipped == "0.3 %" and rows[-1].clipped == "" and rows[-1].isolated == "exact"
    assert [r.number for r in rows] == [1, 2, 3, 1, 4]


@pytest.mark.parametrize(("value", "text"), [
    (21.24, "21.2"), (-0.01, "0.0"), (200.0, "exact"), (-200.0, "not finite"), (None, "n/a"), (float("nan"), "n/a")])
def test_decibels_read_as_numbers_or_words(value: float | None, text: str) -> None:
    assert words.db(value) == text


@pytest.mark.parametrize(("value", "text"), [
    (0.0, "0"), (1.0, "100 %"), (0.123, "12 %"), (0.0123, "1.2 %"), (0.00123, "0.1 %"), (1e-6, "< 0.001 %"), (None, "n/a")])
def test_shares_read_as_percent(value: float | None, text: str) -> None:
    assert words.share(value) == text


def printed(width: int, *parts: Any) -> str:
    from rich.console import Console

    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    return captured.get()


@pytest.mark.parametrize("width", [60, 80, 120, 160])
def test_the_table_keeps_every_number_at_any_width(width: int) -> None:
    found = analysis()
    text = printed(width, error_table(found, width, 10))
    for number in ("21.2", "20.5", "2 of 4", "0.3 %", "INT8".lower(), "exact"):
        assert number in text, number
    assert max(map(len, text.splitlines())) <= width
    assert ("-1.5 to 6.25" in text) is (width >= 140)


def test_the_table_is_limited_with_a_hint() -> None:
    found = analysis()
    assert printed(100, error_table(found, 100, 1)).count("dB") == 2          # the heading alone
    assert hidden_rows(found, 2).startswith("3 more tensors") and "--rows 5" in hidden_rows(found, 2)
    assert hidden_rows(found, 5) == ""


def test_the_verdict_and_the_headline_print_names_as_text() -> None:
    found = analysis("[red]x\x1b[31m")
    findings = (Finding("raise", "a", "Raise '[bold]a\x1b'", 4.25), Finding("raise", "b", "makes it exact", 184.0), Finding("fine", "b", "fine"))
    text = printed(120, headline(found, "p[/].json"), verdict_list(found, findings))
    assert "[red]x" in text and "p[/].json" in text and "\x1b" not in text
    assert "1. [+4.2 dB] Raise '[bold]a" in text and "2. [exact] makes it exact" in text and "3. fine" in text
    assert "75.0 % of the multiply-accumulates" in text and "outputs as they ship: y 16.0 dB, y: scores 0.0 dB" in text


def test_importing_the_page_loads_no_heavy_library() -> None:
    probe = ("import sys, qbench.report.analysis_page, qbench.report.analysis_terminal; "
             "print([m for m in ('plotly', 'jinja2', 'rich', 'torch', 'onnxruntime', 'onnx_ir', 'numba') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_page_is_given_what_its_template_asks_for() -> None:
    prepared = context(analysis(), FINDINGS)
    assert prepared["coverage"]["reasons"] and len(prepared["coverage"]["rows"]) == 4
    assert [c["gain"] for c in prepared["checks"]] == ["exact", "+30.0"]


@needs_chromium
def test_the_plots_are_drawn_and_the_lists_are_filled(tmp_path: Path) -> None:
    path = tmp_path / "analysis.html"
    write_analysis(analysis(EVIL), FINDINGS, path)
    with browser(tmp_path / "profile") as tab:
        tab.open(path.as_uri())
        tab.until("document.querySelectorAll('[data-drawn=yes]').length === 3")
        shown = tab.value("document.documentElement.outerHTML")
    assert "plot failed" not in shown and "plot short failed" not in shown
    assert not re.search(r"<img[^>]*onerror", shown)                          # neither from the template nor through plotly's labels
    assert ">t0 (output)</option>" in shown and ">in (inner)</option>" in shown
    assert "alone 21.2 dB, in all 20.5 dB; 2 of 4 channels constant zero" in shown
