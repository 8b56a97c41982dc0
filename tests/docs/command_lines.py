"""Command lines out of pages and help texts, and the real parser to hold them against."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from qbench.cli import anywhere, main
from qbench.cli.app import app

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([*ROOT.glob("README*.md"), ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(?:\$ )?(qbench [^`]+)`")
_BOLD = re.compile(r"\[bold\](qbench.*?)\[/bold\]")


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and body of the fenced blocks of a page, in order."""
    return [(language, body) for language, body in _FENCE.findall(page.read_text(encoding="utf-8"))]


def lines(block: str) -> Iterator[str]:
    """Commands of a block: continued lines joined, prompts and comments off, what a shell does behind them cut."""
    for line in re.sub(r"\\\n\s*", " ", block).splitlines():
        line = re.sub(r"^\s*(?:- run: )?(?:\$ )?", "", line)
        if re.match(r"qbench( |$)", line):
            yield re.split(r"\s(?:>|\||#|&&)\s|\s#", line)[0].strip()


def inline(page: Path) -> list[str]:
    """Commands in running text: names and options hold, the rest may be left out."""
    return _INLINE.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))


def leaves() -> Iterator[tuple[str, Any]]:
    """(name with the names above it, command) of every command."""
    root: Any = typer.main.get_command(app)
    for name, command in root.commands.items():
        if below := getattr(command, "commands", None):
            yield from ((f"{name} {sub}", c) for sub, c in below.items())
        else:
            yield name, command


def examples(command: Any) -> list[str]:
    """The command lines in a command's help."""
    return [line for text in _BOLD.findall(command.help or "") for line in lines(text)]


def parse(line: str) -> None:
    """Raises typer's usage error for a line that the command line would not take. Nothing is run."""
    words = anywhere(shlex.split(line)[1:])
    context: Any = typer.main.get_command(app).make_context("qbench", words)
    command: Any = context.command
    while subcommands := getattr(command, "commands", None):
        rest = [*context._protected_args, *context.args]
        if not rest:
            return
        assert rest[0] in subcommands, f"no command {rest[0]!r}"
        command = subcommands[rest[0]]
        context = command.make_context(rest[0], rest[1:], parent=context)


def run(line: str) -> int:
    """The exit code of the command in this process."""
    try:
        main(shlex.split(line)[1:])
    except SystemExit as end:
        return int(end.code or 0)
    return 0
