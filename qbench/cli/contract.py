"""qbench contract."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qbench.cli import completing, options
from qbench.cli.options import JsonOption, PreprocessOption, ShapesOption, ValuesOption


def command(
    model: Annotated[Path, typer.Argument(help="The model whose inputs are looked at.", show_default=False)],
    target: Annotated[str, typer.Option("--target", "-t", autocompletion=completing.targets, help="Chip that reads them, see `qbench targets`.")] = "rk3588",
    file: Annotated[list[str] | None, typer.Option("--input", help="What is to be fed: a .npy, .npz, picture or raw file; NAME=FILE where the model has several inputs.")] = None,
    handover: Annotated[str, typer.Option("--as", help="model: as the file declares it; pixels: 8-bit NHWC, the compiled model normalises; codes: quantized, see --plan.")] = "model",
    zero_copy: Annotated[bool, typer.Option("--zero-copy", help="The device reads this very buffer: alignment of its start and its rows counts.")] = False,
    width_align: Annotated[int | None, typer.Option("--width-align", min=1, help="Pixels that rows are a multiple of, where the runtime told it (w_stride).")] = None,
    preprocess: PreprocessOption = None,
    plan: Annotated[Path | None, typer.Option("--plan", help="plan.json whose scale and zero point hold, with --as codes.")] = None,
    stats: Annotated[Path | None, typer.Option("--stats", help="Calibration statistics (`qbench stats -o`): names a slip in the preparation of --input.")] = None,
    channel_order: Annotated[str | None, typer.Option("--channel-order", help="Of --input: rgb, bgr or gray; no array shows it.")] = None,
    scale: Annotated[float | None, typer.Option("--scale", help="That --input was quantized with.")] = None,
    zero_point: Annotated[int | None, typer.Option("--zero-point", help="That --input was quantized with.")] = None,
    normalised: Annotated[bool | None, typer.Option("--normalised/--raw", help="Whether mean and std are already applied to --input.")] = None,
    frame: Annotated[str, typer.Option("--frame", help="Price the way of a camera frame of WIDTHxHEIGHT to the input: timed here, estimated for the target; with --preprocess.")] = "",
    code: Annotated[bool, typer.Option("--code", help="Print a Python function that prepares the input, with checks, and nothing else.")] = False,
    input_shape: ShapesOption = None,
    input_value: ValuesOption = None,
    as_json: JsonOption = False,
) -> None:
    """What a model's inputs must be on a chip, byte by byte, and what breaks that in a real array. Exit code 1 when something does.

    [bold]qbench contract net.onnx --target rk3588 --input x.npy[/bold]

    [bold]qbench contract net.onnx -t rk3588 --as pixels --zero-copy --width-align 16 --input frame.raw[/bold]

    [bold]qbench contract net.onnx -t rk3588 --preprocess size=224x224,mean=0.5,std=0.5 --code > prepare.py[/bold]

    [bold]qbench contract net.onnx --stats stats.npz --input x.npy[/bold]   names swapped channels, missing or double normalisation

    [bold]qbench contract net.onnx --preprocess size=224x224 --frame 1920x1080[/bold]   what decoding, resizing, normalising and copying cost, and what saves it
    """
    from qbench.contract import Said
    from qbench.report.contract_terminal import contract_page
    from qbench.report.datapath_terminal import datapath_page
    from qbench.workbench.contracting import Handing, check_inputs

    found = check_inputs(model, target, file or [], handing=Handing(handover, zero_copy, preprocess, width_align, plan),
                         said=Said(None, channel_order, scale, zero_point, normalised), stats=stats, frame=frame,
                         input_shapes=options.shapes(input_shape), input_values=options.values(input_value))
    if code:
        options.out().print(found.code, end="", soft_wrap=True, markup=False)
    elif as_json:
        options.print_json(found.to_dict() | {"code": found.code})
    else:
        page = options.out()
        for part in (*contract_page(found), *datapath_page(found.ways, target)):
            page.print(part)
    if not found.kept:
        raise typer.Exit(1)
