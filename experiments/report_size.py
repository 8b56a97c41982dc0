"""How large the report of a large search is, and how long a browser takes to open it: 100 layers, 200 candidates.

    python experiments/report_size.py [--opens 7]

The search is that of the report's tests, enlarged; headless Chromium (tests/browser.py) opens the page from disk, and the clock stops when the
front is drawn.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter

sys.path[:0] = [str(Path(__file__).parent.parent / "tests"), str(Path(__file__).parent.parent / "tests" / "report")]
from browser import browser
from finished_search import MEMORY, STORED, finished

from qbench.report import write_report

LAYERS, CANDIDATES, KERNELS = 100, 200, 150
DRAWN = "document.getElementById('front-plot').dataset.drawn === 'yes'"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opens", type=int, default=7)
    opens = parser.parse_args().opens
    small = finished()
    strip = [{**small.strip[i % 24], "unit": f"/backbone/stage{i}/block/conv/Conv"} for i in range(LAYERS)]
    kernels = [{**small.kernels[i % 24], "name": f"/backbone/stage{i}/block/conv/Conv"} for i in range(KERNELS)]
    many = tuple(replace(c, name=f"{c.name}-{k}", accuracy=replace(c.accuracy, value=c.accuracy.value - 1e-4 * k)) for k in range(5) for c in small.result.candidates)
    rows = tuple({**small.result.sensitivity[i % len(small.result.sensitivity)], "unit": f"/backbone/stage{i}/block/conv/Conv"} for i in range(LAYERS))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        began = perf_counter()
        write_report(replace(small.result, candidates=many[:CANDIDATES], sensitivity=rows), kernels, path, strip, MEMORY, STORED)
        print(f"{LAYERS} layers, {CANDIDATES} candidates: {path.stat().st_size / 1e6:.2f} MB, written in {perf_counter() - began:.1f} s")
        took = []
        with browser(Path(folder) / "profile") as tab:
            for _ in range(opens):
                began = perf_counter()
                tab.open(path.as_uri())
                tab.until(DRAWN)
                took.append(perf_counter() - began)
        print(f"opened {opens} times: {median(took):.2f} s to the drawn front (first {took[0]:.2f}, slowest {max(took):.2f})")


if __name__ == "__main__":
    main()
