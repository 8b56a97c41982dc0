"""The page in a real browser, where one is installed: it opens from disk without a network, shows the front, and answers to mouse and keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Tab, browser, needs_chromium
from finished_search import HOSTILE, MEMORY, STORED, Finished

from qbench.report import write_report

pytestmark = needs_chromium
DRAWN = "document.getElementById('front-plot').dataset.drawn === 'yes'"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture
def page(tab: Tab, whole: Finished, tmp_path: Path) -> str:
    path = tmp_path / "report.html"
    write_report(whole.result, whole.kernels, path, whole.strip, MEMORY, STORED)
    tab.said.clear()
    tab.asked.clear()
    tab.open(path.as_uri())
    tab.until(DRAWN)
    return path.as_uri()


def test_it_opens_from_disk_and_asks_for_nothing_else(tab: Tab, page: str) -> None:
    assert tab.asked[0] == page and all(a.startswith(("blob:", "data:")) for a in tab.asked[1:])
    assert tab.said == []
    assert tab.value("document.querySelectorAll('.failed').length") == 0
    assert tab.value("document.querySelectorAll('#front-plot .modebar-btn').length") == 7       # plotly's own button would upload the plot
    assert tab.value("[...document.querySelectorAll('[aria-pressed=true]')].length") == 8       # six kinds of plan, the line, one of two views


def test_hovering_a_mark_shows_its_plan(tab: Tab, page: str, whole: Finished) -> None:
    tab.hover("[...document.querySelectorAll('#front-plot .scatterlayer .trace')].at(-1).querySelector('.points path')")
    said = tab.until("document.querySelector('#front-plot .hoverlayer')?.textContent")
    assert whole.result.chosen is not None
    assert f"{whole.result.chosen.name} (polish)" in said and "21 INT8, 3 FP16" in said and "percentile:p=99.99, per-channel" in said


def test_kinds_of_plans_can_be_hidden(tab: Tab, page: str) -> None:
    marks = "document.querySelectorAll('#front-plot .scatterlayer .points path').length"
    before = tab.value(marks)
    tab.value("[...document.querySelectorAll('#front-kinds button')].find(b => b.textContent.includes('other plans')).click()")
    tab.until(f"{marks} < {before} && {marks} > 0")
    assert tab.value("[...document.querySelectorAll('#front-kinds button')].filter(b => b.ariaPressed === 'false').length") == 1
    tab.value("[...document.querySelectorAll('#front-kinds button')].find(b => b.textContent.includes('other plans')).click()")
    tab.until(f"{marks} === {before}")


def test_tables_are_filtered_while_one_types(tab: Tab, page: str) -> None:
    rows = "[...document.querySelectorAll('#front-table tbody tr')].filter(r => !r.hidden).map(r => r.cells[0].textContent)"
    assert len(tab.value(rows)) > 40
    tab.value("document.querySelector('#front details').open = true; document.querySelector('[data-filters=front-table]').focus()")
    tab.write("C007")
    assert tab.value(rows) == ["c007"]


@pytest.mark.parametrize(("box", "first", "second"), [
    ("strip-readout", "Layer 1 of 24: /encoder/stage0/conv0/Conv, FP16", "Layer 2 of 24: /encoder/stage0/conv1/Conv, FP16"),
    ("memory-readout", "input: 4.00 KB at 0, kernels 0 to 1", "a: 2.00 KB at 4000, kernels 1 to 3"),
    ("histogram-readout-1", "0 to 1: 1,000 values", "1 to 2: 100 values")])
def test_arrow_keys_and_the_mouse_tell_one_part_after_the_other(tab: Tab, page: str, box: str, first: str, second: str) -> None:
    readout = f"document.getElementById('{box}').textContent"
    tab.value(f"document.querySelector('[data-readout={box}]').focus()")
    tab.press("ArrowRight")
    assert tab.value(readout).startswith(first)
    tab.press("ArrowRight")
    assert tab.value(readout).startswith(second)
    tab.press("ArrowLeft")
    assert tab.value(readout).startswith(first)
    tab.hover(f"document.querySelectorAll('[data-readout={box}] [data-text]')[1]")
    assert tab.until(f"{readout}.startsWith({second!r})")


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_and_nothing_is_wider_than_a_phone(tab: Tab, page: str, dark: bool) -> None:
    tab.open(page, width=390, height=844, dark=dark)
    tab.until(DRAWN)
    assert tab.value("document.documentElement.scrollWidth") <= 390
    assert tab.value(CONTRAST) == []


def test_names_are_text_never_markup(tab: Tab, page: str) -> None:
    assert tab.value(f"document.body.textContent.includes({HOSTILE!r})")
    assert tab.value("document.querySelectorAll('script').length") == 3


CONTRAST = """(() => {
  const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (!/, 0\\)$/.test(c) && c.startsWith("rgb")) return c; } return "rgb(255, 255, 255)"; };
  const bad = new Set();
  for (const e of document.querySelectorAll("body *:not(svg *):not(#front-plot *):not(script):not(style)")) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) || !e.getClientRects().length || e.className === "skip") continue;
    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))], ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.add(`${e.tagName}.${e.className} ${ratio.toFixed(2)}`);
  }
  return [...bad];
})()"""
"""Elements with text of their own that stands out from its ground by less than 4.5 to 1. Source: WCAG 2.1, criterion 1.4.3 and relative luminance."""
