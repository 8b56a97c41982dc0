"""The documentation builds as a site, warnings as errors, and holds what is made while it builds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from command_lines import ROOT, leaves


def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)], cwd=ROOT, capture_output=True, text=True,
                          check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stderr
    commands = (tmp_path / "reference" / "commands.html").read_text(encoding="utf-8")
    assert {f'id="qbench-{name.replace(" ", "-")}"' for name, _ in leaves()} <= set(re.findall(r'id="qbench-[\w-]+"', commands))
    assert "run_search" in (tmp_path / "reference" / "library.html").read_text(encoding="utf-8")
    start = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "targets/rk3588.html" in start
    assert not re.findall(r'(?:src|href)="https?://(?!squidfunk|zensical|www\.mkdocs)[^"]+\.(?:js|css|woff2?)"', start)         # nothing is loaded from elsewhere
