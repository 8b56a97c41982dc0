"""qbench inspect."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qbench.cli import completing, options
from qbench.cli.options import JsonOption, ShapesOption, ToolkitOption, ValuesOption


def command(
    model: Annotated[Path, typer.Argument(help="The model; weights may be zeros, axes may be open.", show_default=False)],
    target: Annotated[list[str] | None, typer.Option("--target", "-t", autocompletion=completing.targets, help="Chip; may be repeated.")] = None,
    precision: Annotated[str | None, typer.Option("--precision", help="int8, int16, fp16 for every layer that can take it; default: the chip's first.")] = None,
    toolkit: ToolkitOption = None,
    input_shape: ShapesOption = None,
    input_value: ValuesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look at a model with the eyes of a chip's compiler: open axes and where they come from, operators that fall back, padding,
    layout conversions, on-chip memory, fusion, and rewrites that are known. Nothing is changed.

    [bold]qbench inspect net.onnx --target rk3588[/bold]

    [bold]qbench inspect net.onnx -t rk3588 -t hexagon --input-shape x=1,3,224,224 --json[/bold]
    """
    from qbench.report.inspect_terminal import report
    from qbench.workbench.inspecting import inspect_model

    found = inspect_model(model, target or ["rk3588"], precision=precision, toolkit=toolkit, input_shapes=options.shapes(input_shape),
                          input_values=options.values(input_value))
    if as_json:
        options.print_json([i.to_json() for i in found])
        return
    page = options.out()
    for number, inspection in enumerate(found):
        page.print(report(inspection, whole_model=number == 0))
