"""Every command line that a page or a help text shows is one that the command line takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_lines import PAGES, ROOT, blocks, examples, inline, leaves, lines, parse

COMMANDS = dict(leaves())
@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_command_on_a_page_parses(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _, block in blocks(page):
        for line in lines(block):
            if "..." not in line:
                parse(line)
    for said in inline(page):
        words = said.split()[1:]
        name = next((n for n in (" ".join(words[:2]), words[0]) if n in COMMANDS), None)
        if name is None:
            assert words[0] in ("toolchain", "NAME", "COMMAND") or words[0].startswith("--"), f"{page.name}: `{said}`"
            continue
        known = {o for p in COMMANDS[name].params for o in (*p.opts, *p.secondary_opts)} | {"--help", "--verbose", "--quiet", "--json"}
        assert {w.split("=")[0] for w in words if w.startswith("--") and w != "--"} <= known, f"{page.name}: `{said}`"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_by_example(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = examples(COMMANDS[name])
    assert any(e.startswith(f"qbench {name}") for e in found)
    for line in found:
        parse(line)
