"""`qbench report`: the page again from what a folder holds, and the answer where it holds something else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from finished_search import MEMORY, STORED, Finished

from qbench.cli import main
from qbench.report import write_report

Spoil = Callable[[dict[str, Any], dict[str, Any]], object]


@pytest.fixture
def folder(whole: Finished, tmp_path: Path) -> Path:
    """What a search leaves behind, as far as the report is made of it."""
    tables = {"kernels": whole.kernels, "plan_strip": whole.strip, "memory": MEMORY, "stored": STORED}
    (tmp_path / "kernels.json").write_text(json.dumps(tables))
    (tmp_path / "summary.json").write_text(json.dumps(whole.result.to_dict()))
    return tmp_path


def report(*arguments: object) -> int:
    try:
        main(["report", *map(str, arguments)])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_the_page_again_is_the_page(folder: Path, whole: Finished) -> None:
    assert report(folder, "-o", folder / "again.html") == 0
    write_report(whole.result, whole.kernels, folder / "first.html", whole.strip, MEMORY, STORED)
    assert (folder / "again.html").read_text() == (folder / "first.html").read_text()


@pytest.mark.parametrize("spoil", [
    lambda s, k: s.pop("binding"), lambda s, k: s.update(uniform=None), lambda s, k: s["chosen"].update(layers=None), lambda s, k: s.update(budgets=[None]),
    lambda s, k: s["reference"].update(peak_memory_bytes=1e400), lambda s, k: s.update(coverage="x"), lambda s, k: k.pop("kernels"), lambda s, k: k.update(plan_strip="x"),
    lambda s, k: k["memory"].pop("arena_bytes"), lambda s, k: k["stored"][0]["histogram"].update(counts=[]), lambda s, k: k["stored"][1].update(low=None)])
def test_a_folder_of_something_else_is_told_and_the_page_stays(folder: Path, spoil: Spoil, capfd: pytest.CaptureFixture[str]) -> None:
    summary, tables = json.loads((folder / "summary.json").read_text()), json.loads((folder / "kernels.json").read_text())
    spoil(summary, tables)
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "kernels.json").write_text(json.dumps(tables))
    (folder / "report.html").write_text("the page of yesterday")
    assert report(folder) == 2
    said = capfd.readouterr().err
    assert f"qbench: {folder}: summary.json and kernels.json are not both what this version of qbench writes" in said and "run the search again" in said
    assert "Traceback" not in said and (folder / "report.html").read_text() == "the page of yesterday"


@pytest.mark.parametrize(("name", "text"), [("summary.json", "{"), ("summary.json", "[]"), ("kernels.json", ""), ("kernels.json", None)])
def test_a_half_written_folder_is_told(folder: Path, name: str, text: str | None, capfd: pytest.CaptureFixture[str]) -> None:
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text)
    assert report(folder) == 2
    assert "not both what this version of qbench writes at the end of a search" in capfd.readouterr().err


def test_a_page_that_cannot_be_written_names_the_option(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert report(folder, "-o", folder / "summary.json" / "x.html") == 2
    assert f"{folder / 'summary.json'} is a file; name another place (-o)" in capfd.readouterr().err
