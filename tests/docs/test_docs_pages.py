"""Every block of every page: its command lines and its Python run in order, its TOML loads; what cannot is listed in desk.py with the reason."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command_lines import PAGES, ROOT, blocks, examples, leaves, lines
from desk import codes, lay, needs, run_line, without_toolchains

from qbench import config

IN_HELP = {e for _, command in leaves() for e in examples(command)}
"""Lines that test_docs_examples.py runs."""
LIBRARY = ROOT / "docs" / "library.md"


@pytest.fixture(scope="module")
def laid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that every page gets a copy of."""
    folder = tmp_path_factory.mktemp("laid")
    with without_toolchains():
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            lay(folder, 28, 1)
        yield folder


@pytest.fixture
def desk(laid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "desk"
    shutil.copytree(laid, folder)
    monkeypatch.chdir(folder)
    return folder


def to_run(page: Path) -> list[tuple[str, str]]:
    """Language and text of what is run of a page, in order: single command lines, and whole blocks of the other languages."""
    found: list[tuple[str, str]] = []
    for language, body in blocks(page):
        if language in ("python", "toml"):
            found.append((language, body))
        else:
            found += [("qbench", line) for line in lines(body) if not needs(line) and (line not in IN_HELP or " -o " in line)]
    return found


@pytest.mark.parametrize("page", [p for p in PAGES if to_run(p) and p != LIBRARY], ids=lambda p: str(p.relative_to(ROOT)))
def test_a_page_runs_from_top_to_bottom(page: Path, desk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if page.name != "own-model.md":                        # only there it is said how pictures are read
        for picture in (desk / "calib").glob("*.png"), (desk / "val").glob("*/*.png"):
            for path in picture:
                np.save(path.with_suffix(".npy"), np.load("x.npy")[0])
                path.unlink()
    for kind, body in to_run(page):
        if kind == "qbench":
            code, line = run_line(body)
            said = capfd.readouterr()
            assert code in codes(line), f"{line}: exit code {code}\n{said.err}"
        elif kind == "toml":
            _settle(body, desk)
        elif body.startswith("# ") and body.split()[1].endswith(".py"):
            (desk / body.split()[1]).write_text(body)
        else:
            _python(body, desk)


def _settle(body: str, desk: Path) -> None:
    """The block is a qbench.toml: that of the page where there is none yet; one with other keys than the file that is there belongs into it."""
    (desk / "block.toml").write_text(body)
    config.load(desk / "block.toml", {})
    file = desk / "qbench.toml"
    if not file.exists():
        file.write_text(body)
    elif not tomllib.loads(body).keys() & tomllib.loads(file.read_text()).keys():
        file.write_text(body + file.read_text())
        config.load(file, {})


def _python(body: str, desk: Path, *options: str) -> str:
    """What it prints, in a process of its own."""
    done = subprocess.run([sys.executable, *options, "-c", body], cwd=desk, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_library_page_runs_as_one_program_without_a_warning(desk: Path) -> None:
    said = _python("\n".join(body for language, body in blocks(LIBRARY) if language == "python"), desk, "-W", "error")
    assert said.startswith("{'int8': 4} 1.0 ")
    assert json.loads((desk / "qbench-out" / "net-rk3588" / "summary.json").read_text())["feasible"]
