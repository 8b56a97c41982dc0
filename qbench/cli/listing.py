"""qbench targets, qbench calibrators: what there is, with sources."""

from __future__ import annotations

from dataclasses import asdict
from textwrap import indent
from typing import Annotated, Any

import typer

from qbench.cli import options
from qbench.cli.options import JsonOption


def targets(name: Annotated[str | None, typer.Argument(help="One target, in full.", show_default=False)] = None, as_json: JsonOption = False) -> None:
    """List the chips, or show one: precisions and refusals, operating points, layout, operators, facts, constants of the cost model, each with its source.

    [bold]qbench targets[/bold]    [bold]qbench targets rk3588[/bold]    [bold]qbench targets hexagon --json[/bold]
    """
    from qbench import targets as registry
    from qbench import terminal
    from qbench.report.target_terminal import target_report

    found = [registry.load(name)] if name else [registry.load(n) for n in registry.names()]
    if as_json:
        options.print_json([asdict(t) for t in found])
        return
    page = options.out()
    if name:
        for part in target_report(found[0]):
            page.print(part)
    else:
        page.print(terminal.targets_table(found, page.width))


def calibrators(name: Annotated[str | None, typer.Argument(help="One calibrator only.", show_default=False)] = None,
                as_json: JsonOption = False) -> None:
    """List the calibrators with their options and source papers.

    An option is given behind the name: percentile:p=99.9,sided=one

    [bold]qbench calibrators[/bold]    [bold]qbench calibrators kl[/bold]
    """
    from qbench import calibrators as registry

    rows = [_calibrator(n, *registry.describe(n)) for n in ([name] if name else registry.names())]
    if as_json:
        options.print_json(rows)
        return
    page = options.out()
    for row in rows:
        given = ", ".join(f"{k}={v}" for k, v in row["options"].items())
        page.print(f"{row['name']}  {given}".rstrip(), style="bold", soft_wrap=True, markup=False, highlight=False)
        page.print(indent(row["about"], "  "), soft_wrap=True, markup=False)


def _calibrator(name: str, about: str, defaults: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "options": defaults, "about": about}
