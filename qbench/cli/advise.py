"""qbench advise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qbench.cli import completing, options
from qbench.cli.options import JsonOption, ShapesOption, ToolkitOption, ValuesOption


def command(
    model: Annotated[Path, typer.Argument(help="The model; weights may be zeros.", show_default=False)],
    target: Annotated[str, typer.Option("--target", "-t", autocompletion=completing.targets, help="Chip.")] = "rk3588",
    precision: Annotated[str, typer.Option("--precision", help="int8, int16, fp16 for every layer that can take it.")] = "int8",
    plan: Annotated[Path | None, typer.Option("--plan", help="Advise on this plan instead of one precision.")] = None,
    op_point: Annotated[str | None, typer.Option("--op-point", help="Operating point; default: the fastest.")] = None,
    toolkit: ToolkitOption = None,
    input_shape: ShapesOption = None,
    input_value: ValuesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Try every step of the tuning list in the cost model and say what each saves; steps that public sources contradict are marked so.

    [bold]qbench advise net.onnx --target rk3588[/bold]

    [bold]qbench advise net.onnx --target hexagon --plan plan.json --json[/bold]
    """
    from qbench.workbench.advising import AdviceOptions, advise
    from qbench.workbench.advising import as_json as plain_values

    found = advise(model, target, AdviceOptions(precision, plan, op_point, toolkit, options.shapes(input_shape), options.values(input_value)))
    if as_json:
        options.print_json(plain_values(found))
        return
    from qbench.report.advice_terminal import advice_report

    page = options.out()
    for part in advice_report(found, page.width):
        page.print(part)
