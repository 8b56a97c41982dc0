"""What mkdocs does beside reading the pages: the command reference comes from the command line itself, the list of target pages from their folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

HERE = Path(__file__).parent
_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+((?:experiments|qbench|tests)/[^)#]+)\)")
_MARKUP = re.compile(r"\[/?(?:bold|dim)\]")


def on_config(config: Any) -> Any:
    """Puts the pages of docs/targets into the navigation, the overview first."""
    names = sorted(p.name for p in (HERE / "targets").glob("*.md"))
    pages = [f"targets/{n}" for n in sorted(names, key=lambda n: (n != "index.md", n))]
    config.nav = [{"Targets": pages} if entry == {"Targets": "targets/"} else entry for entry in config.nav]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds reference/commands.md."""
    files.append(File.generated(config, "reference/commands.md", content="\n".join(commands())))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links that lead out of docs/ become paths in the repository: the site has no such pages."""
    return _OUTSIDE.sub(r"\1 (`\2`)", markdown)


def commands() -> Iterator[str]:
    """One section a command: its help, and a table of its options."""
    import typer

    from qbench.cli.app import app

    yield "# Commands\n\nMade from the command line itself: `qbench COMMAND --help` says the same.\n"
    root: Any = typer.main.get_command(app)
    yield from _section("qbench", root)
    for name, command in root.commands.items():
        if inner := getattr(command, "commands", None):
            for sub, below in inner.items():
                yield from _section(f"qbench {name} {sub}", below)
        else:
            yield from _section(f"qbench {name}", command)


def _section(title: str, command: Any) -> Iterator[str]:
    yield f"\n## {title}\n"
    lines = [re.sub(r"\[bold\](.*?)\[/bold\]", r"`\1`", line.strip()) for line in (command.help or "").splitlines()]
    yield "\n".join(_MARKUP.sub("", line) + ("\\" if line.startswith("`") else "") for line in lines).replace("\\\n\n", "\n\n").rstrip("\\") + "\n"
    rows = [p for p in command.params if not getattr(p, "hidden", False)]
    if rows:
        yield "| option | meaning | default |\n| --- | --- | --- |"
    for p in rows:
        default = "" if p.default is None or callable(p.default) or p.default is False else f"`{p.default}`"
        spelled = ", ".join(f"`{o}`" for o in (*p.opts, *p.secondary_opts)) if p.param_type_name == "option" else f"`{p.metavar or str(p.name).upper()}`".replace("|", "\\|")
        yield f"| {spelled} | {(getattr(p, 'help', '') or '').replace('|', chr(92) + '|')} | {default} |"
