"""qbench presets: what a product asks for, and what follows from it on a chip."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qbench.cli import completing, options
from qbench.cli.options import JsonOption, ShapesOption, ToolkitOption
from qbench.errors import InputError


def command(
    name: Annotated[str | None, typer.Argument(help="One preset, or the path of a .toml file of your own.", show_default=False)] = None,
    target: Annotated[str | None, typer.Option("--target", "-t", autocompletion=completing.targets, help="Chip to derive the limits for: see `qbench targets`.")] = None,
    model: Annotated[Path | None, typer.Option("--model", "-m", help="Network to price there; without it the built-in sample.")] = None,
    power: Annotated[Path | None, typer.Option("--power", help="TOML file of watt readings of your board: energies in watts instead of relative ones.")] = None,
    copy: Annotated[Path | None, typer.Option("--copy", help="Write the preset's file there, to change it.")] = None,
    toolkit: ToolkitOption = None,
    input_shape: ShapesOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the product presets, or show what follows from one, line by line.

    [bold]qbench presets[/bold]    [bold]qbench presets door-lock[/bold]

    [bold]qbench presets medical --target rk3588 --model net.onnx[/bold]
        limits, and which clocks and precisions remain for this network

    [bold]qbench presets door-lock --copy my.toml[/bold]
        a file to put your own product's numbers in; then: qbench search --preset my.toml
    """
    from qbench.workbench.presetting import copy_preset, preset_rows

    if copy is not None:
        if name is None:
            raise InputError("--copy: say which preset, e.g. qbench presets door-lock --copy my.toml")
        copy_preset(name, copy)
        options.out().print(f"written: {copy}; then: qbench search --preset {copy}", soft_wrap=True, markup=False)
        return
    rows = preset_rows(name, target, model, power, toolkit, options.shapes(input_shape))
    if as_json:
        options.print_json(rows)
        return
    page = options.out()
    for row in rows:
        page.print(f"{row['name']}  {row['title']}", style="bold", soft_wrap=True, markup=False, highlight=False)
        page.print(f"  {row['story']}", soft_wrap=True, markup=False)
        for line in row.get("derivation", [row["refused"]] if "refused" in row else []):
            page.print(f"  {line}", soft_wrap=True, markup=False)
