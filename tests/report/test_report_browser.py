"""The page in a real browser, where one is installed: it opens from disk without a network and draws the front."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from finished_search import Finished

from qbench.report import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--virtual-time-budget=20000")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_front_is_drawn_and_its_controls_are_made(whole: Finished, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write_report(whole.result, whole.kernels, page, whole.strip)
    assert CHROMIUM is not None
    done = subprocess.run([CHROMIUM, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()],
                          capture_output=True, text=True, timeout=120, check=True)
    assert 'data-drawn="yes"' in done.stdout
    assert 'class="failed"' not in done.stdout
    assert "Share" not in done.stdout.split('id="front-figure"')[0]  # plotly's own button would upload the plot
    assert done.stdout.count('aria-pressed="true"') == 8             # six kinds of plan, the line, one of two views
    assert "all plans</button>" in done.stdout
