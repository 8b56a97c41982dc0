"""Every kind of error has a code of its own, every code a section in docs/troubleshooting.md, and no section stands for nothing."""

from __future__ import annotations

import re

from command_lines import ROOT, run
from pytest import CaptureFixture

from qbench import errors
from qbench.warning_codes import CODES, code_of

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
KINDS = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.QbenchError)]


def test_codes_are_unique_and_written_in_the_class_itself() -> None:
    assert all("code" in vars(k) for k in KINDS)
    codes = [k.code for k in KINDS]
    assert len(set(codes)) == len(codes) and all(re.fullmatch(r"QB1\d\d", c) for c in codes)


def test_the_tree_atop_the_module_is_the_tree() -> None:
    drawn = dict(re.findall(r"^ +(\w+) +(QB\d+) ", errors.__doc__ or "", re.MULTILINE))
    assert drawn == {k.__name__: k.code for k in KINDS}


def test_sections_are_those_of_the_codes() -> None:
    sections = re.findall(r"^### (QB\d+)\n\S", PAGE, re.MULTILINE)
    assert sections == sorted({k.code for k in KINDS} | set(CODES))


def test_no_other_module_adds_a_kind_without_a_code() -> None:
    folders = ("qbench", "calibrators", "search", "targets")
    bases = "|".join(k.__name__ for k in KINDS)
    found = {p.name for f in folders for p in (ROOT / f).rglob("*.py") if re.search(rf"^class \w+\(({bases})\)", p.read_text(encoding="utf-8"), re.MULTILINE)}
    assert found == {"errors.py"}


def test_the_words_of_each_warning_are_still_written_somewhere() -> None:
    sources = [p.read_text(encoding="utf-8") for f in ("qbench", "calibrators", "search", "targets") for p in (ROOT / f).rglob("*")
               if p.suffix in (".py", ".toml") and p.name != "warning_codes.py"]
    for code, words in CODES.items():
        assert any(words in s for s in sources), f"{code}: nobody says {words!r} any more"
        assert code_of(f"tensor 'a': {words} of it") == code
    assert code_of("something rare") == ""


def test_an_error_ends_with_its_code_and_place(capfd: CaptureFixture[str]) -> None:
    assert run("qbench targets rk358") == 2
    assert capfd.readouterr().err.endswith("\n  QB102: docs/troubleshooting.md#qb102\n")
