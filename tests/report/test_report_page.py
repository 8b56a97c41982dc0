"""report.html as a reader without a browser sees it: structure, escaping, self-containment."""

from __future__ import annotations

import base64
import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from finished_search import HOSTILE, NAN, Finished, search_result
from html_page import Page

from qbench.coverage import Coverage, OperatorRow, Share
from qbench.network import Precision
from qbench.report import write_report
from qbench.report.page import context
from qbench.result import result_from_dict

Reader = Callable[[Finished], Page]


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    def written(search: Finished) -> Page:
        path = tmp_path / "out" / "report.html"
        write_report(search.result, search.kernels, path, search.strip)
        assert [p.name for p in path.parent.iterdir()] == ["report.html"]
        return Page(path.read_text(encoding="utf-8"))

    return written


def test_every_section_is_there_and_the_page_is_well_formed(read: Reader, whole: Finished) -> None:
    page = read(whole)
    assert page.open == []
    assert page.ids >= {"main", "warnings", "comparison", "front", "front-plot", "plan", "kernels", "sensitivity", "reproduce", "provenance", "sample"}
    ids = [i for _, a in page.elements if (i := a.get("id"))]
    assert len(ids) == len(set(ids))


def test_nothing_is_loaded_from_elsewhere(read: Reader, whole: Finished) -> None:
    page = read(whole)
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object", "embed")
        for name in ("src", "href", "action", "data", "srcset", "poster"):
            assert (attributes.get(name) or "#").startswith("#"), f"<{tag} {name}={attributes[name]}>"
    assert "url(" not in page.data["style"]
    assert "@import" not in page.data["style"]
    policy = next(a["content"] for t, a in page.elements if t == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_names_of_the_user_are_text_never_markup(read: Reader, whole: Finished) -> None:
    page = read(whole)
    assert sum(t == "script" for t, _ in page.elements) == 3          # figure, library, our own
    assert page.text.count(HOSTILE) >= 4                              # warning, strip, kernels, sensitivity
    assert HOSTILE not in page.source
    assert any(HOSTILE in (a.get("data-text") or "") for _, a in page.elements)


def test_a_warning_that_has_a_code_begins_with_it(read: Reader, whole: Finished) -> None:
    said = (*whole.result.warnings, "int16: built and simulated, not verified on silicon")
    page = read(replace(whole, result=replace(whole.result, warnings=said)))
    assert "QB208 int16: built and simulated" in page.text and "has a section in docs/troubleshooting.md" in page.text
    assert "troubleshooting" not in read(whole).text
    assert replace(whole.result, warnings=said).to_dict()["warning_codes"] == ["", "", "QB208"]


def test_hostile_text_is_escaped_wherever_it_can_come_from(read: Reader, whole: Finished) -> None:
    evil = "</script><img src=http://x onerror=1>\""
    result = search_result()
    assert result.chosen is not None
    chosen = replace(result.chosen, name=evil, origin=evil, plan=evil, calibrator=evil, layers={evil: 3}, price=replace(result.chosen.price, op_point=evil))
    result = replace(result, chosen=chosen, candidates=(chosen,), front=(chosen,), uniform={evil: chosen}, budgets=(evil,), model=evil,
                     target=evil, toolkit=evil, provenance=dict.fromkeys((evil, f"sample_{evil}", "command", "fitted_on"), evil),
                     mlflow={evil: evil}, warnings=(evil,))
    rows: list[Mapping[str, Any]] = [{**row, **{k: evil for k in ("unit", "name", "op", "precision", "bound", "placement", "reason")}} for row in whole.kernels]
    strip: list[Mapping[str, Any]] = [{**row, "drop": NAN} for row in rows]
    page = read(Finished(result, rows, strip))
    assert page.open == []
    assert not [a for t, a in page.elements if t == "img" or "onerror" in a]
    assert "x onerror" in page.text
    assert json.loads(page.data["front-figure"])["data"]


def test_plotly_is_inlined_once_and_unpacks_to_the_library(read: Reader, whole: Finished) -> None:
    from plotly.offline import get_plotlyjs

    page = read(whole)
    assert gzip.decompress(base64.b64decode(page.data["plotly-gz"])).decode() == get_plotlyjs()
    assert len(page.source) < 2_500_000
    assert "MIT license" in page.text


def test_the_same_search_gives_the_same_file(tmp_path: Path, whole: Finished) -> None:
    paths = [tmp_path / "a.html", tmp_path / "b.html"]
    for path in paths:
        write_report(whole.result, whole.kernels, path, whole.strip)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_the_report_of_an_old_run_follows_from_its_summary(tmp_path: Path, whole: Finished, infeasible: Finished) -> None:
    for search in (whole, infeasible):
        read_back = result_from_dict(json.loads(json.dumps(search.result.to_dict())))
        for name, result in (("new", search.result), ("old", read_back)):
            write_report(result, search.kernels, tmp_path / name, search.strip)
        assert (tmp_path / "new").read_bytes() == (tmp_path / "old").read_bytes()


def test_numbers_and_provenance_are_said(read: Reader, whole: Finished) -> None:
    text = read(whole).text
    for expected in ("brain_unet.onnx on rk3588 (2.3.2), 20ms, drop at most 0.50 points", "93.01", "[92.50, 93.49]", "[11.5, 15.7]", "4.44 MB",
                     "power (relative, unvalidated)", "predicted, 80 % interval", "fitted on vendor toolkit cycle tables of 23 graphs",
                     "validated on 6 graphs left out", "qbench search --target rk3588 --budget 20ms --seed 0",
                     "qbench quantize MODEL --plan plans/c040.json", "permission notice travels with the data", "sqlite:///mlflow.db",
                     "Softmax stays in float", "44 plans evaluated in 2 min 21 s", "the written model, read back: dice 93.01 %; with FP16 rounding emulated: dice 92.99 %"):
        assert expected in text, expected


def test_tables_can_be_reached_by_keyboard_and_have_names(read: Reader, whole: Finished) -> None:
    page = read(whole)
    scrolled = [a for t, a in page.elements if t == "div" and "scroll" in (a.get("class") or "").split()]
    assert len(scrolled) == sum(t == "table" for t, _ in page.elements) + 1       # the strip of layers
    assert all(a.get("tabindex") == "0" and a.get("aria-label") and a.get("role") for a in scrolled)
    assert all(a.get("scope") in ("row", "col") for t, a in page.elements if t == "th")
    assert all(a.get("aria-label") for _, a in page.elements if a.get("role") == "img")
    assert ("html", {"lang": "en"}) in page.elements


def test_precision_is_told_by_text_beside_colour(whole: Finished) -> None:
    columns = context(whole.result, whole.kernels, whole.strip)["strip"]["columns"]
    assert [c["precision"]["short"] for c in columns[:4]] == ["F16", "F16", "F16", "8"]
    assert columns[23]["fixed"]
    assert columns[1]["depth"] == "100.00%"


def test_time_by_what_binds_adds_up(whole: Finished) -> None:
    prepared = context(whole.result, whole.kernels, whole.strip)
    shares = [float(p["share"].rstrip("%")) for p in prepared["bounds"]["parts"]]
    assert sum(shares) == pytest.approx(100, abs=0.03)
    assert shares == sorted(shares, reverse=True)
    assert prepared["bounds"]["total"] == f"{sum(r['ms'] for r in whole.kernels):.1f}"
    assert prepared["kernels"][0]["width"] == "100.00%"


def test_sensitivities_are_sorted_and_their_axis_holds_zero(whole: Finished) -> None:
    found = context(whole.result, whole.kernels, whole.strip)["sensitivity"]
    drops = [float(r["drop"]) for r in found["rows"]]
    assert drops == sorted(drops, reverse=True)
    assert 0 < float(found["zero"].rstrip("%")) < 50
    assert all(float(r["left"].rstrip("%")) + float(r["width"].rstrip("%")) <= 100.02 for r in found["rows"])


def test_infeasible_says_what_binds_and_what_would_help(read: Reader, infeasible: Finished) -> None:
    page = read(infeasible)
    assert "binding" in page.ids
    assert "What binds: latency 0.01 ms" in page.text
    assert "--budget 12ms would be met by all INT8" in page.text
    assert "Nearest plan:" in page.text
    assert "Chosen plan:" not in page.text


def test_a_search_without_any_plan_still_gives_a_page(read: Reader, bare: Finished) -> None:
    page = read(bare)
    assert page.open == []
    assert {"plan", "kernels", "sensitivity", "sample", "warnings", "front-plot", "plotly-gz"}.isdisjoint(page.ids)
    assert "No plan was evaluated." in page.text
    assert "Run through the library: there is no command line." in page.text
    assert "n/a" in page.text
    assert not re.search(r"\bnan\b|\binf\b|\bNone\b", page.text)


def test_missing_numbers_and_fields_read_not_available(read: Reader, whole: Finished) -> None:
    kernels: list[Mapping[str, Any]] = [{"name": "only a name"}, {"name": "b", "ms": NAN, "bound": "dram"}]
    strip: list[Mapping[str, Any]] = [{"unit": "u", "precision": "int4", "ms": NAN, "drop": None}]
    rows = ({"unit": "u", "precision": "int8", "drop": NAN, "drop_low": NAN, "drop_high": NAN, "ms_saved": None},)
    page = read(Finished(replace(whole.result, uniform={}, sensitivity=rows), kernels, strip))
    assert page.open == []
    assert "n/a" in page.text
    assert not re.search(r"\bnan\b|\bNone\b", page.text)


def test_large_searches_stay_under_five_megabytes(read: Reader, whole: Finished) -> None:
    strip = [{**whole.strip[i % 24], "unit": f"/backbone/stage{i}/block/conv/Conv"} for i in range(100)]
    kernels = [{**whole.kernels[i % 24], "name": f"/backbone/stage{i}/block/conv/Conv"} for i in range(150)]
    many = tuple(replace(c, name=f"{c.name}-{k}") for k in range(5) for c in whole.result.candidates)[:200]
    assert len(read(Finished(replace(whole.result, candidates=many), kernels, strip)).source) < 5_000_000


def test_importing_the_report_loads_no_heavy_library() -> None:
    probe = "import sys, qbench.report, qbench.terminal; print([m for m in ('plotly', 'jinja2', 'rich', 'torch', 'onnxruntime') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_coverage_tells_shares_and_reasons(read: Reader, whole: Finished) -> None:
    rows = (OperatorRow("stem", "stem", "Conv", "stem", "stem", Precision.INT8, "", 900), OperatorRow(HOSTILE, "", "LSTM", "l", "l", Precision.FP16, "no kernel", 100))
    shares = (Share(Precision.INT8, 1, 0.5, 900, 0.9), Share(Precision.FP16, 1, 0.5, 100, 0.1))
    found = Coverage(rows, shares, Precision.INT8).to_dict()
    kept = json.loads(json.dumps(replace(whole.result, coverage=found).to_dict()))
    assert kept["coverage"] == found and result_from_dict(kept).coverage == found
    page = read(replace(whole, result=result_from_dict(kept)))
    assert "coverage" in page.ids and "90.0 % of the multiply-accumulates and 1 of 2 operators run in integers (int8: 1, fp16: 1)" in page.text
    assert "no kernel" in page.text and page.open == []
    assert "coverage" not in read(whole).ids                                # an older summary has none
