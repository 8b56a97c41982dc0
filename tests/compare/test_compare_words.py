"""What a comparison says, on made-up results: ranking, marks, sentences, tables of any width, the drawn page."""

from __future__ import annotations

import io
import json
import math
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from compare_cases import HOSTILE, page_of
from rich.console import Console

from qbench.comparison import (
    Check,
    Comparison,
    Gap,
    Layer,
    Row,
    TensorRange,
    VendorRow,
    WeightSpread,
    alike,
    differ,
    ladders,
    ranked,
)
from qbench.protocols import Accuracy, Price
from qbench.report.compare_page import write_comparison
from qbench.report.compare_terminal import explanations, headline, ladder_table, notes, row_table
from qbench.report.compare_text import explained, json_body, latency_note, summary, vendor_cells

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--virtual-time-budget=20000")
NAN = math.nan
LONG = "/encoder/stage3/block2/depthwise/" * 3 + "Conv"


def row(calibrator: str = "minmax", scale: str = "per-channel", value: float = 0.92, half: float = 0.004, *, metric: str = "dice", sqnr: float = 20.0,
        precision: str = "int8", size: int = 1_006_806, ms: float = 11.1) -> Row:
    drop = 0.93 - value
    accuracy = Accuracy(metric, value, value - 0.01, value + 0.01, 48, drop, drop - half, drop + half, sqnr, 0.99, 0.001, 1.0)
    return Row(precision, calibrator, scale, accuracy, Layer(LONG, sqnr - 3), size, Price(ms, ms * 0.8, ms * 1.2, 1.0, 1.0, 1, "1000MHz"), {"int8": 20},
               f"plans/{calibrator}-{scale}.json", "k")


FLOAT = replace(row(value=0.93, half=0.0), precision="float", calibrator="", scale="", worst=None, size_bytes=3_720_000)
TENSORS = (TensorRange("narrow", 0.0, 0.5, 6.3, 3.2, ("head",), 0.02, 4.0, 30.0), TensorRange("wide", -1.0, 40.0, 0.0, 256.0, ("first",), 0.5, 30.0, 30.0))
RANGES = Gap("int8", "minmax", "global", "per-layer", 0.30, 12.0, True, 8, (-1.0, 40.0), (TENSORS[1],), 6.3, TENSORS, (),
             (Check("widest", ("wide",), row(value=0.55).accuracy, 0.9), Check("noisiest", ("narrow",), row(value=0.3).accuracy, -0.02)))
WEIGHTS = Gap("int8", "minmax", "per-layer", "per-channel", 0.35, 9.0, True, 8,
              layers=(WeightSpread(HOSTILE, HOSTILE, 16, 88.2, 6.46, 1.9, 25.9, 0.0036), WeightSpread("second", "second", 16, 3.2, 1.7, 25.7, 26.4, 0.1)),
              checks=(Check("weights", (HOSTILE,), row(value=0.9).accuracy, 1.0),))


def result(*rows: Row, gaps: tuple[Gap, ...] = (), partial: bool = False, reference: Row = FLOAT) -> Comparison:
    return Comparison("net.onnx", False, "rk3588", "2.5.0", reference, rows, gaps, ("minmax",), 8, 12.0,
                      {"command": "qbench compare net.onnx", "evaluated on": "val.npz, 48 samples", "calibrated on": "calib.npz, 64 samples",
                       "interval": "80 % conformal"}, (f"warning about {HOSTILE}",), partial)


WHOLE = result(row(scale="global", value=0.27, sqnr=-3.0, size=977_000), row(scale="per-layer", value=0.57, sqnr=9.0, size=987_000), row(sqnr=18.0),
               row("percentile:p=99.9", value=0.921, sqnr=17.0), gaps=(RANGES, WEIGHTS))


def test_rows_are_ranked_by_accuracy_then_by_the_noise_at_the_output() -> None:
    a, b, c, d = row(value=0.9, sqnr=20.0), row(value=0.9, sqnr=25.0), row(value=0.91, sqnr=5.0), row(value=NAN)
    assert ranked([d, a, b, c]) == [c, b, a, d]
    assert ranked([replace(a, size_bytes=9), replace(a, size_bytes=5)])[0].size_bytes == 5


def test_overlapping_intervals_and_clear_differences() -> None:
    """0.004 and 0.004 half widths: overlap up to a distance of 0.008, no clear difference up to 0.004 * sqrt(2) = 0.00566."""
    best = row(value=0.920)
    assert [alike(row(value=v), best) for v in (0.9125, 0.9115)] == [True, False]
    assert [differ(row(value=v), best) for v in (0.9148, 0.9140)] == [False, True]
    unknown = row(value=0.5, half=NAN)
    assert alike(unknown, best) and not differ(unknown, best)


