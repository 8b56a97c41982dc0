"""Every command line that a page or a help text shows is one that the command line takes; those marked to run, run."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import PAGES, ROOT, examples, fences, inline, leaves, lines, parse, run

COMMANDS = dict(leaves())
NEEDS_MORE = ("ui", "report", "analyze", "measure", "diagnose", "export", "toolchain")
"""Commands whose examples start a server, ask every toolchain, or need what an earlier command or a board left behind."""
SMALL = {"search": ["--sample", "fashion", "--limit", "16", "--trials", "1", "--no-track"],
         "compare": ["--sample", "fashion", "--limit", "20", "--calibrator", "minmax", "--scale", "per-channel"]}
"""Added to an example so that it takes seconds: what it is an example of stays."""


def of_samples(name: str) -> list[str]:
    """Examples that need nothing but what ships with qbench."""
    files = (".onnx", ".npz", ".npy", ".toml", "--check", "--store", "--board")
    given = [e for e in examples(COMMANDS[name]) if name.split()[0] not in NEEDS_MORE]
    return [e for e in given if not any(f in e.replace("-o fashion.qdq.onnx", "") for f in files)]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_command_on_a_page_parses(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in fences(page):
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


@pytest.mark.parametrize("line", [e for name in COMMANDS for e in of_samples(name)])
def test_examples_on_samples_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    command = line.split()[1]
    extra = [w for w in SMALL.get(command, []) if not (w in ("--sample", "fashion") and "--sample" in line)]
    code = run(shlex.join([*shlex.split(line), *extra]))
    assert code in ((0, 1) if command == "search" else (0, 3) if command == "doctor" else (0,)), capfd.readouterr().err
    assert capfd.readouterr().out.strip()


def test_there_are_examples_that_run() -> None:
    """The choice above must not become empty unnoticed."""
    assert {e.split()[1] for name in COMMANDS for e in of_samples(name)} >= {"search", "compare", "quantize", "presets", "targets", "calibrators"}


@pytest.mark.parametrize("page", [p for p in PAGES if fences(p, "sh")], ids=lambda p: str(p.relative_to(ROOT)))
def test_shell_blocks_marked_to_run_do(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for line in (line for block in fences(page, "sh") for line in lines(block)):
        assert run(line) == 0, f"{line}\n{capfd.readouterr().err}"
        assert capfd.readouterr().out.strip(), line


def test_python_blocks_marked_to_run_do(tmp_path: Path) -> None:
    """In a process of its own, warnings as errors, as on a user's desk."""
    [block] = [b for p in PAGES for b in fences(p, "python")]
    done = subprocess.run([sys.executable, "-W", "error", "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("{'int8': 4} 1.0 ")
    assert json.loads((tmp_path / "qbench-out" / "net-rk3588" / "summary.json").read_text())["feasible"]
