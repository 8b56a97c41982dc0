"""qbench targets, qbench calibrators: what there is, with sources."""

from __future__ import annotations

from dataclasses import asdict
from textwrap import indent
from typing import Annotated, Any

import typer

from qbench.cli import options
from qbench.cli.options import JsonOption


def targets(name: Annotated[str | None, typer.Argument(help="One target, in full.", show_default=False)] = None, as_json: JsonOption = False) -> None:
    """List the chips, or show one with its operating points, precisions and sources.

    [bold]qbench targets[/bold]    [bold]qbench targets rk3588[/bold]
    """
    from qbench import targets as registry
    from qbench import terminal

    found = [registry.load(name)] if name else [registry.load(n) for n in registry.names()]
    if as_json:
        options.print_json([asdict(t) | {"sources": dict(t.sources)} for t in found])
        return
    page = options.out()
    page.print(terminal.targets_table(found, page.width))
    if name:
        for line in describe(found[0]):
            page.print(line, soft_wrap=True, markup=False)


def describe(target: Any) -> list[str]:
    """Everything that a target file says, line by line."""
    lines = ["", "operating points: " + ", ".join(f"{o.name}" + (f" at {o.volts:g} V" if o.volts else "") for o in target.operating_points), "precisions:"]
    for p in target.precisions:
        when = f" (toolkit {', '.join(p.toolkits)} only)" if p.toolkits else ""
        lines.append(f"  {p.precision}{when}: {p.macs_per_cycle:g} MAC/cycle/core. {p.note} [{p.source}]".replace(". [", " ["))
    lines += ["latency model:", f"  fitted on {target.provenance.fitted_on}", f"  validated on {target.provenance.validated_on}",
              f"  interval: {target.provenance.interval}: x {target.latency_factor_low:.3g} to x {target.latency_factor_high:.3g}"]
    lines.append("  power and energy are relative: no public figure in watts" if target.power_is_relative else "  power in watts")
    lines += ["sources:"] + [f"  {key} = {target.cost.get(key, '')}: {source}" for key, source in target.sources.items()]
    return lines


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
