"""qbench doctor."""

from __future__ import annotations

from typing import Annotated

import typer

from qbench.cli import completing, options
from qbench.cli.options import JsonOption


def command(
    target: Annotated[str | None, typer.Option("--target", "-t", autocompletion=completing.targets, help="Chip to work for: its toolchain must then be here.")] = None,
    board: Annotated[str | None, typer.Option("--board", help="Board to ask too: local://, ssh://user@host, adb://SERIAL, replay:FILE.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Is everything here, and do the versions go together? Each failed check comes with its cure. Exit code 3 when something that is needed fails.

    [bold]qbench doctor[/bold]

    [bold]qbench doctor --target rk3588 --board ssh://user@board/rknnlite[/bold]
    """
    from rich import box
    from rich.table import Table

    from qbench.workbench.doctoring import State, examine

    health = examine(target, board)
    if as_json:
        options.print_json(health.to_dict())
    else:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
        for column in ("check", "state", "found", "needed"):
            table.add_column(column, overflow="fold")
        for f in health.findings:
            table.add_row(f.name if f.where == "machine" else f"{f.where} {f.name}", str(f.state), f.found, f.needed)
        page = options.out()
        page.print(table)
        for f in health.findings:
            if f.cure and f.state in (State.WARNING, State.FAILED):
                page.print(f"{f.state}: {f.name}: {f.cure}", soft_wrap=True, markup=False)
        page.print("usable" if health.usable else "not usable until the failed checks are mended")
    if not health.usable:
        raise typer.Exit(3)
