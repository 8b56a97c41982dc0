"""qbench quantize."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qbench.cli import options
from qbench.cli.options import JsonOption, ShapesOption, ToolkitOption


def command(
    model: Annotated[Path, typer.Argument(help="The float model.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="Q/DQ model to write.")],
    plan: Annotated[Path | None, typer.Option("--plan", help="Write exactly this plan; nothing else is needed.")] = None,
    stats: Annotated[Path | None, typer.Option("--stats", help="Statistics of `qbench stats`.")] = None,
    calibrator: Annotated[str, typer.Option("--calibrator", help="See `qbench calibrators`, e.g. percentile:p=99.9.")] = "minmax",
    precision: Annotated[str, typer.Option("--precision", help="int8, int16 or fp16, for every layer that can take it.")] = "int8",
    scale: Annotated[str, typer.Option("--scale", help="global, per-layer or per-channel.")] = "per-channel",
    target: Annotated[str, typer.Option("--target", "-t", help="Chip whose quantization scheme is used.")] = "rk3588",
    toolkit: ToolkitOption = None,
    input_shape: ShapesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a model with QuantizeLinear / DequantizeLinear pairs.

    [bold]qbench quantize net.onnx --stats stats.npz --calibrator kl --precision int8 --scale per-channel -o net.qdq.onnx[/bold]

    [bold]qbench quantize net.onnx --plan plan.json -o net.qdq.onnx[/bold]
        bit for bit the model that the search evaluated
    """
    from qbench.workbench import quantize

    done = quantize(model, output, plan_file=plan, stats_file=stats, calibrator=calibrator, precision=precision, granularity=scale,
                    target_name=target, toolkit=toolkit, input_shapes=options.shapes(input_shape))
    if as_json:
        options.print_json(done)
        return
    layers = ", ".join(f"{n} {p}" for p, n in done["layers"].items())
    options.out().print(f"{output}: {layers}", soft_wrap=True, markup=False)
    for line in done["remarks"]:
        options.console().print(f"note: {line}", soft_wrap=True, markup=False)