def test_a_ladder_holds_its_scales_from_coarse_to_fine() -> None:
    [one, two] = ladders([row(scale="per-channel"), row(scale="global"), row("mse", "per-layer")])
    assert list(one.cells) == ["global", "per-channel"] and [(a.scale, b.scale) for a, b in one.steps()] == [("global", "per-channel")]
    assert list(two.cells) == ["per-layer"] and two.steps() == []


def test_the_summary_says_what_to_use_and_what_coarser_scales_cost_and_why() -> None:
    said = summary(result(*WHOLE.rows[:3], gaps=WHOLE.gaps))
    assert said.startswith("minmax with per-channel weight scales at INT8: dice 92.00 %, 1.00 points below float; ")
    assert "one scale per tensor in place of per-channel weight scales costs 35.00 points, because in '" in said
    assert "the largest output channel is 88.2 times the median one, which keeps 1.5 of 8 bits" in said
    assert "one scale for all activations in place of one scale per tensor costs 30.00 points, because 'wide' sets the scale and takes 6.3 of 8 bits" in said


def test_the_summary_claims_no_difference_that_the_samples_do_not_show() -> None:
    said = summary(result(row(scale="global", value=0.918), row(scale="per-layer", value=0.92), row(value=0.9195)))
    assert "one scale per tensor at INT8: dice 92.00 %" in said
    assert "per-channel weight scales give no more (0.05 points less)" in said
    assert "one scale for all activations in place of one scale per tensor makes no difference that these samples could show (0.20 points, 0.0 dB)" in said
    assert "(not distinguishable)" in summary(result(row(value=0.928)))
    assert summary(result()) == "" and summary(result(row(), partial=True)).startswith("Stopped before it was done. minmax")


def test_every_precision_has_its_best_in_the_summary() -> None:
    said = summary(result(row(), row("mse", value=0.925), row(precision="int16", value=0.93), row("mse", precision="int16", value=0.9)))
    assert said.startswith("minmax with per-channel weight scales at INT16: dice 93.00 %")
    assert said.endswith("best at INT8: mse with per-channel weight scales, 92.50 %, 0.50 points below float")


def test_what_rounds_to_nothing_costs_nothing() -> None:
    said = summary(result(row(scale="per-layer", value=0.92, half=0.0), row(value=0.920001, half=0.0)))
    assert "makes no difference that these samples could show (0.00 points, 0.0 dB)" in said


def test_a_metric_in_decibels_is_not_held_against_float() -> None:
    said = summary(result(row(value=18.0, metric="sqnr"), reference=replace(FLOAT, accuracy=replace(FLOAT.accuracy, metric="sqnr", value=200.0))))
    assert said == "minmax with per-channel weight scales at INT8: sqnr 18.00 dB"


def test_a_gap_is_explained_by_numbers_and_by_what_was_tried() -> None:
    title, *lines = explained(RANGES, WHOLE)
    assert title == "per-layer against global, minmax at INT8: +30.00 points and +12.0 dB"
    said = " ".join(lines)
    assert "The one scale has to cover [-1, 40], the range of 'wide'; without it every other tensor would keep 6.3 bits more." in said
    assert "Half of the 2 tensors lose 3.1 of 8 bits or more, 1 keep less than 4. Narrowest: 'narrow' (keeps 1.7 bits, 3.2 codes" in said
    assert "read 'narrow' (4.0 dB at their outputs instead of 30.0 dB)" in said
    assert "a scale of its own for 'wide' alone brings 90 %; a scale of its own for 'narrow' alone brings -2 %" in said
    spread = replace(RANGES, owners=(), checks=(Check("noisiest", ("a",), row().accuracy, 0.1), Check("noisiest", ("a", "b"), row().accuracy, 0.2)), clear=False)
    title, *lines = explained(spread, WHOLE)
    assert title.endswith("; in accuracy no more than chance")
    assert "no few tensors set it" in lines[0] and lines[-1].endswith("So it is not the work of a few: many lose a little, together.")
    assert "gap in decibels" in lines[-1]


def test_json_has_no_number_that_json_lacks() -> None:
    odd = replace(row(value=NAN, half=NAN, sqnr=math.inf), worst=None)
    body = json.loads(json.dumps(json_body(result(odd, gaps=(RANGES,))), allow_nan=False))
    assert body["rows"][0]["accuracy"] is None and body["rows"][0]["sqnr_db"] is None and body["rows"][0]["worst_layer"] is None
    assert body["gaps"][0]["text"] == explained(RANGES, result(odd))


