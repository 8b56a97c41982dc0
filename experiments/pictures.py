"""Makes the pictures of the documentation from a finished search: docs/mlflow.png and docs/report.png.

    python experiments/pictures.py qbench-out/brain-rk3588 [--to docs]

Starts `qbench ui` on the search's store and a headless Chromium (tests/browser.py). With `--looks`, the report is pictured whole instead, light and
dark, at desk and phone width, for somebody to look at.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from browser import Tab, browser

DRAWN = "document.getElementById('front-plot').dataset.drawn === 'yes'"


def mlflow(tab: Tab, run: Path, to: Path, port: int) -> None:
    """The table of runs as `qbench ui RUN` opens it."""
    shown = subprocess.Popen([sys.executable, "-m", "qbench", "ui", str(run), "--no-open", "--port", str(port)], stdout=subprocess.PIPE, text=True)
    assert shown.stdout is not None
    try:
        address = shown.stdout.readline().split()[0]
        tab.open(address, width=2320, height=980, offline=False)
        tab.until("[...document.querySelectorAll('.ag-header-cell')].some(e => e.innerText.trim() === 'energy_mj')")
        tab.until("document.querySelectorAll('.ag-center-cols-container .ag-row').length > 10")
        tab.value("new Promise(r => setTimeout(r, 3000))")                      # fades of the page
        tab.picture(to / "mlflow.png", clip={"x": 226, "y": 40, "width": 1490, "height": 880})
    finally:
        shown.send_signal(signal.SIGINT)
        shown.wait(60)


def report(tab: Tab, run: Path, to: Path) -> None:
    """The front and the strip of the report."""
    tab.open((run / "report.html").resolve().as_uri(), width=1160, height=1400)
    tab.until(DRAWN)
    box = tab.value("(() => { const a = document.getElementById('front').getBoundingClientRect(), b = document.getElementById('plan').getBoundingClientRect();"
                    " return [a.x - 10, a.y + scrollY - 10, b.right - a.x + 20, b.bottom - a.y + 20] })()")
    tab.picture(to / "report.png", clip=dict(zip(("x", "y", "width", "height"), box, strict=True)))


def looks(tab: Tab, run: Path, to: Path) -> None:
    for width, device in ((1200, "desk"), (390, "phone")):
        for dark in (False, True):
            tab.open((run / "report.html").resolve().as_uri(), width=width, height=900, dark=dark)
            tab.until(DRAWN)
            tab.picture(to / f"report-{device}-{'dark' if dark else 'light'}.png", whole=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="result folder of a search that was tracked")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent.parent / "docs")
    parser.add_argument("--port", type=int, default=5059)
    parser.add_argument("--looks", action="store_true")
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as tab:
        if options.looks:
            looks(tab, options.run, options.to)
            return
        mlflow(tab, options.run, options.to, options.port)
        report(tab, options.run, options.to)


if __name__ == "__main__":
    main()
