"""qbench toolchain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from qbench.cli import options
from qbench.cli.options import JsonOption

app = typer.Typer(no_args_is_help=True, help="Vendors' toolchains: which are here, and how to get the others. Nothing is downloaded unless asked.")


@app.command("list")
def listed(as_json: JsonOption = False) -> None:
    """Which vendor toolchains are here, in which environment, which version, what they can do. Asks each that is here.

    [bold]qbench toolchain list[/bold]
    """
    from rich import box
    from rich.table import Table

    from qbench import toolchains

    found = [toolchains.check(name) for name in toolchains.names()]
    if as_json:
        options.print_json([_body(s) for s in found])
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for column in ("toolchain", "here", "does", "where"):
        table.add_column(column, overflow="fold")
    for s in found:
        here = f"{s.version} (Python {s.python})" if s.ready else "broken" if s.where else "no"
        where = s.broken or str(s.where) if s.where else f"qbench toolchain install {s.toolchain.name}"
        table.add_row(s.toolchain.name, here, "; ".join(s.toolchain.does), where)
    options.out().print(table)


@app.command("check")
def checked(name: Annotated[str, typer.Argument(help="Name of the toolchain, see `qbench toolchain list`.")], as_json: JsonOption = False) -> None:
    """Is it here, and does it work? Exit code 3 when not, with the line that mends it.

    [bold]qbench toolchain check rknn[/bold]
    """
    from qbench import toolchains
    from qbench.errors import ToolchainMissing

    status = toolchains.check(name)
    if as_json:
        options.print_json(_body(status))
    elif status.ready:
        options.out().print(f"{name}: {status.toolchain.package} {status.version}, Python {status.python}, {status.where}", soft_wrap=True, markup=False)
    if not status.ready:
        raise ToolchainMissing(f"{name} cannot be used: {status.broken or 'it is not here'}; {toolchains.how_to_get(status.toolchain)}")


@app.command("install")
def installed(name: Annotated[str, typer.Argument(help="Name of the toolchain, see `qbench toolchain list`.")],
              python: Annotated[Path | None, typer.Option("--python", help="Interpreter to make the environment with; default: the running one.")] = None,
              as_json: JsonOption = False) -> None:
    """Make its environment in the user's cache from the package registry, with pins that were tried.

    [bold]qbench toolchain install rknn[/bold]
    """
    from qbench import terminal, toolchains

    with terminal.progress(options.console()) as progress:
        status = toolchains.install(name, python, progress)
    if as_json:
        options.print_json(_body(status))
        return
    options.out().print(f"{name}: {status.toolchain.package} {status.version}, Python {status.python}, {status.where}", soft_wrap=True, markup=False)


def _body(s: Any) -> dict[str, Any]:
    return {"name": s.toolchain.name, "title": s.toolchain.title, "ready": s.ready, "version": s.version, "python": s.python, "broken": s.broken,
            "where": None if s.where is None else str(s.where), "does": list(s.toolchain.does), "licence": s.toolchain.licence,
            "how_to_get": f"qbench toolchain install {s.toolchain.name}"}
