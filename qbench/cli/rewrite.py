"""qbench rewrite."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qbench.cli import completing, options
from qbench.cli.options import DataOption, JsonOption, PreprocessOption, ShapesOption, ToolkitOption, ValuesOption


def command(
    model: Annotated[Path, typer.Argument(help="The model; axes left open are fixed by --input-shape.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the rewritten model goes.", show_default=False)],
    target: Annotated[str, typer.Option("--target", "-t", autocompletion=completing.targets, help="Chip.")] = "rk3588",
    allow: Annotated[list[str] | None, typer.Option("--allow", help="Consent to a rewrite that approximates or changes the result; any named one is "
                                                                    "applied wherever it fits. May be repeated.")] = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="Try this rewrite and no other, wherever it fits. May be repeated.")] = None,
    precision: Annotated[str | None, typer.Option("--precision", help="int8, int16, fp16 to judge and price by; default: the chip's first.")] = None,
    toolkit: ToolkitOption = None,
    data: DataOption = None,
    preprocess: PreprocessOption = None,
    input_shape: ShapesOption = None,
    input_value: ValuesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rewrite a model into operators that a chip runs. Exact rewrites (E) and those that only round otherwise (N) are applied where the chip
    needs them or they are priced lower; approximations (A) and changes (C) with consent. Each is proven by running both graphs.

    [bold]qbench rewrite net.onnx --target rk3588 -o net.rk3588.onnx[/bold]

    [bold]qbench rewrite net.onnx -t ane -o net.ane.onnx --allow gelu-to-tanh --data calibration.npz[/bold]
    """
    from qbench.report.rewrite_terminal import report
    from qbench.workbench.rewriting import rewrite_model

    done = rewrite_model(model, target, output, allow=allow or (), only=only or (), precision=precision, toolkit=toolkit, data=data,
                         preprocess=preprocess, input_shapes=options.shapes(input_shape),
                         input_values=options.values(input_value))
    if as_json:
        options.print_json(done.to_json())
    else:
        options.out().print(report(done))