def test_latency_is_one_figure_where_it_is_one() -> None:
    assert "INT8 11.1 ms [8.9, 13.3] for every calibrator and scale: the cost model prices precisions, not scales" in latency_note(WHOLE)
    assert "differs between the plans of one precision" in latency_note(result(row(), row("mse", ms=12.0)))


@pytest.mark.parametrize("width", [80, 100, 132, 200])
def test_no_table_is_wider_than_the_terminal_or_cut(width: int) -> None:
    console = Console(width=width, record=True, file=io.StringIO())
    both = result(*WHOLE.rows, row(precision="int16", value=0.93, ms=21.0), row("auto:among=" + "/".join(["percentile:p=99.9"] * 9), value=0.5), gaps=WHOLE.gaps)
    for part in (headline(both), ladder_table(both), explanations(both), row_table(both, width), notes(both)):
        console.print(part)
    said = console.export_text()
    assert max(map(len, said.splitlines())) <= width and "…" not in said
    for r in both.rows:
        assert f"{100 * r.accuracy.value:.2f}" in said and f"{r.accuracy.sqnr_db:.1f} dB" in said
    squeezed = "".join(said.split())
    assert "1.01MB" in squeezed and "3.72MB" in squeezed and HOSTILE.replace(" ", "") in squeezed
    if width >= 132:
        assert "[-0.40, 0.40]" in said or "[0.60, 1.40]" in said


def test_the_page_holds_both_precisions_and_every_name_as_text(tmp_path: Path) -> None:
    both = result(*WHOLE.rows, row(precision="int16", value=0.93, ms=21.0), gaps=WHOLE.gaps)
    write_comparison(both, tmp_path / "compare.html")
    page = page_of(tmp_path / "compare.html")
    assert page.open == [] and page.text.count(HOSTILE) >= 4 and HOSTILE not in page.source
    figure = json.loads(page.data["front-figure"])
    assert [t["name"] for t in figure["data"]] == ["float", "INT8 minmax", "INT8 percentile:p=99.9", "INT16 minmax"]
    assert figure["data"][1]["error_y"]["array"] == pytest.approx([0.4] * 3)
    assert "INT16 21.0 ms" in page.text
    assert [p.name for p in tmp_path.iterdir()] == ["compare.html"]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_browser_draws_the_plot_and_its_controls(tmp_path: Path) -> None:
    write_comparison(WHOLE, tmp_path / "compare.html")
    assert CHROMIUM is not None
    done = subprocess.run([CHROMIUM, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", (tmp_path / "compare.html").as_uri()],
                          capture_output=True, text=True, timeout=120, check=True)
    assert 'data-drawn="yes"' in done.stdout and 'class="failed"' not in done.stdout
    assert "percentile:p=99.9</button>" in done.stdout and "near the best</button>" in done.stdout


def test_the_page_shows_the_vendors_rows_and_where_ours_lose(tmp_path: Path) -> None:
    layers = ({"op": "Conv", "name": "c1", "single_cos": 0.9991}, {"op": "Conv", "name": HOSTILE, "single_cos": 0.91})
    vendor = (VendorRow("qbench", "int8, mse", "top1", 0.9, 0.8, 1.0, 16, 24.0, 17_000, build_s=8.0), VendorRow("kit 1.0", "kl", refused="it crashed"),
              VendorRow("kit 1.0", "mmse", "top1", 0.9, 0.8, 1.0, 16, 30.4, 17_000, build_s=14.0, layers=layers))
    told = replace(WHOLE, vendor=vendor)
    assert [c[1:6] for c in vendor_cells(told)] == [("int8, mse", "90.00 %", "24.0 dB", "17,000", "8"), ("kl", "refused", "", "", ""), ("mmse", "90.00 %", "30.4 dB", "17,000", "14")]
    write_comparison(told, tmp_path / "compare.html")
    page = page_of(tmp_path / "compare.html").text
    assert "In the vendor's simulator" in page and "int8, mse loses to mmse: 24.0 dB at 17,000 cycles, 30.4 dB at 17,000" in page and "kit 1.0 kl: it crashed" in page
    assert "(cosine 0.91000)" in page
    write_comparison(WHOLE, tmp_path / "plain.html")
    assert "In the vendor's simulator" not in page_of(tmp_path / "plain.html").text
